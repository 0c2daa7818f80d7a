"""Idempotent receivers: what was processed once is known, and a redelivered message does nothing."""
