"""The engine that people run: each range a task of one Spark job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from pyspark.sql import SparkSession

from pipeline import session
from pipeline.attempt import Job
from pipeline.batches import LIGHT, Weights
from pipeline.outcome import Outcome, Status
from pipeline.read import check_one_task_per_range, read
from pipeline.settings import SparkSettings
from pipeline.task import OUTCOME_SCHEMA, read_outcome, task
from protocol.errors import BrewError
from protocol.position import OffsetRange

_ARCHIVE_S = 60.0
_END_S = 2.0


class SparkEngine:
    """Spark's session, and the jobs on it; it ends Spark unless that is kept by somebody else."""

    def __init__(self, spark: SparkSession, settings: SparkSettings, *, kept: bool = False) -> None:
        self.spark, self._kept = spark, kept
        self._weights = Weights(dict(settings.conf))
        self._end_s = _ARCHIVE_S if settings.make_archive else _END_S

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        """Run one job; a job that fails leaves every one of its ranges failed."""
        told: Mapping[int, Outcome]
        try:
            session.tag_jobs(self.spark.sparkContext)
            frame = read(self._session(ranges), job.transaction.connection, job.transaction.group, ranges)
            frame = frame.mapInArrow(task(job), OUTCOME_SCHEMA)
            check_one_task_per_range(frame, ranges)
            told = {o.partition: o for o in (read_outcome(bytes(row[0])) for row in frame.collect())}
        except BrewError:
            raise
        except Exception as error:  # noqa: BLE001 - py4j raises many kinds; Kafka's answer decides
            session.check_alive(self.spark.sparkContext)
            detail = f"Spark: {cause(error)}"
            told = {r.partition: Outcome(r.partition, r.start, r.until, Status.FAILED, detail=detail) for r in ranges}
        self._weights.heed(told.values())
        return told

    def _session(self, ranges: Sequence[OffsetRange]) -> SparkSession:
        """The one whose batches fit these ranges: settings are a session's, and lanes plan side by side."""
        return self._light if self._weights.light(one.partition for one in ranges) else self.spark

    @cached_property
    def _light(self) -> SparkSession:
        """Shares the context; made when it is wanted first, so that a start does not pay for it."""
        spark = self.spark.newSession()
        for name, value in LIGHT.items():
            spark.conf.set(name, value)
        return spark

    def interrupt(self) -> None:
        session.cancel_all(self.spark.sparkContext)

    def close(self) -> None:
        if not self._kept:
            session.end(self.spark.sparkContext, self._end_s)


def cause(error: Exception) -> str:
    """The innermost cause that Java names, or the error's first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("Caused by:", ": "))]
    text = named[-1] if named else (lines or [type(error).__name__])[0]
    return text.removeprefix("Caused by:").removeprefix(":").strip()[:400]
