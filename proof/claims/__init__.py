"""Claim races on a real broker, and the checks that they must pass."""
