"""Idempotent receivers: processed messages are remembered, and a redelivered message has no effect."""
