"""A sink's queries on real Spark and a real broker: the input, one run, also as a program, and what readers see."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import NewPartitions
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import brew
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import topics
from brew.kafka.committed_offset import locator
from brew.names import SINK_BATCH, SINK_NAME, CrashPoint
from brew.offsets import Committed
from brew.sink.batch import SinkCrash

from .pipeline import Stage, shared_spark
from .servers import STEP_S, Broker, Names, make_topics
from .waiting import until

_LONGEST_S = 120
WORDS = ("ale", "bock", "porter", "stout")


def session() -> SparkSession:
    """Return a new session on the test process's Spark; two shuffle partitions, one per processor."""
    spark = shared_spark().newSession()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    return spark


def numbers(count: int, start: int = 0) -> Counter[bytes | None]:
    """Count each value that `SinkStage.feed` writes once."""
    return Counter(b"%d" % n for n in range(start, start + count))


@dataclass
class SinkStage:
    """Input and output of one test, and its queries; ``writers`` as for the sink."""

    stage: Stage
    folder: Path
    writers: Any = 1
    spark: SparkSession = field(default_factory=session)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def name(self) -> str:
        return self.stage.names.group

    def create(self, partitions: int = 3) -> None:
        names = self.stage.names
        make_topics(self.stage.connection, names.input, names.output, names.dead_letter, partitions=partitions)

    def feed(self, count: int, start: int = 0) -> None:
        """Write words in turn, with the number as value, across the partitions."""
        rows = ((n % 3, WORDS[n % len(WORDS)].encode(), b"%d" % n) for n in range(start, start + count))
        self.stage.produce(self.stage.names.input, *rows)

    def sink(self, **settings: Any) -> brew.ExactlyOnceSink:
        chosen = {"name": self.name, "topic": self.stage.names.output, "writers": self.writers, **settings}
        return brew.ExactlyOnceSink(self.stage.broker.bootstrap, **chosen)

    def source(self, most: int | None = None) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self.stage.broker.bootstrap,
            "subscribe": self.stage.names.input,
            "startingOffsets": "earliest",
            **({} if most is None else {"maxOffsetsPerTrigger": str(most)}),
        }
        return self.spark.readStream.format("kafka").options(**options).load()

    def run(self, frame: DataFrame, sink: Any, mode: str = "append", checkpoint: Path | None = None) -> None:
        """
        Drain the input through ``sink``.

        Raises:
            Refused: the sink refused; the error's text as the query reports it.
        """
        writer = frame.writeStream.outputMode(mode).foreachBatch(sink).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint or self.checkpoint)).start()
        try:
            assert query.awaitTermination(_LONGEST_S), "the query did not end"
        except StreamingQueryException as error:
            raise Refused(str(error)) from error

    def copied(self, most: int | None = None) -> DataFrame:
        return self.source(most).select("key", "value")

    def counted(self, most: int | None = None) -> DataFrame:
        """Return a stateful query, for update mode: a new total for each word that arrived."""
        totals = self.source(most).groupBy("key").count()
        return totals.select("key", sf.col("count").cast("string").alias("value"))

    def values(self) -> Counter[bytes | None]:
        """Count how often each value is visible."""
        return Counter(record.value() for record in self.stage.records(self.stage.names.output))

    def totals(self) -> list[tuple[bytes | None, int]]:
        """Return word and total of each visible record."""
        records = self.stage.records(self.stage.names.output)
        return sorted(((record.key(), int(record.value() or b"")) for record in records), key=str)

    def batches(self) -> Counter[int]:
        """Count the visible records of this sink by batch, according to their headers."""
        counts: Counter[int] = Counter()
        for record in self.stage.records(self.stage.names.output):
            headers = dict(record.headers() or ())
            assert headers[SINK_NAME] == self.name.encode()
            counts[int(headers[SINK_BATCH] or b"")] += 1
        return counts

    def position(self, group: str | None = None, topic: str | None = None) -> Committed | None:
        offsets = locator(self.stage.connection, group or self.name)
        return offsets.committed(topic or self.stage.names.output, 0, Deadline(STEP_S))

    def forget_last_commit(self) -> int:
        """Remove the last entry of Spark's commit log, as if the driver was killed after its sink; return its batch."""
        commits = self.checkpoint / "commits"
        last = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)
        return last

    def copy_checkpoint(self) -> Path:
        return Path(shutil.copytree(self.checkpoint, self.folder / "copy"))

    def restore_checkpoint(self, copy: Path) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copy, self.checkpoint)

    def more_partitions(self, topic: str, count: int) -> None:
        self.stage.admin.create_partitions([NewPartitions(topic, count)])[topic].result(20)

        def known() -> bool:
            return topics.describe(self.stage.admin, [topic], Deadline(STEP_S))[topic].partitions == count

        until(known, "the new partitions")

    def recreate(self, topic: str, partitions: int = 3) -> None:
        self.stage.admin.delete_topics([topic])[topic].result(20)
        until(lambda: topic not in topics.describe(self.stage.admin, [topic], Deadline(STEP_S)), "the topic's end")

        def made() -> bool:
            topics.create(self.stage.admin, [topics.TopicSpec(topic, partitions, {})], Deadline(STEP_S))
            return topic in topics.describe(self.stage.admin, [topic], Deadline(STEP_S))

        until(made, "the new topic")


def main(arguments: str) -> None:
    """Drain the input with the stateful query, or die at the given point."""
    given = json.loads(arguments)
    stage = SinkStage(Stage(Broker(given["bootstrap"]), Names(given["stem"])), Path(given["folder"]), given["writers"])
    crash = SinkCrash(CrashPoint(given["point"]), given["batch"])
    stage.run(stage.counted(most=given["most"]), stage.sink(_crash=crash), "update")
    print("ended", flush=True)
