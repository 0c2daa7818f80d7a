"""Kills around a store's commit, one after another, and the check behind them: `python -m tests.kills --help`."""
