"""Status, metrics, probes and tracing of a running program."""
