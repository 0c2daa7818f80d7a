"""The exactly-once sink: a micro-batch of any Structured Streaming query in one Kafka transaction."""
