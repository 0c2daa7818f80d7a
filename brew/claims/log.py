"""The interface between the claims protocol and a log: append with the brokers' timestamps, and read to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from brew.deadline import Deadline


class Item(NamedTuple):
    """A record to be appended to one partition of the log."""

    partition: int
    key: bytes
    value: bytes


class Appended(NamedTuple):
    """Where a record was appended, and the brokers' timestamp in ms."""

    partition: int
    offset: int
    time_ms: int


class Entry(NamedTuple):
    """A record that was read; the timestamp is the brokers', in ms."""

    partition: int
    offset: int
    time_ms: int
    key: bytes
    value: bytes | None


class Log(Protocol):
    """A log of one or more partitions with increasing offsets. For one thread at a time."""

    @property
    def partitions(self) -> int: ...

    def append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
        """
        Append all items, in order per partition; return once the brokers have stored each of them safely. Raises
        `DeadlineExceeded`/`KafkaFailure`: some may have been appended; only reading shows which.
        """
        ...

    def bounds(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
        """Return each partition's first offset and end."""
        ...

    def history(self, ranges: Mapping[int, tuple[int, int]], deadline: Deadline) -> list[Entry]:
        """Return the remaining records of `[start, until)` of each partition, in offset order per partition."""
        ...

    def tail(self, starts: Mapping[int, int]) -> None:
        """Set the offsets at which `read` begins."""
        ...

    def read(self, until: Mapping[int, int], deadline: Deadline) -> list[Entry]:
        """
        Return all records since the last call, at least up to the offsets ``until`` (partition -> end).

        Raises:
            DeadlineExceeded: they were not reached in time; the next call returns what was read.
            Refused: the log was recreated, or has timestamps set by its writers.
        """
        ...

    def close(self) -> None: ...
