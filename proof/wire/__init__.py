"""A proxy that knows Kafka's frames, and the experiments that hold one back until it is too late."""
