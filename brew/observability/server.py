"""
Answer probes, `/metrics` and `/status` over HTTP.

But `/status?producers`: it asks the brokers, too, within two seconds.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, UsageError
from brew.observability.local import announced
from brew.observability.recorder import Recorder
from brew.observability.settings import ProbeSettings
from brew.observability.status import ILL, Answer, PartitionStatus, Phase, Status

Holders = Mapping[str, tuple[int, int]]
"""Transactional id -> producer id and epoch, as its coordinator has them now."""
Ask = Callable[[Sequence[str], Deadline], Holders]

logger = logging.getLogger(__name__)
_ASK_S = 2.0
_KEPT_S = 1.0
_UNKNOWN = "its coordinator knows no such id, or this client may not see it"


class Producers:
    """Fills producer ids and epochs into a status; answers, and failures, are kept for a second."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._holders: Holders = {}
        self._silent = ""

    @classmethod
    def of(cls, connection: Connection) -> Producers:
        """Asks the coordinators of a cluster."""

        def ask(names: Sequence[str], deadline: Deadline) -> Holders:
            from brew.kafka.transactions_admin import open_transactions_admin  # noqa: PLC0415 - a second client, for who asks

            with open_transactions_admin(connection, deadline) as admin:
                return {
                    transaction.transactional_id: (transaction.producer_id, transaction.producer_epoch)
                    for transaction in admin.named(names)
                }

        return cls(ask)

    def filled(self, status: Status) -> Status:
        """The same with producer ids from the brokers, or the reason why they did not answer within two seconds."""
        lasts = [last for partition in status.partitions if (last := partition.last_transaction) is not None]
        known = sorted({last.transactional_id for last in lasts if last.transactional_id is not None})
        holders, silent = self._look(known) if known else ({}, "")
        return replace(status, partitions=tuple(_with(partition, holders, silent) for partition in status.partitions))

    def _look(self, names: Sequence[str]) -> tuple[Holders, str]:
        with self._lock:  # who asks meanwhile gets the same answer
            if self._asked_at is None or self._clock() - self._asked_at >= _KEPT_S:
                try:
                    self._holders, self._silent = self._ask(names, Deadline(_ASK_S)), ""
                except BrewError as error:
                    self._holders, self._silent = {}, f"the brokers do not tell: {error}"
                finally:
                    self._asked_at = self._clock()
            return self._holders, self._silent


def _with(status: PartitionStatus, holders: Holders, silent: str) -> PartitionStatus:
    last = status.last_transaction
    if last is None or last.transactional_id is None:
        return status
    producer_id, epoch = holders.get(last.transactional_id, (None, None))
    why = None if producer_id is not None else silent or _UNKNOWN
    return replace(status, last_transaction=replace(last, producer_id=producer_id, epoch=epoch, producer_unknown=why))


_JSON = "application/json"
_REQUEST_S = 5.0
_LOOK_S = 0.25
_OK, _NOT_FOUND, _ERROR, _ILL = 200, 404, 500, 503
_PAGES = ("/livez", "/readyz", "/startupz", "/metrics", "/status")


class Reply(NamedTuple):
    """Status code, content type and body of an answer."""

    code: int
    kind: str
    body: bytes


def respond(path: str, recorder: Recorder, producers: Producers | None = None) -> Reply:
    """The answer for one path; behind a question mark only `producers` means anything."""
    page, _, query = path.partition("?")
    page = page.rstrip("/")
    if page == "/metrics":
        from brew.observability import metrics  # noqa: PLC0415 - who is never scraped needs no client library

        return Reply(_OK, metrics.CONTENT_TYPE, metrics.text(*recorder.snapshot()))
    if page == "/status":
        status = recorder.status()
        if producers is not None and query.partition("=")[0] == "producers":
            status = producers.filled(status)
        return Reply(_OK, _JSON, status.to_json())
    if page in _PAGES:
        status = recorder.status()
        answer = {"/livez": status.live, "/readyz": status.ready, "/startupz": status.started}[page]
        return Reply(_OK if answer.ok else _ILL, _JSON, _probe(answer, status))
    return Reply(_NOT_FOUND, _JSON, orjson.dumps({"pages": _PAGES}, option=orjson.OPT_APPEND_NEWLINE))


def _probe(answer: Answer, status: Status) -> bytes:
    """Kept short because kubelets log it; the whole answer is in `/status`."""
    document = {
        "ok": answer.ok,
        "reason": answer.reason,
        "application": status.application,
        "state": status.state,
        "now": status.now,
        "ill": [
            {"topic": row.topic, "partition": row.partition, "state": row.state, "reason": row.reason}
            for row in status.partitions
            if row.state in ILL
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], recorder: Recorder, producers: Producers | None) -> None:
        self.recorder, self.producers = recorder, producers
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Without the base class's look-up of the host's name, which may wait for a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = _REQUEST_S
    server: _Server

    def do_GET(self) -> None:
        try:
            reply = respond(self.path, self.server.recorder, self.server.producers)
        except Exception as error:  # noqa: BLE001 - a bug here must not look like a program that has ended
            reply = Reply(_ERROR, _JSON, orjson.dumps({"ok": False, "reason": f"{type(error).__name__}: {error}"}))
        with contextlib.suppress(OSError):  # whoever asked has gone
            self.send_response(reply.code)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(reply.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(reply.body)

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def log_message(self, _format: str, *args: object) -> None:
        """Log nothing: probes come every few seconds."""


class Probes:
    """The server, in a thread of its own; ``url`` is where it answers."""

    def __init__(self, settings: ProbeSettings, recorder: Recorder, producers: Producers | None = None) -> None:
        """
        Raises:
            UsageError: the port that was asked for is taken, or the address is none of this machine's.
            OSError: nobody asked for this port by number, and yet none can be had.
        """
        self.taken = False
        try:
            self._server = _Server((settings.host, settings.port), recorder, producers)
        except OSError as error:
            if settings.asked:
                raise UsageError(
                    f"no probes at {settings.host}:{settings.port} (--probe-host, --probe-port): {error.strerror}; "
                    "name another port, 0 for any free one, or --no-probes"
                ) from error
            # Nobody asked for the default port by number: another program on it must not stop this one.
            self._server, self.taken = _Server((settings.host, 0), recorder, producers), True
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http://{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[_LOOK_S], name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def serving(settings: ProbeSettings, recorder: Recorder, producers: Producers | None = None) -> Iterator[None]:
    """
    Answer while the block lasts, and log where; without a place for the default the program goes on unprobed.

    Raises:
        UsageError: as `Probes` says.
    """
    try:
        server = Probes(settings, recorder, producers)
    except OSError as error:
        logger.warning("no probes at %s: %s; set --probe-host, or --no-probes", settings.host, error.strerror)
        yield
        return
    logger.info("probes at %s%s", server.url, f" ({settings.port} is taken)" if server.taken else "")
    try:
        with announced(server.url):
            yield
    finally:
        recorder.phase(Phase.STOPPED)
        server.close()
