"""Repeated kills around a store's commit, followed by a check: `python -m tests.kills --help`."""
