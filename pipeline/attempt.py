"""One attempt at one range: a transaction with its reader's rows, whatever becomes of it; free of Spark."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from pipeline.crash import CrashOrder
from pipeline.enrich import enricher
from pipeline.journaled import journaled, tell
from pipeline.outcome import Outcome, Status
from pipeline.ports import CrashedOnPurposeError, Enrich, Evidence, Rows, Tally, Targets
from pipeline.profiles import held
from pipeline.profiles.table import lookup
from pipeline.settings import Limits, ProfilesSettings
from pipeline.timed import Timed
from pipeline.traces import Traces
from pipeline.transact import transact
from pipeline.watchdog import PATIENCE, watched
from protocol.deadline import Deadline
from protocol.errors import BrewError, Fenced
from protocol.kafka.transaction import KafkaTransaction, TransactionSettings
from protocol.names import CrashPoint
from protocol.position import OffsetRange


@dataclass(frozen=True)
class Offer:
    """
    One range, where its records go, and how it is to be treated.

    ``reached``: of a range that is read while it is written, how far it was read by now; it begins as ``offered``.
    ``aside``: goes around a wait for the brokers while records are produced.
    """

    offered: OffsetRange
    targets: Targets
    first_time: bool = False
    crash: CrashOrder | None = None
    reached: Callable[[], int] | None = None
    aside: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Job:
    """
    All that the tasks of one cycle need; travels to the executors, so it holds values only.

    ``traced``: spans are made, so outcomes tell which traces the records belong to.
    """

    offers: Mapping[int, Offer]
    transaction: TransactionSettings
    limits: Limits
    journal: str | None = None
    profiles: ProfilesSettings | None = None
    traced: bool = False


def attempt(offer: Offer, batches: Iterable[Rows], job: Job) -> Outcome:
    """Run one transaction; whatever goes wrong becomes an outcome, and the driver plans again from Kafka's answer."""
    offered = offer.offered
    try:
        enrich, evidence, malformed = _enrichment(job)
    except BrewError as error:
        return _not_begun(job, offered, f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - as below
        return _not_begun(job, offered, traceback.format_exc(limit=-4))
    with watched(str(offered), PATIENCE * job.transaction.timeout_s):
        return _attempt(offer, batches, job, enrich, evidence, malformed)


def _enrichment(job: Job) -> tuple[Enrich, Evidence | None, int | None]:
    """How this transaction enriches, and how many profiles are malformed; they are read to the end when it begins."""
    if job.profiles is None:
        return enricher(job.limits), None, None
    transaction = job.transaction
    table = held.ready(job.profiles, transaction.connection, transaction.group, transaction.timeout_s)
    resolve, evidence = lookup(table)
    return enricher(job.limits, resolve), evidence, table.malformed


def _not_begun(job: Job, offered: OffsetRange, detail: str) -> Outcome:
    outcome = Outcome(offered.partition, offered.start, offered.until, Status.FAILED, detail=detail)
    tell(job.journal, offered, job.transaction.group, outcome)
    return outcome


def _attempt(
    offer: Offer,
    batches: Iterable[Rows],
    job: Job,
    enrich: Enrich,
    evidence: Evidence | None,
    malformed: int | None,
) -> Outcome:
    began, began_at = time.monotonic(), time.time()
    offered = offer.offered
    failed = Outcome(offered.partition, offered.start, offered.until, Status.FAILED)
    kafka = timed = None
    traces = Traces()
    if job.traced:
        batches = traces.heard(batches)
    try:
        kafka = KafkaTransaction(job.transaction, offered.topic, offered.partition)
        timed = Timed(journaled(kafka, job.journal, offered, job.transaction.group))
        deadline = Deadline(job.transaction.timeout_s)
        outcome = transact(
            batches,
            offered,
            offer.targets,
            enrich,
            timed,
            deadline,
            first_time=offer.first_time,
            crash=offer.crash,
            evidence=evidence,
            reached=offer.reached,
            aside=offer.aside,
        )
        if offer.crash is not None and outcome.status is Status.COMMITTED:
            kafka.close()
            offer.crash.at(CrashPoint.BEFORE_REPORT, Tally(outcome.enriched, outcome.rejected), kafka)
    except CrashedOnPurposeError as crash:
        kafka = None  # stays open, as after a kill
        tally = crash.tally
        outcome = replace(failed, status=Status.CRASHED, enriched=tally.enriched, rejected=tally.rejected)
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
        malformed_profiles=malformed,
    )
    tell(job.journal, offered, job.transaction.group, outcome)
    return outcome
