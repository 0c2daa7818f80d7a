"""Which driver owns which partition, agreed on through a Kafka topic alone."""
