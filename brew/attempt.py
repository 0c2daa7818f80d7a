"""One attempt to transact one range, with timings, trace links and a journal; the result is always an `Outcome`."""

from __future__ import annotations

import functools
import os
import re
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brew.deadline import Deadline
from brew.errors import BrewError, Fenced, TransformFailed
from brew.fault_injection import PlannedCrash
from brew.journal import Journal, Phase, Step
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import CrashPoint, TransactionalId
from brew.offsets import Committed, OffsetRange
from brew.outcome import Outcome, Status
from brew.range_transaction import (
    CrashedOnPurposeError,
    RecordHeaders,
    Rows,
    Tally,
    Targets,
    transact_range,
)
from brew.transaction import Transaction
from brew.transformation import Prepared, Transformation
from brew.watchdog import MAX_TIMEOUTS, watched

MAX_LINKS = 32
"""The maximum number of distinct links per transaction; a span with a link for each of 250,000 records is useless."""
_HEADER = "traceparent"
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class TraceLinks:
    """Collects the first `MAX_LINKS` distinct `traceparent` headers, in order, in ``found``."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def collecting(self, batches: Iterable[Rows]) -> Iterator[Rows]:
        """Yield the batches unchanged, after collecting the headers of each."""
        for rows in batches:
            self._note(rows.headers)
            yield rows

    def _note(self, all_headers: Iterable[RecordHeaders]) -> None:
        for headers in all_headers:
            if len(self.found) >= MAX_LINKS:
                return
            for name, value in headers or ():
                if name == _HEADER and value is not None and (form := _TRACEPARENT.match(value)):
                    self.found.setdefault(form[0].decode())


FENCE, LOCATE, BEGIN, PRODUCE, SEND_OFFSETS, COMMIT, ABORT = (
    "fence",
    "locate",
    "begin",
    "produce",
    "send-offsets",
    "commit",
    "abort",
)


class TimedTransaction:
    """Times a transaction; ``steps`` maps each step to its seconds, in order, with a failed step last."""

    def __init__(self, kafka: Transaction, clock: Callable[[], float] = time.perf_counter) -> None:
        self._kafka, self._clock = kafka, clock
        self._producing_since: float | None = None
        self.steps: dict[str, float] = {}
        self.produce: Callable[..., None] = kafka.produce

    @contextmanager
    def _step(self, step: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self.steps[step] = round(self._clock() - began, 6)

    def _produced(self) -> None:
        if self._producing_since is not None:
            self.steps[PRODUCE] = round(self._clock() - self._producing_since, 6)

    def mapped(self, step: str) -> AbstractContextManager[None]:
        return self._kafka.mapped(step)

    def fence(self, deadline: Deadline) -> None:
        with self._step(FENCE):
            self._kafka.fence(deadline)

    def locate(self, deadline: Deadline) -> Committed | None:
        with self._step(LOCATE):
            return self._kafka.locate(deadline)

    def begin(self) -> None:
        with self._step(BEGIN):
            self._kafka.begin()
        self._producing_since = self._clock()

    def make_room(self, deadline: Deadline) -> None:
        self._kafka.make_room(deadline)

    def await_acks(self, deadline: Deadline) -> None:
        self._kafka.await_acks(deadline)

    def flush(self, deadline: Deadline) -> None:
        try:
            self._kafka.flush(deadline)
        finally:
            self._produced()

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        with self._step(SEND_OFFSETS):
            self._kafka.send_offsets(until, metadata, deadline)

    def commit(self, deadline: Deadline) -> None:
        with self._step(COMMIT):
            self._kafka.commit(deadline)

    def commit_without_waiting(self) -> None:
        with self._step(COMMIT):
            self._kafka.commit_without_waiting()

    def abort(self, deadline: Deadline) -> None:
        if PRODUCE not in self.steps:  # it failed before its flush
            self._produced()
        with self._step(ABORT):
            self._kafka.abort(deadline)


def journaled(kafka: Transaction, folder: str | None, offered: OffsetRange, group: str) -> Transaction:
    """Return ``kafka``, wrapped to keep a journal in ``folder`` if there is one."""
    return (
        kafka
        if folder is None
        else _JournaledTransaction(kafka, _journal(folder, os.getpid()), _range_fields(offered, group))
    )


def journal_outcome(folder: str | None, offered: OffsetRange, group: str, outcome: Outcome) -> None:
    """Write an attempt's outcome to its journal."""
    if folder is not None:
        result = {"status": outcome.status, "position": outcome.position, "detail": outcome.detail}
        fields = {
            **_range_fields(offered, group),
            "until": outcome.until,
            **result,
            "enriched": outcome.enriched,
            "rejected": outcome.rejected,
        }
        _journal(folder, os.getpid()).write(Step.OUTCOME, **fields)


@functools.cache
def _journal(folder: str, _pid: int) -> Journal:
    """Return this process's journal; the pid is part of the cache key because Spark forks its workers."""
    return Journal(Path(folder), "writer")


def _range_fields(offered: OffsetRange, group: str) -> dict[str, Any]:
    return {
        "topic": offered.topic,
        "partition": offered.partition,
        "start": offered.start,
        "until": offered.until,
        "group": group,
        "transactional_id": str(TransactionalId(group, offered.topic, offered.partition)),
    }


class _JournaledTransaction:
    """Journals a transaction: every step before it begins and after it ends; producing is covered by its flush."""

    def __init__(self, kafka: Transaction, journal: Journal, range_fields: dict[str, Any]) -> None:
        self._kafka, self._journal, self._range_fields = kafka, journal, range_fields
        self.produce: Callable[..., None] = kafka.produce

    @contextmanager
    def _step(self, step: Step, **fields: Any) -> Iterator[dict[str, Any]]:
        self._journal.write(step, Phase.INTENT, **self._range_fields, **fields)
        try:
            yield fields
        except BrewError as error:
            detail = f"{type(error).__name__}: {error}"
            self._journal.write(step, Phase.FAILED, **self._range_fields, **fields, detail=detail)
            raise
        self._journal.write(step, Phase.DONE, **self._range_fields, **fields)

    def mapped(self, step: str) -> AbstractContextManager[None]:
        return self._kafka.mapped(step)

    def fence(self, deadline: Deadline) -> None:
        with self._step(Step.FENCE):
            self._kafka.fence(deadline)

    def locate(self, deadline: Deadline) -> Committed | None:
        with self._step(Step.LOCATE) as fields:
            committed = self._kafka.locate(deadline)
            fields["position"] = -1 if committed is None else committed.offset
        return committed

    def begin(self) -> None:
        with self._step(Step.BEGIN):
            self._kafka.begin()

    def make_room(self, deadline: Deadline) -> None:
        self._kafka.make_room(deadline)

    def await_acks(self, deadline: Deadline) -> None:
        self._kafka.await_acks(deadline)

    def flush(self, deadline: Deadline) -> None:
        with self._step(Step.FLUSH):
            self._kafka.flush(deadline)

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        self._range_fields["until"] = until  # the end of a range that is still read while it is written
        with self._step(Step.SEND_OFFSETS, offset=until):
            self._kafka.send_offsets(until, metadata, deadline)

    def commit(self, deadline: Deadline) -> None:
        with self._step(Step.COMMIT):
            self._kafka.commit(deadline)

    def commit_without_waiting(self) -> None:
        with self._step(Step.COMMIT):
            self._kafka.commit_without_waiting()

    def abort(self, deadline: Deadline) -> None:
        with self._step(Step.ABORT):
            self._kafka.abort(deadline)


@dataclass(frozen=True)
class AttemptSpec:
    """
    One range, where its records go, and how to process it.

    ``reached``: for a range that is read while it is written, how far it has been read; starts as ``offered``.
    ``waiting``: wraps each wait for the brokers while records are produced.
    """

    offered: OffsetRange
    targets: Targets
    first_time: bool = False
    crash: PlannedCrash | None = None
    reached: Callable[[], int] | None = None
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Job:
    """
    Everything that the tasks of one cycle need; it holds only values because it is serialized to the executors.

    ``traced``: spans are exported, so outcomes carry the trace links of their records.
    """

    offers: Mapping[int, AttemptSpec]
    transaction: TransactionSettings
    transformation: Transformation
    journal: str | None = None
    traced: bool = False


def attempt(offer: AttemptSpec, batches: Iterable[Rows], job: Job) -> Outcome:
    """Run one transaction. Every failure becomes an outcome; the driver plans again from the committed offset."""
    offered = offer.offered
    try:
        transaction = job.transaction
        prepared = job.transformation.ready(transaction.connection, transaction.group, transaction.timeout_s)
    except TransformFailed as error:
        return _failed_before_start(job, offered, str(error), Status.TRANSFORM_FAILED)
    except BrewError as error:
        return _failed_before_start(job, offered, f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - as below
        return _failed_before_start(job, offered, traceback.format_exc(limit=-4))
    with watched(str(offered), MAX_TIMEOUTS * job.transaction.timeout_s):
        return _attempt(offer, batches, job, prepared)


def _failed_before_start(job: Job, offered: OffsetRange, detail: str, status: Status = Status.FAILED) -> Outcome:
    outcome = Outcome(offered.partition, offered.start, offered.until, status, detail=detail)
    journal_outcome(job.journal, offered, job.transaction.group, outcome)
    return outcome


_COUNTED = ("enriched", "rejected", "dropped", "written")


def _tally(outcome: Outcome) -> Tally:
    return Tally(**{name: getattr(outcome, name) for name in _COUNTED})


def _failure(error: Exception, failed: Outcome, offered: OffsetRange) -> Outcome:
    """Return the outcome of an attempt that raised; an error that is not ours gives the end of its traceback."""
    match error:
        case TransformFailed():
            detail = f"{error}; nothing of {offered} is visible"
            return replace(failed, status=Status.TRANSFORM_FAILED, detail=detail)
        case Fenced():
            return replace(failed, status=Status.FENCED, detail=str(error))
        case BrewError():
            return replace(failed, detail=f"{type(error).__name__}: {error}")
        case _:
            return replace(failed, detail="".join(traceback.format_exception(error, limit=-4)))


def _attempt(
    offer: AttemptSpec,
    batches: Iterable[Rows],
    job: Job,
    prepared: Prepared,
) -> Outcome:
    began, began_at = time.monotonic(), time.time()
    offered = offer.offered
    failed = Outcome(offered.partition, offered.start, offered.until, Status.FAILED)
    kafka = timed = None
    traces = TraceLinks()
    if job.traced:
        batches = traces.collecting(batches)
    try:
        kafka = KafkaTransaction(job.transaction, offered.topic, offered.partition)
        timed = TimedTransaction(journaled(kafka, job.journal, offered, job.transaction.group))
        deadline = Deadline(job.transaction.timeout_s)
        outcome = transact_range(
            batches,
            offered,
            offer.targets,
            prepared.enrich,
            timed,
            deadline,
            transform=prepared.transform,
            first_time=offer.first_time,
            crash=offer.crash,
            evidence=prepared.evidence,
            reached=offer.reached,
            waiting=offer.waiting,
        )
        if offer.crash is not None and outcome.status is Status.COMMITTED:
            kafka.close()
            offer.crash.at(CrashPoint.BEFORE_REPORT, _tally(outcome), kafka)
    except CrashedOnPurposeError as crash:
        kafka = None  # stays open, as after a kill
        tally = crash.tally
        counted = {name: getattr(tally, name) for name in _COUNTED}
        outcome = replace(failed, status=Status.CRASHED, **counted)
    except Exception as error:  # noqa: BLE001 - a bug must not kill the job's other ranges; the driver reports it
        outcome = _failure(error, failed, offered)
    finally:
        if kafka is not None:
            kafka.close()
    steps = {} if timed is None else timed.steps
    took = time.monotonic() - began
    outcome = replace(
        outcome,
        seconds=took,
        steps=steps,
        began_at=began_at,
        traces=list(traces.found),
        malformed_profiles=prepared.malformed,
    )
    journal_outcome(job.journal, offered, job.transaction.group, outcome)
    return outcome
