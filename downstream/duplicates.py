"""Count distinct identities exactly, in bounded memory: a set while they fit, files of digests beyond; no client."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

_DIGEST_BYTES = 16
_BUCKETS = 256
_BUFFER_BYTES = 16 * 1024
_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Limits:
    """How much stays in memory before it goes to disk: a million identities take about 110 MB."""

    identities: int = 1_000_000
    identity_bytes: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Distinct:
    """
    How many records there were, how many different identities they had, and how many came again.

    ``examples`` are the first identities that came again; beyond memory's limit only their digests are known.
    """

    records: int
    unique: int
    unidentified: int
    examples: tuple[bytes, ...] = ()
    example_digests: frozenset[bytes] = field(default=frozenset())

    @property
    def duplicates(self) -> int:
        return self.records - self.unidentified - self.unique


def digest(identity: bytes) -> bytes:
    """128 bits that stand for an identity: two of 100 million share one with a chance of 1 in 10^22."""
    return blake2b(identity, digest_size=_DIGEST_BYTES).digest()


class DistinctCount:
    """
    A fold over identities, in any order; a record may have none, and is then counted apart.

    With 100 million identities the files take 1.6 GB, and one bucket of them 400,000 entries of memory.
    """

    def __init__(self, limits: Limits = Limits()) -> None:
        self._limits = limits
        self._records = self._unidentified = self._bytes = 0
        self._seen: set[bytes] = set()
        self._again: dict[bytes, None] = {}
        self._spill: _Spill | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._spill is not None:
            self._spill.close()

    def add(self, identities: Sequence[bytes | None]) -> None:
        """Take in a batch."""
        known = [identity for identity in identities if identity is not None]
        self._records += len(identities)
        self._unidentified += len(identities) - len(known)
        if self._spill is not None:
            self._spill.write(map(digest, known))
            return
        fresh = set(known)
        if len(fresh) < len(known) or not fresh.isdisjoint(self._seen):
            self._remember_duplicates(known)
        self._seen |= fresh
        self._bytes += sum(map(len, fresh))
        if len(self._seen) > self._limits.identities or self._bytes > self._limits.identity_bytes:
            self._move_to_disk()

    def _remember_duplicates(self, known: list[bytes]) -> None:
        here: set[bytes] = set()
        for identity in known:
            if (identity in self._seen or identity in here) and len(self._again) < _EXAMPLES:
                self._again[identity] = None
            here.add(identity)
        # What is in memory already gave its duplicates away; the count comes from records minus unique.

    def _move_to_disk(self) -> None:
        self._spill = _Spill()
        self._spill.write(map(digest, self._seen))
        self._seen = set()

    def result(self) -> Distinct:
        """The count of all that was added."""
        examples = tuple(self._again)
        if self._spill is None:
            return Distinct(self._records, len(self._seen), self._unidentified, examples)
        unique, again = self._spill.count(_EXAMPLES - len(examples))
        return Distinct(self._records, unique, self._unidentified, examples, frozenset(again))


class _Spill:
    """Digests in bucket files: equal ones meet in the same bucket, and one bucket at a time fits into memory."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="brew-distinct-")
        home = Path(self._directory.name)
        self._files = [(home / f"{n:03d}").open("w+b", buffering=_BUFFER_BYTES) for n in range(_BUCKETS)]

    def write(self, digests: Iterable[bytes]) -> None:
        files = self._files
        for one in digests:
            files[one[0]].write(one)

    def count(self, most_examples: int) -> tuple[int, list[bytes]]:
        """How many digests differ, and the first few that came again."""
        unique = 0
        again: list[bytes] = []
        for file in self._files:
            file.seek(0)
            seen: set[bytes] = set()
            while one := file.read(_DIGEST_BYTES):
                if one in seen and len(again) < most_examples and one not in again:
                    again.append(one)
                seen.add(one)
            unique += len(seen)
        return unique, again

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._directory.cleanup()
