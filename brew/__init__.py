"""
Exactly-once between Kafka and Spark, for any records.

The names here are the library's public face: the errors that a caller catches, and `brew.__version__`. Importing
them loads no Kafka client, no Spark and no database driver. `brew.errors` draws the whole tree of errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brew.errors import BrewError, Denied, KafkaFailure, Refused, Unreachable, UsageError

__all__ = ["BrewError", "Denied", "KafkaFailure", "Refused", "Unreachable", "UsageError"]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """`__version__`, read from the installed package's metadata at the first use; "unknown" where there is none."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import metadata  # noqa: PLC0415 - takes 30 ms, and few ask

        try:
            return metadata.version(__name__)
        except metadata.PackageNotFoundError:
            return "unknown"
