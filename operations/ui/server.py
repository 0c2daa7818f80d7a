"""`ui`: serve the page and push its changes as server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

import click
import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from brew.cli import option
from brew.errors import Refused
from brew.html import Markup
from brew.observability.settings import checked_host
from operations.options import advised, live_options, print_json
from operations.ui import page
from operations.ui.build import document
from operations.ui.model import View
from operations.ui.page import parts
from operations.ui.poller import LiveSettings, PollGroup

_HEADERS = {
    "Content-Security-Policy": page.POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_KEEPALIVE_S, _GRACE_S, _MOST_READERS = 2.0, 1, 200


@dataclass(slots=True)
class EventBroadcaster:
    """Keeps the newest parts; slow readers skip changes, and pages reload after a restart or with new partitions."""

    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    change: int = 0
    closed: bool = False
    _parts: dict[str, tuple[int, Markup]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def position(self) -> str:
        return f"{self.boot}.{self.change}"

    def publish(self, parts: Mapping[str, Markup]) -> None:
        """Set the current parts, and wake the readers if one has changed."""
        if self._parts and parts.keys() != self._parts.keys():
            self.boot, self._parts = secrets.token_hex(4), {}
        changed = [name for name, part in parts.items() if self._parts.get(name, (0, None))[1] != part]
        if not changed:
            return
        self.change += 1
        self._parts |= {name: (self.change, parts[name]) for name in changed}
        self._wake()

    def parts(self) -> dict[str, Markup]:
        return {name: part for name, (_, part) in self._parts.items()}

    def since(self, position: str) -> dict[str, Markup] | None:
        """Return the parts that changed after this position; None if the page must be reloaded."""
        boot, _, seen = position.rpartition(".")
        if boot != self.boot or not re.fullmatch("[0-9]{1,15}", seen) or int(seen) > self.change:
            return None
        return {name: part for name, (change, part) in self._parts.items() if change > int(seen)}

    def close(self) -> None:
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def wait_for_change(self, position: str, patience_s: float) -> None:
        """Return once something has changed after this position, or after ``patience_s`` seconds."""
        if self.closed or position != self.position:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), patience_s)


class LiveView:
    """Builds the view once per interval for all readers; ``view`` may take long, so it is called in a thread."""

    def __init__(self, view: Callable[[], View], interval_s: float) -> None:
        self._take, self._interval_s = view, interval_s
        self.hub = EventBroadcaster()
        self.failed: Exception | None = None
        self._view: View | None = None
        self._one = asyncio.Lock()

    async def _refresh(self) -> View:
        def made() -> tuple[View, dict[str, Any]]:
            view = self._take()
            return view, parts(view)

        async with self._one:
            view, fresh_parts = await asyncio.to_thread(made)
            self.hub.publish(fresh_parts)
            self._view = view
        return view

    async def run(self) -> None:
        """Refresh until the hub is closed; an unexpected error ends the program, so that pages keep no old numbers."""
        try:
            while not self.hub.closed:
                await self._refresh()
                await asyncio.sleep(self._interval_s)
        except Exception as error:  # noqa: BLE001 - raised again by `ui`
            self.failed = error

    async def page(self, _request: Request) -> Response:
        view = self._view or await self._refresh()  # the first reader may come before the first refresh
        return HTMLResponse(page.page(view, self.hub.parts(), self.hub.position), headers=_HEADERS)

    async def json(self, _request: Request) -> Response:
        body = orjson.dumps(document(self._view or await self._refresh()), option=orjson.OPT_INDENT_2)
        return Response(body, media_type="application/json", headers=_HEADERS)

    async def events(self, request: Request) -> Response:
        """Send server-sent events (WHATWG HTML, "Server-sent events"): `change` with parts, `reload`, and `beat`."""
        given = request.headers.get("last-event-id") or request.query_params.get("since") or ""
        return StreamingResponse(self._stream(given), media_type="text/event-stream", headers=_HEADERS)

    async def _stream(self, position: str) -> AsyncIterator[bytes]:
        while not self.hub.closed:
            changed, position = self.hub.since(position), self.hub.position
            if changed is None:
                yield b"event: reload\ndata: {}\n\n"
                return
            if changed:
                yield b"event: change\nid: %s\ndata: %s\n\n" % (position.encode(), orjson.dumps(changed))
            else:
                yield b"event: beat\ndata: {}\n\n"
            await self.hub.wait_for_change(position, _KEEPALIVE_S)


def application(live: LiveView, hosts: list[str]) -> Starlette:
    """Return the routes; ``hosts`` are the accepted host names, so that no other site's page can reach them."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        work = asyncio.create_task(live.run())
        yield
        work.cancel()

    def file(name: str, kind: str) -> Route:
        async def serve_file(_request: Request) -> Response:
            content = page.style() if name == "page.css" else page.asset(name)
            return Response(content, media_type=kind, headers=_HEADERS)

        return Route(f"/{name}", serve_file)

    kinds = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
    views = [Route("/", live.page), Route("/events", live.events), Route("/view.json", live.json)]
    allowed = [Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
    return Starlette(routes=[*views, *starmap(file, kinds.items())], lifespan=lifespan, middleware=allowed)


class _Server(uvicorn.Server):
    """Ends the streams before it waits for its readers, which would never disconnect."""

    def __init__(self, config: uvicorn.Config, live: LiveView) -> None:
        super().__init__(config)
        self._live = live

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._live.failed is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._live.hub.close()
        await super().shutdown(sockets)


def server(live: LiveView, hosts: list[str]) -> uvicorn.Server:
    """Return a server that has not started; its `run` takes a listening socket."""
    config = uvicorn.Config(
        application(live, hosts),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http="h11",
        loop="asyncio",
        limit_concurrency=_MOST_READERS,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return _Server(config, live)


LOOPBACK = "127.0.0.1"
OWN_NAMES = [LOOPBACK, "localhost", "::1", "[::1]"]


@click.command("ui")
@live_options
@option(
    "--host",
    default=LOOPBACK,
    callback=lambda _context, _parameter, host: checked_host(host, "--host"),
    help="Address to listen on; other machines can read the page unless it is a loopback address.",
)
@option("--port", type=click.IntRange(0, 65_535), default=3001, help="Port to listen on; 0: any free port.")
@option("--json", "as_json", is_flag=True, help="Print the address as a JSON document; errors, too.")
@advised()
def ui(host: str, port: int, *, as_json: bool, **option: Any) -> None:
    """
    Show a group live in a browser: lag, state and steps of each partition, transactions, the last proof, preflight.

    Polls the brokers once per --interval, however many pages are open. Reads only. Ends with SIGTERM or Ctrl-C.

    Examples:
      python -m pipeline ui
      python -m pipeline ui --port 0 --status-url http://127.0.0.1:3000
      python -m pipeline ui --group my-group --input a --output b --proof proof.json

    Exit codes: 3 refused or brokers unreachable, 64 wrong usage, 143 ended by a signal.
    """
    settings = LiveSettings.of(option)
    if not loopback(host):
        click.echo(
            f"--host is {host}: everyone who reaches this machine can read topics, groups and offsets, without a "
            f"password or TLS; {LOOPBACK} and an SSH tunnel are safer",
            err=True,
        )
    with _listening(host, port) as listening:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listening.getsockname()[1]}/"
        print_json({"url": url}, lines=True) if as_json else click.echo(f"live view at {url}")
        with PollGroup(settings) as poll_group:
            live = LiveView(poll_group.view, settings.interval_s)
            # If the user opened it to other machines, they may call it by any name. After a signal, uvicorn closes
            # everything and raises the signal again, for the previous handler.
            server(live, OWN_NAMES if loopback(host) else ["*"]).run(sockets=[listening])
            if live.failed is not None:
                raise live.failed


def loopback(host: str) -> bool:
    """True if only this machine's own programs can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    """Return a bound, listening socket; `Refused` if the port is in use, or this machine has no such address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        what = "set another --port, or 0 for any free one" if taken else "set another --host or --port"
        raise Refused(f"--host {host} --port {port}: {error.strerror or error}; {what}") from error
