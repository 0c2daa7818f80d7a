"""Spark, started before there is work, and kept warm while its driver waits: classes loaded, Python workers alive."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from brew.deadline import Deadline
from brew.driver.partitions import OffsetsClient
from brew.errors import BrewError
from brew.offsets import OffsetRange
from brew.readers.connector import OUTCOME_SCHEMA, check_one_task_per_range, read_ranges
from brew.readers.direct.executors import import_worker
from brew.settings import Compilers, PipelineSettings, Reader
from brew.spark import session

_INTERVAL_S = 20.0
"""Spark ends Python workers that were idle for a minute."""
_WARM_JOBS = 6
"""So often in a row: the JVM compiles only what it has run a few times."""
_ASK_S = 10.0
_PAUSE_S = 0.5
_JOIN_S = 5.0
# A cluster without a free slot, a broker that is away, a JVM that ends: nothing that a driver who waits has to tell.
_EXPECTED_ERRORS = (BrewError, Py4JError, PySparkException, OSError)


class WarmSpark:
    """
    One Spark for all that a driver does; closed by whoever made it.

    ``tell`` hears what must not happen while it is kept warm; the driver waits on, and begins slower.

    Raises:
        Refused: Spark did not start.
    """

    def __init__(self, settings: PipelineSettings, compilers: Compilers, tell: Callable[[str], None]) -> None:
        self._settings, self._tell = settings, tell
        borrowed = session.borrowed(settings.spark)
        self._kept = borrowed is not None
        if borrowed is not None:
            self.context: SparkContext = borrowed
        elif settings.reader is Reader.DIRECT:
            self.context = session.start_context(settings.spark, compilers)
        else:
            self.context = session.start(settings.spark, compilers).sparkContext
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._done = 0

    @property
    def warm(self) -> bool:
        """Whether enough small jobs have run for a start without delay."""
        return self._done >= _WARM_JOBS

    def keep(self) -> None:
        """
        Have small jobs run in the background from now on, until there is work; called at each look, it does so once.

        Raises:
            Refused: Spark's JVM has ended by itself.
        """
        session.check_alive(self.context)
        if self._thread is None:
            self._end.clear()
            self._thread = threading.Thread(target=self._run, name="warm", daemon=True)
            self._thread.start()

    def leave(self) -> None:
        """There is work: start no such job any more, and don't wait for the one that runs."""
        self._end.set()
        self._thread = None

    def close(self) -> None:
        """End Spark; the job that runs first, since py4j prints a trace where a JVM goes away under a call."""
        thread = self._thread
        self.leave()
        if thread is not None:
            session.cancel_all(self.context)
            thread.join(_JOIN_S)
        if not self._kept:
            session.end(self.context)

    def _run(self) -> None:
        end, again = self._end, 0
        with contextlib.suppress(*_EXPECTED_ERRORS):
            session.tag_jobs(self.context)
        while not end.is_set():
            again += 1
            try:
                with contextlib.suppress(*_EXPECTED_ERRORS):
                    self._work_a_little()
                    self._done += 1
            except Exception:  # noqa: BLE001 - a bug here must not end a driver that waits well
                if not end.is_set():  # pyspark, too, stumbles over a Spark that is ended under it
                    trace = traceback.format_exc(limit=-4)
                    self._tell(f"Spark is not kept warm any more, the start will be slower; report this: {trace}")
                return
            end.wait(_INTERVAL_S if again >= _WARM_JOBS else _PAUSE_S)

    def _work_a_little(self) -> None:
        """A job for each slot; the connector also reads a record of each partition, as a cycle does."""
        slots = max(1, int(self.context.defaultParallelism))
        touch = _touch if self._settings.reader is Reader.CONNECTOR else import_worker
        self.context.parallelize(range(slots), slots).mapPartitions(touch).count()
        if self._settings.reader is Reader.CONNECTOR and (ranges := self._ranges()):
            frame = read_ranges(
                session.session_of(self.context), self._settings.connection, self._settings.group, ranges
            )
            frame = frame.mapInArrow(_touch, OUTCOME_SCHEMA)
            check_one_task_per_range(frame, ranges)
            frame.collect()

    def _ranges(self) -> list[OffsetRange]:
        """The newest offset of each partition that holds something."""
        surveyor, deadline = OffsetsClient(self._settings), Deadline(_ASK_S)
        try:
            source = surveyor.input_topic(deadline)
            logs = {f.partition: f.log for f in surveyor.facts(source, range(source.partitions), deadline, {})}
        finally:
            surveyor.close()
        ends = {p: log.last_stable for p, log in logs.items() if log.last_stable > log.first}
        return [OffsetRange(source.name, p, end - 1, end) for p, end in ends.items()]


def _touch(rows: Iterator[Any]) -> Iterator[Any]:
    """Takes all and gives nothing; that it is found in this module makes a worker import the kernel."""
    for _ in rows:
        pass
    return import_worker(())
