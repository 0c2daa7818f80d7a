"""The command line of `python -m proof`, a file per kind of command; the work is done elsewhere."""
