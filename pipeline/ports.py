"""What the kernel asks for: batches of rows, targets, one transaction, and perhaps a crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from protocol.deadline import Deadline
from protocol.names import CrashPoint
from protocol.position import Committed
from protocol.records import Rejected

RecordHeaders = list[tuple[str, bytes | None]] | None
Enrich = Callable[[bytes | None, bytes | None], bytes | Rejected]
Evidence = Callable[[], tuple[str, bytes | None]]
"""A header that says what the record enriched last was enriched with."""


class Rows(NamedTuple):
    """A batch of records as parallel lists, in offset order; timestamps in milliseconds since the epoch."""

    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[RecordHeaders]
    timestamps: list[int]

    def part(self, start: int, end: int) -> Rows:
        """Rows ``start`` to ``end`` of this batch."""
        offsets, keys, values, headers, timestamps = self
        cut = slice(start, end)
        return Rows(offsets[cut], keys[cut], values[cut], headers[cut], timestamps[cut])


@dataclass(frozen=True, slots=True)
class Targets:
    """Where records go; ``output_partition`` -1 leaves it to the key's murmur2 hash."""

    output: str
    dead_letter: str
    output_partition: int
    dead_letter_partition: int
    metadata: str = ""
    dead_letter_max_bytes: int = 1_048_588


@dataclass(slots=True)
class Tally:
    """Records queued so far by the running transaction."""

    enriched: int = 0
    rejected: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)


class Transaction(Protocol):
    """The broker's side of the six steps (`protocol.kafka.transaction` is the real one)."""

    produce: Callable[..., None]

    def mapped(self, step: str) -> AbstractContextManager[None]: ...
    def fence(self, deadline: Deadline) -> None: ...
    def locate(self, deadline: Deadline) -> Committed | None: ...
    def begin(self) -> None: ...
    def make_room(self, deadline: Deadline) -> None: ...
    def settle(self, deadline: Deadline) -> None: ...
    def flush(self, deadline: Deadline) -> None: ...
    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None: ...
    def commit(self, deadline: Deadline) -> None: ...
    def commit_without_waiting(self) -> None: ...
    def abort(self, deadline: Deadline) -> None: ...


class CrashedOnPurposeError(BaseException):
    """Leaves the kernel past every handler that would tidy up, as a kill would; carries what was queued by then."""

    def __init__(self, tally: Tally) -> None:
        super().__init__("crashed on purpose")
        self.tally = tally


class Crash(Protocol):
    """Something that may kill this process, or leave the transaction as a killed process would."""

    def at(self, point: CrashPoint, tally: Tally, transaction: Transaction) -> None: ...
    def interrupting(self, batches: Iterable[Rows], half_done: Callable[[], None]) -> Iterator[Rows]: ...
