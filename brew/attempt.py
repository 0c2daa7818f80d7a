"""One attempt at one range: a transaction with its reader's rows, whatever becomes of it; free of Spark."""

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
from brew.watchdog import PATIENCE, watched

MAX_LINKS = 32
"""Distinct ones of one transaction, the first; a span with a link for each of 250,000 records would help nobody."""
_HEADER = "traceparent"
_FORM = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class TraceLinks:
    """``found`` in the order of the records; nothing more is looked at once it is full."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def heard(self, batches: Iterable[Rows]) -> Iterator[Rows]:
        """The same batches; what each belongs to is noted before it goes on."""
        for rows in batches:
            self._note(rows.headers)
            yield rows

    def _note(self, all_headers: Iterable[RecordHeaders]) -> None:
        for headers in all_headers:
            if len(self.found) >= MAX_LINKS:
                return
            for name, value in headers or ():
                if name == _HEADER and value is not None and (form := _FORM.match(value)):
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
    """The kernel's port; ``steps`` is step -> seconds in the order of the steps, the one that failed last."""

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

    def settle(self, deadline: Deadline) -> None:
        self._kafka.settle(deadline)

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
    """``kafka`` itself, or the same with a journal in ``folder``."""
    return (
        kafka if folder is None else _JournaledTransaction(kafka, _journal(folder, os.getpid()), _place(offered, group))
    )


def journal_outcome(folder: str | None, offered: OffsetRange, group: str, outcome: Outcome) -> None:
    """Close an attempt's lines with what became of it."""
    if folder is not None:
        said = {"status": outcome.status, "position": outcome.position, "detail": outcome.detail}
        fields = {
            **_place(offered, group),
            "until": outcome.until,
            **said,
            "enriched": outcome.enriched,
            "rejected": outcome.rejected,
        }
        _journal(folder, os.getpid()).write(Step.OUTCOME, Phase.DONE, **fields)


@functools.cache
def _journal(folder: str, _pid: int) -> Journal:
    """The journal of one process; Spark forks its workers, so the process is part of the key."""
    return Journal(Path(folder), "writer")


def _place(offered: OffsetRange, group: str) -> dict[str, Any]:
    return {
        "topic": offered.topic,
        "partition": offered.partition,
        "start": offered.start,
        "until": offered.until,
        "group": group,
        "transactional_id": str(TransactionalId(group, offered.topic, offered.partition)),
    }


class _JournaledTransaction:
    """The kernel's port, every step announced and answered; `produce` goes by unseen, its flush tells."""

    def __init__(self, kafka: Transaction, journal: Journal, place: dict[str, Any]) -> None:
        self._kafka, self._journal, self._place = kafka, journal, place
        self.produce: Callable[..., None] = kafka.produce

    @contextmanager
    def _step(self, step: Step, **fields: Any) -> Iterator[dict[str, Any]]:
        self._journal.write(step, Phase.INTENT, **self._place, **fields)
        try:
            yield fields
        except BrewError as error:
            detail = f"{type(error).__name__}: {error}"
            self._journal.write(step, Phase.FAILED, **self._place, **fields, detail=detail)
            raise
        self._journal.write(step, Phase.DONE, **self._place, **fields)

    def mapped(self, step: str) -> AbstractContextManager[None]:
        return self._kafka.mapped(step)

    def fence(self, deadline: Deadline) -> None:
        with self._step(Step.FENCE):
            self._kafka.fence(deadline)

    def locate(self, deadline: Deadline) -> Committed | None:
        with self._step(Step.LOCATE) as fields:
            found = self._kafka.locate(deadline)
            fields["position"] = -1 if found is None else found.offset
        return found

    def begin(self) -> None:
        with self._step(Step.BEGIN):
            self._kafka.begin()

    def make_room(self, deadline: Deadline) -> None:
        self._kafka.make_room(deadline)

    def settle(self, deadline: Deadline) -> None:
        self._kafka.settle(deadline)

    def flush(self, deadline: Deadline) -> None:
        with self._step(Step.FLUSH):
            self._kafka.flush(deadline)

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        self._place["until"] = until  # a range that was read on while it was written ends here
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
    One range, where its records go, and how it is to be treated.

    ``reached``: of a range that is read while it is written, how far it was read by now; it begins as ``offered``.
    ``aside``: goes around a wait for the brokers while records are produced.
    """

    offered: OffsetRange
    targets: Targets
    first_time: bool = False
    crash: PlannedCrash | None = None
    reached: Callable[[], int] | None = None
    aside: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Job:
    """
    All that the tasks of one cycle need; travels to the executors, so it holds values only.

    ``traced``: spans are made, so outcomes tell which traces the records belong to.
    """

    offers: Mapping[int, AttemptSpec]
    transaction: TransactionSettings
    transformation: Transformation
    journal: str | None = None
    traced: bool = False


def attempt(offer: AttemptSpec, batches: Iterable[Rows], job: Job) -> Outcome:
    """Run one transaction; whatever goes wrong becomes an outcome, and the driver plans again from Kafka's answer."""
    offered = offer.offered
    try:
        transaction = job.transaction
        prepared = job.transformation.ready(transaction.connection, transaction.group, transaction.timeout_s)
    except TransformFailed as error:
        return _not_begun(job, offered, str(error), Status.TRANSFORM_FAILED)
    except BrewError as error:
        return _not_begun(job, offered, f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - as below
        return _not_begun(job, offered, traceback.format_exc(limit=-4))
    with watched(str(offered), PATIENCE * job.transaction.timeout_s):
        return _attempt(offer, batches, job, prepared)


def _not_begun(job: Job, offered: OffsetRange, detail: str, status: Status = Status.FAILED) -> Outcome:
    outcome = Outcome(offered.partition, offered.start, offered.until, status, detail=detail)
    journal_outcome(job.journal, offered, job.transaction.group, outcome)
    return outcome


_COUNTED = ("enriched", "rejected", "dropped", "written")


def _tally(outcome: Outcome) -> Tally:
    return Tally(**{name: getattr(outcome, name) for name in _COUNTED})


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
        batches = traces.heard(batches)
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
            aside=offer.aside,
        )
        if offer.crash is not None and outcome.status is Status.COMMITTED:
            kafka.close()
            offer.crash.at(CrashPoint.BEFORE_REPORT, _tally(outcome), kafka)
    except CrashedOnPurposeError as crash:
        kafka = None  # stays open, as after a kill
        tally = crash.tally
        counted = {name: getattr(tally, name) for name in _COUNTED}
        outcome = replace(failed, status=Status.CRASHED, **counted)
    except TransformFailed as error:
        outcome = replace(failed, status=Status.TRANSFORM_FAILED, detail=f"{error}; nothing of {offered} is visible")
    except Fenced as error:
        outcome = replace(failed, status=Status.FENCED, detail=str(error))
    except BrewError as error:
        outcome = replace(failed, detail=f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - a bug must not kill the other ranges of the job; the driver tells it
        outcome = replace(failed, detail=traceback.format_exc(limit=-4))
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
