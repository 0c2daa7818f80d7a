"""Partitions by claim instead of by group assignment (docs/patterns/claims.md)."""
