"""
Exactly-once between Kafka and Spark, for any records.

These names are the library's public interface: `Pipeline` to run one, `Record`, `Reject` and `batches` for
transformations, the modules `brew.formats` and `brew.testing`, the sink of a streaming query, the errors that a caller
catches, and `brew.__version__`. Importing the package loads no Kafka client, no Spark and no database driver: slow
imports happen on first use. `brew.errors` draws the whole tree of errors.
"""

from __future__ import annotations

import brew.first_imports  # noqa: F401 - before the slow ones

# isort: split

from typing import TYPE_CHECKING, Any

from brew.errors import BrewError, KafkaFailure, Refused, Unreachable, UsageError

__all__ = [
    "BrewError",
    "ExactlyOnceSink",
    "KafkaFailure",
    "Pipeline",
    "Record",
    "Refused",
    "Reject",
    "Unreachable",
    "UsageError",
    "batches",
]

if TYPE_CHECKING:
    from brew import formats as formats
    from brew import testing as testing
    from brew.pipeline import Pipeline
    from brew.record import Record, Reject, batches
    from brew.sink.sink import ExactlyOnceSink

    __version__: str
else:
    _LATER = {
        "ExactlyOnceSink": "brew.sink.sink",
        "Pipeline": "brew.pipeline",
        "Record": "brew.record",
        "Reject": "brew.record",
        "batches": "brew.record",
    }

    def __getattr__(name: str) -> Any:
        """Import on first use names that are slow to import."""
        from importlib import import_module  # noqa: PLC0415 - only if needed

        if name in _LATER:
            found = globals()[name] = getattr(import_module(_LATER[name]), name)
            return found
        if name in {"formats", "testing"}:
            return import_module(f"brew.{name}")
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _version()

    def __dir__() -> list[str]:
        """Name what completion in a notebook would miss: what is imported later."""
        return sorted({*globals(), *__all__, "formats", "testing", "__version__"})


def _version() -> str:
    """Return the installed package's version from its metadata, or "unknown"."""
    from importlib import metadata  # noqa: PLC0415 - takes 30 ms, and is rarely needed

    try:
        return metadata.version(__name__)
    except metadata.PackageNotFoundError:
        return "unknown"
