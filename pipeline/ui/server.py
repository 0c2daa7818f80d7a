"""The web server of the live view: one page, its stream of changes, and the same as JSON; GET alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from pipeline.ui import page
from pipeline.ui.document import document
from pipeline.ui.hub import Hub, Stand
from pipeline.ui.parts import parts
from pipeline.ui.view import View

_HEADERS = {
    "Content-Security-Policy": page.POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_BEAT_S = 2.0
_GRACE_S = 1
_MOST_READERS = 200


class Live:
    """
    Takes the view once per interval, for all readers together.

    ``view`` may take its time: it is called in a thread of its own.
    """

    def __init__(self, view: Callable[[], View], interval_s: float) -> None:
        self._take, self._interval_s = view, interval_s
        self.hub = Hub()
        self.failed: Exception | None = None
        self._view: View | None = None
        self._one = asyncio.Lock()

    async def _now(self) -> View:
        """The newest view; the first reader may come before the first look."""
        return self._view or await self._refresh()

    async def _refresh(self) -> View:
        def made() -> tuple[View, dict[str, Any]]:
            view = self._take()
            return view, parts(view)

        async with self._one:
            view, found = await asyncio.to_thread(made)
            self.hub.publish(found)
            self._view = view
        return view

    async def run(self) -> None:
        """Until the hub is closed; what nobody foresaw ends the program instead of leaving old numbers on pages."""
        try:
            while not self.hub.closed:
                await self._refresh()
                await asyncio.sleep(self._interval_s)
        except Exception as error:  # noqa: BLE001 - raised again by `serve`
            self.failed = error

    async def page(self, _request: Request) -> Response:
        view = await self._now()
        return HTMLResponse(page.page(view, self.hub.parts(), self.hub.stand), headers=_HEADERS)

    async def json(self, _request: Request) -> Response:
        view = await self._now()
        body = orjson.dumps(document(view), option=orjson.OPT_INDENT_2)
        return Response(body, media_type="application/json", headers=_HEADERS)

    async def events(self, request: Request) -> Response:
        """Server-sent events (WHATWG HTML, "Server-sent events"): `change` with parts, `reload`, and `beat`."""
        given = request.headers.get("last-event-id") or request.query_params.get("since") or ""
        return StreamingResponse(self._stream(Stand.parse(given)), media_type="text/event-stream", headers=_HEADERS)

    async def _stream(self, stand: Stand | None) -> AsyncIterator[bytes]:
        while not self.hub.closed:
            found = None if stand is None else self.hub.since(stand)
            if found is None or stand is None:
                yield b"event: reload\ndata: {}\n\n"
                return
            if found:
                stand = self.hub.stand
                yield b"event: change\nid: %s\ndata: %s\n\n" % (str(stand).encode(), orjson.dumps(found))
            else:
                yield b"event: beat\ndata: {}\n\n"
            await self.hub.news(stand, _BEAT_S)


def application(live: Live, hosts: list[str]) -> Starlette:
    """The routes; ``hosts`` are the names under which it answers, so that no other site's page can reach it."""

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

    routes = [
        Route("/", live.page),
        Route("/events", live.events),
        Route("/view.json", live.json),
        file("page.css", "text/css"),
        file("page.js", "text/javascript"),
        file("icon.svg", "image/svg+xml"),
    ]
    return Starlette(
        routes=routes, lifespan=lifespan, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]
    )


class _Server(uvicorn.Server):
    """Ends the streams before it waits for its readers, who would stay for ever."""

    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._live.failed is not None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._live.hub.close()
        await super().shutdown(sockets)


def server(live: Live, hosts: list[str]) -> uvicorn.Server:
    """A server that has not begun; its `run` takes a listening socket."""
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


def serve(live: Live, listening: socket.socket, hosts: list[str]) -> None:
    """Until a signal; uvicorn raises it again once all is closed, for whoever handled it before."""
    server(live, hosts).run(sockets=[listening])
    if live.failed is not None:
        raise live.failed
