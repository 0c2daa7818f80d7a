"""What runs in tasks: Spark's Kafka source (`connector`), or librdkafka that reads on its own (`direct`)."""
