"""
Revenue per store: a stateful query in update mode, each of its batches in Kafka exactly once.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/revenue.py

Sales are JSON such as `{"store": "Cork", "cents": 1250}`. For each store that a batch changes, its revenue so far is
written, keyed by the store. Keep the checkpoint, from which the query resumes. With `FOLLOW=1` it runs until stopped.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import brew

BOOTSTRAP = os.environ.get("BOOTSTRAP", "localhost:9092")
SALES, REVENUE = os.environ.get("SALES", "sales"), os.environ.get("REVENUE", "revenue")
CHECKPOINT = os.environ.get("CHECKPOINT", "checkpoints/revenue")
MOST = os.environ.get("MOST", "100000")


def revenue(records: DataFrame) -> DataFrame:
    """Return key and value of each store's total; records that are not sales are ignored."""
    sale = sf.from_json(sf.col("value").cast("string"), "store STRING, cents BIGINT")
    sales = records.select(sale.alias("sale")).select("sale.*").dropna()
    totals = sales.groupBy("store").agg(sf.sum("cents").alias("cents"))
    return totals.select(sf.col("store").alias("key"), sf.to_json(sf.struct("store", "cents")).alias("value"))


def main() -> None:
    """Run the query on the available sales, or follow the topic."""
    spark = SparkSession.builder.appName("revenue").getOrCreate()
    options = {"kafka.bootstrap.servers": BOOTSTRAP, "subscribe": SALES, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=MOST).load()
    sink = brew.ExactlyOnceSink(BOOTSTRAP, name=f"{REVENUE}-sink", topic=REVENUE)
    writer = revenue(records).writeStream.outputMode("update").foreachBatch(sink)
    writer = writer.option("checkpointLocation", CHECKPOINT)
    follow = os.environ.get("FOLLOW") == "1"
    query = (writer.trigger(processingTime="1 second") if follow else writer.trigger(availableNow=True)).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
