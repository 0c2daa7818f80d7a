"""Checks before a run: what the cluster says about itself, held against what the promise needs."""
