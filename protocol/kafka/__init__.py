"""The one door to the Kafka client: clients, offsets, topics, reading a log to its end, open transactions."""
