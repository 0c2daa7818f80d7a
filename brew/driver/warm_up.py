"""Start Spark before there is work, and keep it warm while its driver waits: classes loaded, Python workers alive."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from brew.deadline import Deadline
from brew.driver.partitions import OffsetsClient
from brew.errors import BrewError
from brew.offsets import OffsetRange
from brew.readers.connector import OUTCOME_SCHEMA, check_one_task_per_range, read_ranges
from brew.readers.direct.executors import import_worker
from brew.settings import Compilers, PipelineSettings, Reader
from brew.spark import session

_INTERVAL_S = 20.0
"""Spark ends Python workers that are idle for a minute."""
_JOBS_UNTIL_WARM = 6
"""The JVM compiles only code that has run several times."""
_SURVEY_S = 10.0
_PAUSE_S = 0.5
_JOIN_S = 5.0
# A cluster without a free slot, an unavailable broker, a JVM that ends: a waiting driver does not report these.
_EXPECTED_ERRORS = (BrewError, Py4JError, PySparkException, OSError)


class WarmSpark:
    """
    The Spark context of a driver, kept warm while it waits; the caller closes it. ``report`` gets unexpected errors of
    the warm-up; the driver then keeps waiting, and starts more slowly. Raises `Refused`: Spark did not start.
    """

    def __init__(self, settings: PipelineSettings, compilers: Compilers, report: Callable[[str], None]) -> None:
        self._settings, self._report = settings, report
        if settings.reader is Reader.DIRECT:
            self.context: SparkContext = session.start_context(settings.spark, compilers)
        else:
            self.context = session.start(settings.spark, compilers).sparkContext
        self._jobs = session.RunJobs(self.context)
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._jobs_done = 0

    @property
    def warm(self) -> bool:
        """Whether enough jobs have run for a start without delay."""
        return self._jobs_done >= _JOBS_UNTIL_WARM

    def keep(self) -> None:
        """Run small jobs in the background until `leave`; each call raises `Refused` if the JVM has ended by itself."""
        session.check_alive(self.context)
        if self._thread is None:
            self._end = threading.Event()  # a thread whose job outlasted its `leave` must not go on beside this one
            self._thread = threading.Thread(target=self._run, args=[self._end], name="warm", daemon=True)
            self._thread.start()

    def leave(self) -> None:
        """Start no more jobs, because there is work now; does not wait for a running job."""
        self._end.set()
        self._thread = None

    def close(self) -> None:
        """Stop Spark; cancel a running job first, since py4j prints a stack trace if the JVM ends during a call."""
        thread = self._thread
        self.leave()
        if thread is not None:
            self._jobs.cancel()
            thread.join(_JOIN_S)
        session.end(self.context)

    def _run(self, end: threading.Event) -> None:
        jobs_tried = 0
        with contextlib.suppress(*_EXPECTED_ERRORS):
            self._jobs.tag()
        while not end.is_set():
            jobs_tried += 1
            try:
                with contextlib.suppress(*_EXPECTED_ERRORS):
                    self._run_small_job()
                    self._jobs_done += 1
            except Exception:  # noqa: BLE001 - a bug here must not end a waiting driver
                if not end.is_set():  # pyspark raises other errors if Spark ends during a call
                    trace = traceback.format_exc(limit=-4)
                    self._report(f"Spark is not kept warm any more, the start will be slower; report this: {trace}")
                return
            end.wait(_INTERVAL_S if jobs_tried >= _JOBS_UNTIL_WARM else _PAUSE_S)

    def _run_small_job(self) -> None:
        """Run a task in each slot; with the connector, also read a record of each partition, as a cycle does."""
        slots = max(1, int(self.context.defaultParallelism))
        touch = _touch if self._settings.reader is Reader.CONNECTOR else import_worker
        self.context.parallelize(range(slots), slots).mapPartitions(touch).count()
        if self._settings.reader is Reader.CONNECTOR and (ranges := self._ranges()):
            spark, settings = SparkSession(self.context), self._settings
            frame = read_ranges(spark, settings.connection, settings.group, ranges)
            frame = frame.mapInArrow(_touch, OUTCOME_SCHEMA)
            check_one_task_per_range(frame, ranges)
            frame.collect()

    def _ranges(self) -> list[OffsetRange]:
        """Return the last offset of each partition that is not empty."""
        deadline = Deadline(_SURVEY_S)
        with contextlib.closing(OffsetsClient(self._settings)) as surveyor:
            source = surveyor.input_topic(deadline)
            logs = {f.partition: f.log for f in surveyor.facts(source, range(source.partitions), deadline, {})}
        ends = {p: log.last_stable for p, log in logs.items() if log.last_stable > log.first}
        return [OffsetRange(source.name, p, end - 1, end) for p, end in ends.items()]


def _touch(rows: Iterator[Any]) -> Iterator[Any]:
    """Consume all rows; unpickling this function makes a worker import the kernel."""
    for _ in rows:
        pass
    return import_worker(())
