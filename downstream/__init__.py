"""Consumers of the output, one file per pattern; each shows what it takes to keep the promise outside Kafka."""
