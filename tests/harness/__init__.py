"""Shared by the tests: a real broker, fresh names."""
