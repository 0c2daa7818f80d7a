"""A proxy that reads Kafka's frames, and experiments that deliver a frame too late."""
