"""A small HTTP server that honours `Idempotency-Key`, for the outbox to talk to in demonstrations and tests."""

from __future__ import annotations

import http.client
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
_OK, _UNAVAILABLE = 200, 503


class Sink(ThreadingHTTPServer):
    """
    POST has its effect once per key; a known key is answered alike and does nothing. GET tells the counts.

    Every ``fail_every``-th request is answered 503, half of them behind the effect: the sender can't tell which.
    """

    daemon_threads = True

    def __init__(self, port: int = 0, fail_every: int = 0, *, keys: bool = True) -> None:
        super().__init__((HOST, port), _Handler)
        self._lock = threading.Lock()
        self._fail_every, self._keys = fail_every, keys
        self.requests = self.failures = 0
        self.effects: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def take(self, key: str) -> int:
        """One request; the status to answer."""
        with self._lock:
            self.requests += 1
            failing = bool(self._fail_every) and self.requests % self._fail_every == 0
            self.failures += failing
            if failing and self.failures % 2:
                return _UNAVAILABLE
            if not self._keys or key not in self.effects:
                self.effects[key] += 1
            return _UNAVAILABLE if failing else _OK

    def counts(self) -> dict[str, int]:
        with self._lock:
            effects = sum(self.effects.values())
            return {"requests": self.requests, "effects": effects, "duplicates": effects - len(self.effects)}

    def serving(self) -> threading.Thread:
        """Serve in a thread, until `shutdown`."""
        thread = threading.Thread(target=self.serve_forever, args=[0.05], name="sink", daemon=True)
        thread.start()
        return thread


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave in one packet: apart, the second waits 40 ms for the first one's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Sink

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(self.server.take(self.headers.get("Idempotency-Key") or ""), {})

    def do_GET(self) -> None:
        self._answer(_OK, self.server.counts())

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status, http.client.responses[status])
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Quiet: the counts tell all."""
