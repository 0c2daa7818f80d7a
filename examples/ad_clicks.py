"""
Join clicks with the impressions they followed within a minute: two streams, each pair in Kafka exactly once.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/ad_clicks.py

An impression is JSON such as `{"ad": "a1", "at": "2026-11-23T10:00:00Z"}`, keyed by the visitor's id; so is a click.
Spark keeps both sides in its state for ten minutes. With `FOLLOW=1` the query runs until it is stopped.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import brew

BOOTSTRAP = os.environ.get("BOOTSTRAP", "localhost:9092")
IMPRESSIONS, CLICKS = os.environ.get("IMPRESSIONS", "impressions"), os.environ.get("CLICKS", "clicks")
PAIRS = os.environ.get("PAIRS", "clicks.attributed")
CHECKPOINT = os.environ.get("CHECKPOINT", "checkpoints/ad-clicks")


def events(spark: SparkSession, topic: str, name: str) -> DataFrame:
    """Return visitor, ad and time of one topic's records, with ``name`` as prefix of each column."""
    options = {"kafka.bootstrap.servers": BOOTSTRAP, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**options).load()
    event = sf.from_json(sf.col("value").cast("string"), "ad STRING, at TIMESTAMP")
    columns = records.select(sf.col("key").cast("string").alias("visitor"), event.alias("event"))
    named = columns.select("visitor", "event.*").dropna().toDF(f"{name}_visitor", f"{name}_ad", f"{name}_at")
    return named.withWatermark(f"{name}_at", "10 minutes")


def pairs(impressions: DataFrame, clicks: DataFrame) -> DataFrame:
    """Return key and value of each click with its impression."""
    same = (sf.col("click_visitor") == sf.col("shown_visitor")) & (sf.col("click_ad") == sf.col("shown_ad"))
    soon = sf.expr("click_at BETWEEN shown_at AND shown_at + INTERVAL 1 MINUTE")
    after = (sf.unix_timestamp("click_at") - sf.unix_timestamp("shown_at")).alias("after_s")
    value = sf.to_json(sf.struct(sf.col("click_ad").alias("ad"), after))
    return impressions.join(clicks, same & soon).select(sf.col("click_visitor").alias("key"), value.alias("value"))


def main() -> None:
    """Run the query on the available records, or follow the topics."""
    spark = SparkSession.builder.appName("ad-clicks").getOrCreate()
    joined = pairs(events(spark, IMPRESSIONS, "shown"), events(spark, CLICKS, "click"))
    sink = brew.ExactlyOnceSink(BOOTSTRAP, name=f"{PAIRS}-sink", topic=PAIRS)
    writer = joined.writeStream.foreachBatch(sink).option("checkpointLocation", CHECKPOINT)
    follow = os.environ.get("FOLLOW") == "1"
    query = (writer.trigger(processingTime="1 second") if follow else writer.trigger(availableNow=True)).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
