"""What the checker takes in: records, and the facts that the brokers tell before any is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from protocol.position import LogOffsets, SourcePosition

Headers = list[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, Headers, int | None]


class Record(NamedTuple):
    """
    A record as a reader sees it; ``created`` is its timestamp in ms, None where the broker set it.

    Plain tuples of the same six values are taken as well, a million of them cost less.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    created: int | None


class ByProfile(Protocol):
    """Where tiers come from customers' profiles: says whether an output is what the profile it names makes of it."""

    @property
    def counts(self) -> dict[str, int]: ...
    def wrong(self, value: bytes | None, out: bytes | None, header: tuple[str, bytes | None] | None) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What the brokers say before the records are read.

    ``doubts`` are reasons why downstream records may be missing without having been lost. ``downstream`` are the
    offsets of output and dead-letter partitions where they are known; ``settled`` says that nothing is running and
    every transaction has had the time to end, ``strict`` that a producer epoch is good for one transaction.
    ``journals`` keeps what readers' journals are compared with: some bytes per run of visible records.
    ``healed_ms`` are the moments at which faults ended, as the brokers' clocks show them. ``profiles`` are asked for
    tiers instead of the records' keys.
    """

    input: str
    output: str
    dead_letter: str
    logs: dict[int, LogOffsets]
    committed: dict[int, int | None]
    output_partitions: int
    doubts: tuple[str, ...] = ()
    downstream: dict[str, dict[int, LogOffsets]] | None = None
    settled: bool = False
    strict: bool = True
    journals: bool = False
    healed_ms: tuple[int, ...] = ()
    profiles: ByProfile | None = None

    def position(self, partition: int) -> int:
        """The committed offset, -1 without one."""
        committed = self.committed.get(partition)
        return -1 if committed is None else committed


def at(source: SourcePosition) -> str:
    return f"{source.topic}[{source.partition}] offset {source.offset}"
