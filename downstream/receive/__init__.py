"""Idempotent receivers: processed messages are remembered, so that a redelivered message has no effect."""
