"""Answer probes, `/metrics` and `/status` over HTTP; only `/status?producers` asks the brokers, for at most 2 s."""

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
from brew.observability.status import UNHEALTHY, Answer, PartitionStatus, Phase, Status

Holders = Mapping[str, tuple[int, int]]
"""Transactional id -> producer id and epoch, as its coordinator has them now."""
Ask = Callable[[Sequence[str], Deadline], Holders]

logger = logging.getLogger(__name__)
_ASK_S = 2.0
_KEPT_S = 1.0
_NEW = "the brokers are asked once a second, and this id is newer; ask again"
_UNKNOWN = "the coordinator does not know the id, or this client lacks Describe on it"


class Producers:
    """Fills producer ids and epochs into a status; answers, and failures, are cached for a second."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._asked: Sequence[str] = ()
        self._holders: Holders = {}
        self._failure = ""

    @classmethod
    def of(cls, connection: Connection) -> Producers:
        """Return one that asks the coordinators of a cluster."""

        def ask(names: Sequence[str], deadline: Deadline) -> Holders:
            from brew.kafka.transactions_admin import open_transactions_admin  # noqa: PLC0415 - only if asked for

            with open_transactions_admin(connection, deadline) as admin:
                return {
                    transaction.transactional_id: (transaction.producer_id, transaction.producer_epoch)
                    for transaction in admin.named(names)
                }

        return cls(ask)

    def with_producers(self, status: Status) -> Status:
        """Return the status with producer ids from the brokers, or why they did not answer within two seconds."""
        lasts = [last for partition in status.partitions if (last := partition.last_transaction) is not None]
        known = sorted({last.transactional_id for last in lasts if last.transactional_id is not None})
        holders, failures = self._cached_holders(known) if known else ({}, {})
        partitions = tuple(_with_producer(partition, holders, failures) for partition in status.partitions)
        return replace(status, partitions=partitions)

    def _cached_holders(self, names: Sequence[str]) -> tuple[Holders, dict[str, str]]:
        """Return the holders as known since less than a second, and why others of ``names`` are unknown."""
        with self._lock:  # concurrent requests get the same answer
            if self._asked_at is None or self._clock() - self._asked_at >= _KEPT_S:
                try:
                    self._holders, self._failure = self._ask(names, Deadline(_ASK_S)), ""
                except BrewError as error:
                    self._holders, self._failure = {}, f"the brokers did not report it: {error}"
                finally:
                    self._asked, self._asked_at = names, self._clock()
            why = {name: self._failure or (_UNKNOWN if name in self._asked else _NEW) for name in names}
            return self._holders, why


def _with_producer(status: PartitionStatus, holders: Holders, failures: Mapping[str, str]) -> PartitionStatus:
    last = status.last_transaction
    if last is None or last.transactional_id is None:
        return status
    producer_id, epoch = holders.get(last.transactional_id, (None, None))
    why = None if producer_id is not None else failures[last.transactional_id]
    return replace(status, last_transaction=replace(last, producer_id=producer_id, epoch=epoch, producer_unknown=why))


_JSON = "application/json"
_REQUEST_S = 5.0
_POLL_S = 0.25
_OK, _NOT_FOUND, _ERROR, _UNAVAILABLE = 200, 404, 500, 503
_PAGES = ("/livez", "/readyz", "/startupz", "/metrics", "/status")


class Reply(NamedTuple):
    code: int
    kind: str
    body: bytes


def respond(path: str, recorder: Recorder, producers: Producers | None = None) -> Reply:
    """Return the response for one path; the only query parameter is `producers`."""
    page, _, query = path.partition("?")
    page = page.rstrip("/")
    if page == "/metrics":
        from brew.observability import metrics  # noqa: PLC0415 - the client library, only if scraped

        return Reply(_OK, metrics.CONTENT_TYPE, metrics.text(*recorder.snapshot()))
    if page == "/status":
        status = recorder.status()
        if producers is not None and query.partition("=")[0] == "producers":
            status = producers.with_producers(status)
        return Reply(_OK, _JSON, status.to_json())
    if page in _PAGES:
        status = recorder.status()
        answer = {"/livez": status.live, "/readyz": status.ready, "/startupz": status.started}[page]
        return Reply(_OK if answer.ok else _UNAVAILABLE, _JSON, _probe(answer, status))
    return Reply(_NOT_FOUND, _JSON, orjson.dumps({"pages": _PAGES}, option=orjson.OPT_APPEND_NEWLINE))


def _probe(answer: Answer, status: Status) -> bytes:
    """Return a short body, because kubelets log it; the whole answer is in `/status`."""
    document = {
        "ok": answer.ok,
        "reason": answer.reason,
        "application": status.application,
        "state": status.state,
        "now": status.now,
        "unhealthy": [
            {"topic": row.topic, "partition": row.partition, "state": row.state, "reason": row.reason}
            for row in status.partitions
            if row.state in UNHEALTHY
        ],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], recorder: Recorder, producers: Producers | None) -> None:
        self.recorder, self.producers = recorder, producers
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without the base class's look-up of the host name, which may wait for a name server."""
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
        with contextlib.suppress(OSError):  # the client has disconnected
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
    """The server, in its own thread; ``url`` is its address."""

    def __init__(self, settings: ProbeSettings, recorder: Recorder, producers: Producers | None = None) -> None:
        """
        Raises:
            UsageError: the requested port is in use, or the address is not one of this machine's.
            OSError: no port was requested, and none is available.
        """
        self.taken = False
        try:
            self._server = _Server((settings.host, settings.port), recorder, producers)
        except OSError as error:
            if settings.asked:
                raise UsageError(
                    f"no probes at {settings.host}:{settings.port} (--probe-host, --probe-port): {error.strerror}; "
                    "set another --probe-port, 0 for any free port, or --no-probes"
                ) from error
            # The default port was not requested explicitly: another program on it must not stop this one.
            self._server, self.taken = _Server((settings.host, 0), recorder, producers), True
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http://{host}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=[_POLL_S], name="probes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def serving(settings: ProbeSettings, recorder: Recorder, producers: Producers | None = None) -> Iterator[None]:
    """
    Serve while the context is active, and log where; if no default port is available, continue without probes. Raises
    `UsageError`: as in `Probes`.
    """
    try:
        server = Probes(settings, recorder, producers)
    except OSError as error:
        logger.warning("no probes at %s: %s; set --probe-host, or --no-probes", settings.host, error.strerror)
        yield
        return
    logger.info("probes at %s%s", server.url, f" (port {settings.port} is in use)" if server.taken else "")
    try:
        with announced(server.url):
            yield
    finally:
        recorder.phase(Phase.STOPPED)
        server.close()
