"""The engine without Spark (`--master none`): this process reads and writes; for the campaign, and for small loads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from brew.attempt import Job, attempt
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError
from brew.kafka.log_reader import RangeReader
from brew.offsets import OffsetRange
from brew.outcome import Outcome
from brew.range_transaction import Rows
from brew.transformation import Transformation


class LocalEngine:
    """One thread and one kept reader for each partition; a crash on purpose of a worker kills this process."""

    def __init__(self, connection: Connection, group: str, partitions: int, transformation: Transformation) -> None:
        self._connection, self._group, self._transformation = connection, group, transformation
        self._readers: dict[int, RangeReader] = {}
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max(1, partitions), thread_name_prefix="attempt")

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        """All ranges at once, each in a thread of its own."""
        tried = {r.partition: self._pool.submit(self._attempt, r, job) for r in ranges}
        return {partition: one.result() for partition, one in tried.items()}

    def _attempt(self, offered: OffsetRange, job: Job) -> Outcome:
        return attempt(job.offers[offered.partition], self._rows(offered, job.transaction.timeout_s), job)

    def _rows(self, offered: OffsetRange, patience_s: float) -> Iterator[Rows]:
        reader = self._readers.get(offered.partition)
        if reader is None:
            reader = RangeReader(self._connection, offered.topic, offered.partition, self._group)
            self._readers[offered.partition] = reader
        try:
            for batch in reader.read(offered.start, offered.until, Deadline(patience_s), self._stop):
                yield Rows(
                    [one.offset() for one in batch],
                    [one.key() for one in batch],
                    [one.value() for one in batch],
                    [one.headers() for one in batch],
                    [one.timestamp()[1] for one in batch],
                )
        except BrewError:
            # A client that knows no broker any more never reads again (librdkafka issue 5301).
            self._readers.pop(offered.partition).close()
            raise

    def interrupt(self) -> None:
        self._stop.set()
        self._transformation.release(loading_only=True)

    def close(self) -> None:
        self.interrupt()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for reader in self._readers.values():
            reader.close()
        self._transformation.release()
