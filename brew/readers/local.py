"""The local engine (`--master none`): reads and writes in this process, without Spark."""

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
    """One thread and one reader for each partition; a worker crash on purpose kills this process."""

    def __init__(self, connection: Connection, group: str, partitions: int, transformation: Transformation) -> None:
        self._connection, self._group, self._transformation = connection, group, transformation
        self._readers: dict[int, RangeReader] = {}
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(max(1, partitions), thread_name_prefix="attempt")

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        """Attempt all ranges in parallel, each in its own thread."""
        futures = {r.partition: self._pool.submit(self._attempt, r, job) for r in ranges}
        return {partition: future.result() for partition, future in futures.items()}

    def _attempt(self, offered: OffsetRange, job: Job) -> Outcome:
        return attempt(job.offers[offered.partition], self._rows(offered, job.transaction.timeout_s), job)

    def _rows(self, offered: OffsetRange, timeout_s: float) -> Iterator[Rows]:
        reader = self._readers.get(offered.partition)
        if reader is None:
            reader = RangeReader(self._connection, offered.topic, offered.partition, self._group)
            self._readers[offered.partition] = reader
        try:
            for batch in reader.read(offered.start, offered.until, Deadline(timeout_s), self._stop):
                yield Rows(
                    [record.offset() for record in batch],
                    [record.key() for record in batch],
                    [record.value() for record in batch],
                    [record.headers() for record in batch],
                    [record.timestamp()[1] for record in batch],
                )
        except BrewError:
            # A client that has forgotten all brokers never recovers (librdkafka issue 5301).
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
