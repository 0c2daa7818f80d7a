"""What bounds the batches that Spark hands to the workers, cycle by cycle, in the words of each cycle's session."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from harness.pipeline import CONNECTOR, Stage
from pyspark.sql import DataFrame, SparkSession

from brew.readers import connector as engine
from brew.readers.connector import SMALL_RECORDS, read_ranges

UNBOUNDED = tuple(SMALL_RECORDS.values())
SMALL_RANGES = ("--lanes", "1", "--max-records-per-transaction", "100")


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage = replace(stage, reader=CONNECTOR)
    stage.create(2)
    return stage


class Bounds:
    """Stands before the reader; ``fails`` is the number of the cycle that does not get its rows."""

    def __init__(self) -> None:
        self.settings: list[tuple[str, ...]] = []
        self.fails = -1

    def read(self, spark: SparkSession, *rest: Any) -> DataFrame:
        self.settings.append(tuple(str(spark.conf.get(name)) for name in SMALL_RECORDS))
        if len(self.settings) == self.fails:
            raise RuntimeError("no memory, say")
        return read_ranges(spark, *rest)


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Bounds:
    bounds = Bounds()
    monkeypatch.setattr(engine, "read_ranges", bounds.read)
    return bounds


def test_small_records_are_handed_over_without_a_bound_of_bytes_once_they_are_known(
    stage: Stage, bounds: Bounds
) -> None:
    stage.seed(800)
    stage.drain(*SMALL_RANGES)
    assert [settings == UNBOUNDED for settings in bounds.settings] == [False, True, True, True]
    stage.proven(inputs=800, outputs=800)


def test_large_records_stay_bounded(stage: Stage, bounds: Bounds) -> None:
    order = orjson.dumps({"order_id": "gold-1", "customer_id": "c-1", "note": "x" * 8192})
    stage.produce(stage.names.input, *((number % 2, b"gold-1", order) for number in range(400)))
    stage.drain(*SMALL_RANGES)
    assert [settings == UNBOUNDED for settings in bounds.settings] == [False, False]


def test_after_a_job_that_failed_its_batches_are_bounded_again(stage: Stage, bounds: Bounds) -> None:
    bounds.fails = 2
    stage.seed(800)
    stage.drain(*SMALL_RANGES)
    assert [settings == UNBOUNDED for settings in bounds.settings] == [False, True, False, True, True]
    stage.proven(inputs=800, outputs=800)
