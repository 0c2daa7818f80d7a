"""What a dead letter becomes when it is written back, or why it stays; pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pipeline.dlq.letter import Letter, sized
from protocol.records import REPLAYED_COUNT, REPLAYED_FROM, REPLAYED_TIMESTAMP

BY_KEY = -1
"""The partition that leaves the choice to the key's murmur2 hash."""

_OURS = {REPLAYED_FROM, REPLAYED_COUNT, REPLAYED_TIMESTAMP}
_ROOM, _ROOM_PER_HEADER = 512, 10


class Why(enum.StrEnum):
    """Why a dead letter stays where it is."""

    FOREIGN = "foreign"
    REPLAYED = "replayed-before"
    TOO_OFTEN = "too-often"
    NO_PARTITION = "no-partition"
    BYTES_GONE = "bytes-gone"
    EDIT_FAILED = "edit-failed"
    TOO_LARGE = "too-large"


@dataclass(frozen=True, slots=True)
class Stays:
    """A dead letter that is not written back, and one sentence that says why."""

    letter: Letter
    why: Why
    message: str = ""


@dataclass(frozen=True, slots=True)
class Back:
    """A record for the input topic, made of ``letter``."""

    letter: Letter
    partition: int
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Rules:
    """
    What decides over a dead letter: the input topic, how many partitions it has and how many bytes a record may have,
    how often one record is written back at most, and whether the key chooses the partition.
    """

    input: str
    partitions: int
    max_bytes: int
    most_replays: int
    by_key: bool = False

    def stays(self, letter: Letter) -> Stays | None:
        """Why it is not written back, as far as can be said without its value."""
        source = letter.source
        if source is None:
            return Stays(letter, Why.FOREIGN, "it has no error and source headers: no pipeline put it there")
        if source.topic != self.input:
            return Stays(letter, Why.FOREIGN, f"it came from {source.topic}, not from {self.input}; set --input")
        if letter.replays >= self.most_replays:
            told = f"it was written back {letter.replays} times, --most-replays is {self.most_replays}"
            return Stays(letter, Why.TOO_OFTEN, told)
        if source.partition >= self.partitions and not self.by_key:
            told = f"{source.topic} has {self.partitions} partitions, it came from {source.partition}; use --by-key"
            return Stays(letter, Why.NO_PARTITION, told)
        return None

    def back(self, dead_letter: str, letter: Letter, value: bytes | None) -> Back | Stays:
        """The record to write, for a letter that `stays` lets go; ``value`` may have been repaired."""
        headers = [(name, text) for name, text in letter.own_headers if name not in _OURS]
        headers += [
            (REPLAYED_FROM, f"{dead_letter}/{letter.partition}/{letter.offset}".encode()),
            (REPLAYED_COUNT, b"%d" % (letter.replays + 1)),
            (REPLAYED_TIMESTAMP, b"%d" % letter.timestamp),
        ]
        # One that the broker refuses would fail its whole transaction, again and again.
        size = sized(letter.key, value, headers) + _ROOM + _ROOM_PER_HEADER * len(headers)
        if size > self.max_bytes:
            told = f"it has about {size} bytes, {self.input} takes {self.max_bytes} (max.message.bytes)"
            return Stays(letter, Why.TOO_LARGE, told)
        source = letter.source
        partition = BY_KEY if self.by_key or source is None else source.partition
        return Back(letter, partition, value, headers)
