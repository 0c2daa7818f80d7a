"""Exactly-once between Kafka and Spark, for any records."""
