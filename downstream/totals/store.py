"""Where one partition's totals are kept between transactions: the port, and a store in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Changes = Mapping[bytes, bytes | None]
"""Key -> new value; None deletes the key."""


@dataclass(frozen=True, slots=True)
class Standing:
    """
    How far a store is: all deltas below ``until`` are in it, and all of the changelog below ``changelog`` at least.

    Reading a part of the changelog again does no harm, since it holds totals and no changes. ``keys`` is how many
    totals the store holds; the changelog tells the same number, so that a damaged one is noticed.
    """

    until: int
    changelog: int
    keys: int

    def encode(self) -> bytes:
        return f"{self.until} {self.changelog} {self.keys}".encode()

    @classmethod
    def decode(cls, text: bytes) -> Standing:
        return cls(*map(int, text.split(b" ")))


class Store(Protocol):
    """One partition's totals; only what is committed in Kafka ever gets in."""

    @property
    def standing(self) -> Standing | None:
        """How far it is; None while it is empty."""
        ...

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]: ...

    def write(self, changes: Changes, standing: Standing) -> None:
        """Put changes and standing in together."""
        ...

    def items(self) -> Iterator[tuple[bytes, bytes]]: ...

    def wipe(self) -> None:
        """Empty it."""
        ...

    def close(self) -> None:
        """End in good order: what is in it may be trusted by the next process."""
        ...


class MemoryStore:
    """A dict; gone with the process, and then read back from the changelog."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._standing: Standing | None = None

    @property
    def standing(self) -> Standing | None:
        return self._standing

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return list(map(self._values.get, keys))

    def write(self, changes: Changes, standing: Standing) -> None:
        for key, value in changes.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
        self._standing = standing

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        yield from self._values.items()

    def wipe(self) -> None:
        self._values.clear()
        self._standing = None

    def close(self) -> None:
        self.wipe()
