"""Consumers of the output, a file per pattern; each shows what it takes to keep the promise outside of Kafka."""
