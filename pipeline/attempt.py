"""One attempt at one range: a transaction with its reader's rows, whatever becomes of it; free of Spark."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.crash import CrashOrder
from pipeline.enrich import enricher
from pipeline.journaled import journaled, tell
from pipeline.outcome import Outcome, Status
from pipeline.ports import CrashedOnPurposeError, Rows, Tally, Targets
from pipeline.settings import Limits
from pipeline.transact import transact
from pipeline.watchdog import watched
from protocol.deadline import Deadline
from protocol.errors import BrewError, Fenced
from protocol.kafka.transaction import KafkaTransaction, TransactionSettings
from protocol.names import CrashPoint
from protocol.position import OffsetRange


@dataclass(frozen=True)
class Offer:
    """One range, where its records go, and how it is to be treated."""

    offered: OffsetRange
    targets: Targets
    first_time: bool = False
    crash: CrashOrder | None = None


@dataclass(frozen=True)
class Job:
    """All that the tasks of one cycle need; travels to the executors, so it holds values only."""

    offers: Mapping[int, Offer]
    transaction: TransactionSettings
    limits: Limits
    journal: str | None = None


def attempt(offer: Offer, batches: Iterator[Rows], job: Job) -> Outcome:
    """Run one transaction; whatever goes wrong becomes an outcome, and the driver plans again from Kafka's answer."""
    with watched(str(offer.offered), 2 * job.transaction.timeout_s):
        return _attempt(offer, batches, job)


def _attempt(offer: Offer, batches: Iterator[Rows], job: Job) -> Outcome:
    began = time.monotonic()
    offered = offer.offered
    failed = Outcome(offered.partition, offered.start, offered.until, Status.FAILED)
    kafka = None
    try:
        kafka = KafkaTransaction(job.transaction, offered.topic, offered.partition)
        deadline = Deadline(job.transaction.timeout_s)
        outcome = transact(
            batches,
            offered,
            offer.targets,
            enricher(job.limits),
            journaled(kafka, job.journal, offered, job.transaction.group),
            deadline,
            first_time=offer.first_time,
            crash=offer.crash,
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
    outcome = replace(outcome, seconds=time.monotonic() - began)
    tell(job.journal, offered, job.transaction.group, outcome)
    return outcome
