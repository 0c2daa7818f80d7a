"""The fixture of most integration tests: `stage`, one test's topics and programs on the session's broker."""

from harness.pipeline import stage  # noqa: F401
