"""
A topic as a lookup table for transformations: the row of a key that was in force at a record's time.

::

    RATES = Table("rates", bootstrap="kafka1:9092")

    def in_euros(record):
        rate = RATES.at(b"USD", record.timestamp)

A row is in force from its own timestamp until the next row of its key; a tombstone ends it. That makes a transformation
deterministic, whenever it is called, as long as no rows with past timestamps are written and no rows that older records
still need are removed (`retention.ms=-1` and `cleanup.policy=delete`, not `compact`).

Write each row some seconds before its timestamp. The clocks of machines differ, and a row that is visible later than
its timestamp may be missed by a record of the same second, and found by `brew verify`.

Each process reads the topic once, and again up to its end when asked about a later time. If the topic was recreated or
got more partitions, or could not be read, it is read anew from its start.
"""

from __future__ import annotations

import functools
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from brew import names
from brew.client_config import ClientConfig, load
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, Refused, TransformFailed, Unreachable, UsageError
from brew.kafka.topic_reader import FullTopicReader

_GROUP = "brew-lookup"
_AGAIN_MS = 1000


@dataclass(frozen=True, slots=True)
class Table:
    """
    A table in ``topic``; it holds only values because it is sent to executors.

    ``client_config``: user, password and certificates, as for `--client-config`; with secrets by `${file:PATH}`, since
    tasks do not have the variables of a run. ``timeout_s``: the maximum time for reading the topic once; keep it below
    twice the run's transaction timeout, after which the watchdog ends the process.
    """

    topic: str
    bootstrap: str = names.BOOTSTRAP
    client_config: str | None = None
    timeout_s: float = 60.0

    def at(self, key: bytes, timestamp: int) -> bytes | None:
        """
        Return the value for ``key`` in force at ``timestamp`` (milliseconds since the epoch), or None.

        Raises:
            TypeError: the key is not bytes; it would never be found.
            TransformFailed: the topic does not exist, or this client may not read it; a run ends.
            BrewError: the topic can't be read at the moment; the transaction is repeated.
        """
        if not isinstance(key, bytes):
            raise TypeError(f"the key to look up in {self.topic!r} is {key!r}; a record's key is bytes")
        try:
            with _making:
                rows = _made(self)
            return rows.at(key, timestamp)
        except Unreachable:
            raise
        except (Refused, UsageError) as error:  # repeating the transaction would not help, and would hide this text
            raise TransformFailed(f"transform-failed: the table {self.topic!r} can't be read: {error}") from error


class Rows:
    """The rows that one process holds. Thread-safe."""

    def __init__(self, refresh: Callable[[Rows], None], now_ms: Callable[[], int]) -> None:
        self._refresh, self._now_ms = refresh, now_ms
        self._lock = threading.Lock()
        self._read_at: int | None = None
        self._failed_at, self._failure = 0.0, BrewError()
        self._rows: dict[bytes, tuple[list[int], list[bytes | None]]] = {}

    def add(self, key: bytes, timestamp: int, value: bytes | None) -> None:
        """Add a row; of two rows with the same timestamp, the one added last counts."""
        times, values = self._rows.setdefault(key, ([], []))
        index = bisect_right(times, timestamp)
        times.insert(index, timestamp)
        values.insert(index, value)

    def clear(self) -> None:
        """Forget all rows, and read them again at the next lookup."""
        self._rows.clear()
        self._read_at = None

    def at(self, key: bytes, timestamp: int) -> bytes | None:
        """Look up a value like `Table.at`."""
        arrived = time.monotonic()
        with self._lock:
            now = self._now_ms()
            # Rows up to a record's time have to be known, or `brew verify` would find another answer later.
            # Records with timestamps in the future must not trigger a read each.
            if (
                self._read_at is None
                or now < self._read_at  # this machine's clock was set back
                or (timestamp >= self._read_at and (timestamp < now or now - self._read_at >= _AGAIN_MS))
            ):
                if self._failed_at > arrived:  # one after another, threads would wait longer than an attempt may take
                    raise self._failure
                try:
                    self._refresh(self)
                except BrewError as error:
                    self._failed_at, self._failure = time.monotonic(), error
                    raise
                self._read_at = now
            times, values = self._rows.get(key, ((), ()))
            index = bisect_right(times, timestamp)
            return values[index - 1] if index else None


_making = threading.Lock()


@functools.cache
def _made(table: Table) -> Rows:
    return Rows(_Source(table).refresh, lambda: int(time.time() * 1000))


class _Source:
    """Reads the topic of a table into its rows, and forgets both if the reader can't be trusted any more."""

    def __init__(self, table: Table) -> None:
        known = ClientConfig() if table.client_config is None else load(Path(table.client_config))
        self._table = table
        self._connection = Connection(table.bootstrap, known.properties, known.secrets, known.source)
        self._reader: FullTopicReader | None = None

    def refresh(self, rows: Rows) -> None:
        before = None if self._reader is None else dict(self._reader.positions)
        try:
            self._read(rows, Deadline(self._table.timeout_s))
        except BrewError as error:
            # It may have lost rows with the error, or the brokers for good; one that is only slow goes on.
            slow = self._reader is not None and self._reader.positions != before
            if not (slow and isinstance(error, DeadlineExceeded)):
                self._forget(rows)
            raise

    def _read(self, rows: Rows, deadline: Deadline) -> None:
        if self._reader is not None and self._reader.is_stale(deadline):
            self._forget(rows)
        if self._reader is None:
            self._reader = FullTopicReader(self._connection, self._table.topic, _GROUP, deadline)
        for batch in self._reader.read(self._reader.ends(deadline), deadline, threading.Event()):
            for record in batch:
                if (key := record.key()) is not None:  # a row without a key is none of the empty key's
                    rows.add(key, record.timestamp()[1], record.value())

    def _forget(self, rows: Rows) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        rows.clear()
