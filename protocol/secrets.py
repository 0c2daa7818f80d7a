"""A value that nobody is shown: it prints as `***`, and leaves only where a client is made."""

from __future__ import annotations

from dataclasses import dataclass

MASK = "***"


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Carried in settings, pickled to Spark's workers, compared; `repr`, `str` and formats give the mask."""

    _value: str

    def reveal(self) -> str:
        """The value itself; called only where a client library is handed it."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)
