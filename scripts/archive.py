"""
Write Spark's class-data archive: run what most users of Spark run here, and let the JVM keep its classes at the end.

For `scripts/archive.sh`, which starts a broker with orders. One JVM reads Kafka for a pipeline, then runs a stateful
streaming query into the sink.
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.sql import functions as sf

import brew
from brew.jvm import dependencies
from brew.names import INPUT_TOPIC, OUTPUT_TOPIC
from brew.settings import SparkSettings
from brew.spark import session

_QUERY_S, _WRITTEN_S = 120, 120.0


def main(bootstrap: str, archive: str) -> None:
    """Run both, then end Spark's JVM, which writes the archive."""
    conf = {"spark.sql.shuffle.partitions": "2"}
    spark = session.start(SparkSettings("local[2]", str(dependencies.home()), conf, make_archive=archive))
    brew.Pipeline(
        bootstrap=bootstrap, reader="connector", input=INPUT_TOPIC, output=OUTPUT_TOPIC, transform=lambda record: record
    ).run()
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": INPUT_TOPIC, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options).load()
    counts = records.groupBy("key").agg(sf.count("value").cast("string").alias("value"))
    sink = brew.ExactlyOnceSink(bootstrap, name="archive", topic=OUTPUT_TOPIC)
    with tempfile.TemporaryDirectory(prefix="brew-archive-") as checkpoint:
        writer = counts.writeStream.outputMode("update").foreachBatch(sink).option("checkpointLocation", checkpoint)
        if not writer.trigger(availableNow=True).start().awaitTermination(_QUERY_S):
            raise SystemExit(f"the query for the archive has not ended after {_QUERY_S} s")
    session.end(spark.sparkContext, _WRITTEN_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
