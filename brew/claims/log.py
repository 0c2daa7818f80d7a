"""What the claims protocol asks of a log: append with the brokers' time, and read to the end. The port."""

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
    """Where a record stands now, and the brokers' time in ms."""

    partition: int
    offset: int
    time_ms: int


class Entry(NamedTuple):
    """A record as it was read; the time is the brokers', in ms."""

    partition: int
    offset: int
    time_ms: int
    key: bytes
    value: bytes | None


class Log(Protocol):
    """A log of one or more partitions, each with offsets that only rise. Used by one thread at a time."""

    @property
    def partitions(self) -> int: ...

    def append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
        """
        Append all, in order per partition; return once the brokers have each safely.

        Raises:
            DeadlineExceeded, KafkaFailure: some may be there, some not; only reading tells.
        """
        ...

    def bounds(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
        """Per partition the first offset and the end."""
        ...

    def history(self, ranges: Mapping[int, tuple[int, int]], deadline: Deadline) -> list[Entry]:
        """What is left of `[start, until)` of each partition, in order of offsets per partition."""
        ...

    def tail(self, starts: Mapping[int, int]) -> None:
        """From here on `read` begins at these offsets."""
        ...

    def read(self, until: Mapping[int, int], deadline: Deadline) -> list[Entry]:
        """
        All that came since the last call, at least up to the offsets ``until`` (partition -> end).

        Raises:
            DeadlineExceeded: they were not reached in time; what was read is handed out by the next call.
            Refused: the log is not what it was: made again, or with times of its writers.
        """
        ...

    def close(self) -> None: ...
