"""Run lease workers as Spark tasks (`SparkWorkers`), or one in this process (`LocalWorker`)."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext

from brew.deadline import Deadline
from brew.errors import Refused
from brew.readers.direct.lease_server import LeaseServer
from brew.readers.direct.messages import WorkerSettings
from brew.readers.direct.worker import run_lease_worker
from brew.spark import gateway, session

_RESTART_PAUSE_S = 1.0
_END_S = 2.0
_JOIN_S = 5.0
_MAX_FAILURES = 5


class SparkWorkers:
    """Runs a Spark job of one task for each slot, so that a lost task is restarted without the others."""

    def __init__(self, context: SparkContext, server: LeaseServer, settings: WorkerSettings) -> None:
        self.server, self._context, self._settings = server, context, settings
        self._spark_jobs = session.RunJobs(context)
        self._jobs: dict[int, threading.Thread] = {}
        self._stopping = threading.Event()
        self._failures: dict[int, str] = {}
        """Why slots last failed, in that order; without those that have worked since."""
        self._failed_in_a_row: dict[int, int] = {}

    def slots(self) -> int:
        with session.jvm_call(self._context):
            return max(1, int(self._context.defaultParallelism))

    def open(self, count: int) -> None:
        """As `LeaseWorkers.open`; a slot that gave up is retried as long as another one works (see `check`)."""
        for slot in range(count):
            if slot not in self._jobs or not self._jobs[slot].is_alive():
                job = threading.Thread(target=self._run_repeatedly, args=[slot], name=f"slot-{slot}", daemon=True)
                self._jobs[slot] = job
                job.start()

    def _run_repeatedly(self, slot: int) -> None:
        """Run the slot's job repeatedly until `stop_restarts`, since executors and workers may die."""
        run = functools.partial(_run_in_task, self._settings, slot)
        self._failed_in_a_row[slot] = 0
        with contextlib.suppress(Py4JError, OSError):  # a JVM that has ended is detected below
            self._spark_jobs.tag()
        while not self._stopping.is_set() and self._failed_in_a_row[slot] < _MAX_FAILURES:
            try:
                self._context.parallelize([slot], 1).mapPartitions(run).count()
                self.worked(slot)
            except Exception as error:  # noqa: BLE001 - py4j raises many kinds
                self._failed_in_a_row[slot] += 1
                self._failures.pop(slot, None)
                self._failures[slot] = gateway.cause(error)
                self._stopping.wait(_RESTART_PAUSE_S)

    def worked(self, slot: int) -> None:
        """As `LeaseWorkers.worked`: a job lasts as long as the run, so it does not end between failures of weeks."""
        self._failed_in_a_row[slot] = 0
        self._failures.pop(slot, None)

    def check(self) -> None:
        session.check_alive(self._context)
        if self._jobs and not self._stopping.is_set() and not any(job.is_alive() for job in self._jobs.values()):
            reason = self.last_failure() or "they ended by themselves"
            raise Refused(f"no Spark task keeps running: {reason}; try --verbose, or --reader connector")

    def last_failure(self) -> str | None:
        return next(reversed(list(self._failures.values())), None)

    def stop_restarts(self) -> None:
        self._stopping.set()

    def interrupt(self) -> None:
        self.stop_restarts()
        self.server.close()
        self._spark_jobs.cancel()

    def close(self) -> None:
        """
        Wait for the jobs, then end Spark: py4j prints a stack trace if the JVM ends during a call. A task that hangs in
        the caller's function is cancelled: on a context that stays, it would keep its slot.
        """
        self.stop_restarts()
        self.server.close()
        if not self._ended(_JOIN_S):
            self._spark_jobs.cancel()
            self._ended(_END_S)
        session.end(self._context, _END_S)

    def _ended(self, within_s: float) -> bool:
        deadline = Deadline(within_s)
        for job in self._jobs.values():
            job.join(deadline.remaining_s())
        return not any(job.is_alive() for job in self._jobs.values())


def import_worker(_rows: Iterable[int]) -> Iterator[int]:
    """Unpickling this function makes a Python worker import the modules of a lease worker and its transactions."""
    import brew.kafka.group_requests  # noqa: F401, PLC0415 - 0.15 s, which a driver has no use for

    return iter(())


def _run_in_task(settings: WorkerSettings, slot: int, _rows: Iterable[int]) -> Iterator[int]:
    if TaskContext.get().attemptNumber() > 0:  # crash only once, or no run could recover
        settings = replace(settings, crash=replace(settings.crash, probability=0.0))
    run_lease_worker(settings, slot)
    return iter(())


class LocalWorker:
    """Runs one lease worker in a thread; an injected worker crash kills this process."""

    def __init__(self, server: LeaseServer, settings: WorkerSettings) -> None:
        self.server = server
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._error: Exception | None = None

    def slots(self) -> int:
        return 1

    def open(self, count: int) -> None:
        if count and self._thread is None:
            self._thread = threading.Thread(target=self._run_repeatedly, name="slot-0", daemon=True)
            self._thread.start()

    def _run_repeatedly(self) -> None:
        while not self._stopping.is_set():
            try:
                run_lease_worker(self._settings, 0)
            except Exception as error:  # noqa: BLE001 - `check` raises it in the thread that can end the run
                self._error = error
                return

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def worked(self, slot: int) -> None: ...

    def last_failure(self) -> str | None:
        return None

    def stop_restarts(self) -> None:
        self._stopping.set()

    def interrupt(self) -> None:
        self.stop_restarts()
        self.server.close()

    def close(self) -> None:
        """Wait for the worker; one that hangs still uses the transformation, and the run has fenced what it wrote."""
        self.interrupt()
        if self._thread is not None:
            self._thread.join(_END_S)
            if self._thread.is_alive():
                return
        self._settings.transformation.release()
