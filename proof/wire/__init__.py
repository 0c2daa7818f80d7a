"""A proxy that reads Kafka's frames, and experiments that deliver frames too late."""
