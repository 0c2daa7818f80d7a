"""What runs in a Spark task: Arrow batches of one range in, one outcome out."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

import orjson
import pyarrow as pa
from pyspark import TaskContext

from pipeline.crash import CrashOrder
from pipeline.enrich import enricher
from pipeline.headers import headers_of
from pipeline.outcome import Outcome, Status
from pipeline.ports import CrashedOnPurposeError, Rows, Tally, Targets
from pipeline.settings import Limits
from pipeline.transact import transact
from protocol.deadline import Deadline
from protocol.errors import BrewError, Fatal, Fenced
from protocol.kafka.transaction import KafkaTransaction, TransactionSettings
from protocol.names import CrashPoint
from protocol.position import OffsetRange

OUTCOME_SCHEMA = "outcome binary"
_SCHEMA = pa.schema([("outcome", pa.binary())])


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


def attempt(offer: Offer, batches: Iterator[Rows], job: Job) -> Outcome:
    """Run one transaction; whatever goes wrong becomes an outcome, and the driver plans again from Kafka's answer."""
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
            kafka,
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
        return replace(failed, status=Status.CRASHED, enriched=tally.enriched, rejected=tally.rejected)
    except Fenced as error:
        outcome = replace(failed, status=Status.FENCED, detail=str(error))
    except BrewError as error:
        outcome = replace(failed, detail=f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - a bug must not kill the other ranges of the job; the driver tells it
        outcome = replace(failed, detail=traceback.format_exc(limit=-4))
    finally:
        if kafka is not None:
            kafka.close()
    return replace(outcome, seconds=time.monotonic() - began)


def task(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; a task without a visible row reports nothing: the driver advances its range."""

    def run(arrow: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for first in arrow:
            if first.num_rows:
                partition = first.column("partition")[0].as_py()
                offer = job.offers[partition]
                if TaskContext.get().attemptNumber() > 0:  # a crash on purpose strikes once, or no run could heal
                    offer = replace(offer, crash=None)
                outcome = attempt(offer, _rows(first, arrow, partition), job)
                yield pa.record_batch([pa.array([orjson.dumps(asdict(outcome))], pa.binary())], schema=_SCHEMA)
                return

    return run


def _rows(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch], partition: int) -> Iterator[Rows]:
    """Turn Arrow into lists; a row of another partition means that somebody shuffled the plan."""
    for batch in _chain(first, rest):
        partitions = batch.column("partition").unique().to_pylist()
        if batch.num_rows and partitions != [partition]:
            raise Fatal(f"read: a task for partition {partition} was given rows of {partitions}")
        headers = batch.column("headers")
        plain = headers.null_count == batch.num_rows
        yield Rows(
            batch.column("offset").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            [None] * batch.num_rows if plain else [headers_of(cell) for cell in headers.to_pylist()],
            batch.column("timestamp").to_pylist(),
        )


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def read_outcome(text: bytes) -> Outcome:
    """Read back what a task reported."""
    told = orjson.loads(text)
    return Outcome(**{**told, "status": Status(told["status"])})
