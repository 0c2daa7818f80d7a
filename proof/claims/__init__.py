"""Claim races on a real broker, and what must be true of them."""
