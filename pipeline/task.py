"""What runs in a Spark task: Arrow batches of one range in, one outcome out."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace

import orjson
import pyarrow as pa
from pyspark import TaskContext

from pipeline.attempt import Job, attempt
from pipeline.headers import headers_of
from pipeline.outcome import Outcome, Status
from pipeline.ports import Rows
from protocol.errors import Fatal

OUTCOME_SCHEMA = "outcome binary"
_SCHEMA = pa.schema([("outcome", pa.binary())])


def task(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; a task without a visible row reports nothing: the driver advances its range."""

    def run(arrow: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_in()
        for first in arrow:
            if first.num_rows:
                partition = first.column("partition")[0].as_py()
                offer = job.offers[partition]
                if TaskContext.get().attemptNumber() > 0:  # a crash on purpose strikes once, or no run could heal
                    offer = replace(offer, crash=None)
                batches = _Weighed(_chain(first, arrow))
                outcome = replace(attempt(offer, _rows(batches, partition), job), read_bytes=batches.read_bytes)
                yield pa.record_batch([pa.array([orjson.dumps(asdict(outcome))], pa.binary())], schema=_SCHEMA)
                return

    return run


@functools.cache
def settle_in() -> None:
    """Once in a worker's life: pyspark collects garbage after each task, and would look at every module each time."""
    gc.collect()
    gc.freeze()


class _Weighed:
    """Batches as they come, and their bytes."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.read_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.read_bytes += batch.nbytes
            yield batch


def _rows(batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[Rows]:
    """Turn Arrow into lists; a row of another partition means that somebody shuffled the plan."""
    for batch in batches:
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
