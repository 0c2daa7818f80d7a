"""A claims log, read while it grows: retention and compaction take nothing from who was there."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from typing import Self

from proof.claims.history import History
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka.claims_log import ClaimsLog

_LOOK_S, _READ_S, _JOIN_S = 0.02, 5.0, 10.0


class Watching:
    """Follows a log from its first record on, in a thread; makes the topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self.history = History()
        self._log = ClaimsLog(connection, topic)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watching claims", daemon=True)

    def _run(self) -> None:
        self._log.tail({0: 0})
        while not self._end.wait(_LOOK_S):
            with contextlib.suppress(BrewError):  # brokers are killed on purpose
                self._take({})

    def _take(self, until: dict[int, int]) -> None:
        for entry in self._log.read(until, Deadline(_READ_S)):
            self.history.add(entry.offset, entry.time_ms, entry.value)

    def snapshots_left(self) -> int:
        """How many snapshots the log still holds."""
        deadline = Deadline(_READ_S)
        return sum(entry.key == b"Snapshot" for entry in self._log.history(self._log.bounds(deadline), deadline))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(_JOIN_S)
        with contextlib.suppress(BrewError):
            if kind is None:
                self._take({0: self._log.bounds(Deadline(_READ_S))[0][1]})
        self._log.close()
