"""Source positions of records and the headers that carry them; ranges of offsets; offsets of a log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from brew.names import SINK_BATCH, SINK_NAME

HEADER_TOPIC = "source.topic"
HEADER_PARTITION = "source.partition"
HEADER_OFFSET = "source.offset"
HEADER_INDEX = "source.index"
"""The index among several outputs of one input: 1 for the second. The first or only output has no such header."""
_MAX_DIGITS = 19  # digits of the largest offset; Python refuses to parse thousands of digits

_POSITION = re.compile(r"([a-zA-Z0-9._-]{1,249})/(\d{1,9})/(\d{1,18})(?:#(\d{1,9}))?")

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, order=True)
class SourcePosition:
    """A record's identity: the position of its source in the input log, and which of the source's outputs it is."""

    topic: str
    partition: int
    offset: int
    index: int = 0

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}" + (f"#{self.index}" if self.index else "")

    @classmethod
    def parse(cls, text: str) -> SourcePosition | None:
        """Parse the form `topic/partition/offset` (or with `#index`); None if the text is not a position."""
        match = _POSITION.fullmatch(text)
        return cls(match[1], int(match[2]), int(match[3]), int(match[4] or 0)) if match else None

    def headers(self) -> list[tuple[str, bytes]]:
        """Return three headers, and the index if there is one, with UTF-8 values; they go after the record's own."""
        source = [
            (HEADER_TOPIC, self.topic.encode()),
            (HEADER_PARTITION, b"%d" % self.partition),
            (HEADER_OFFSET, b"%d" % self.offset),
        ]
        return [*source, (HEADER_INDEX, b"%d" % self.index)] if self.index else source

    @classmethod
    def of(cls, headers: Headers | None) -> SourcePosition | None:
        """
        Parse the source headers; None if one is missing or malformed.

        The last header of a name counts: the output of another pipeline carries its source headers before ours.
        """
        values = dict(headers or ())
        topic, partition, offset = (values.get(name) for name in (HEADER_TOPIC, HEADER_PARTITION, HEADER_OFFSET))
        if topic is None or not (_is_number(partition) and _is_number(offset)):
            return None
        index = values.get(HEADER_INDEX)
        if index is not None and _is_number(index) and headers is not None:
            # An index before our three headers came with the input, and refers to the input's own source.
            last = {name: place for place, (name, _) in enumerate(headers)}
            ours = int(index) if last[HEADER_INDEX] > last[HEADER_OFFSET] else 0
            return cls(topic.decode("utf-8", "replace"), int(partition), int(offset), ours)
        return cls(topic.decode("utf-8", "replace"), int(partition), int(offset))


def _is_number(text: bytes | None) -> TypeGuard[bytes]:
    return text is not None and text.isdigit() and len(text) <= _MAX_DIGITS


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The batch in which an exactly-once sink wrote a record: batch ``number`` of the sink ``name``."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"batch {self.number} of sink {self.name}"

    @classmethod
    def of(cls, headers: Headers | None) -> SinkBatch | None:
        """Parse a sink's headers; None if they are missing, or came with the input of a pipeline's output."""
        last = {name: (place, value) for place, (name, value) in enumerate(headers or ())}
        (_, name), (place, number), (source, _) = (
            last.get(one, (-1, None)) for one in (SINK_NAME, SINK_BATCH, HEADER_OFFSET)
        )
        if name is None or not _is_number(number) or source > place:
            return None
        return cls(name.decode("utf-8", "replace"), int(number))


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets `[start, until)` of one input partition."""

    topic: str
    partition: int
    start: int
    until: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.until:
            raise ValueError(f"a range needs 0 <= start < until, got [{self.start}, {self.until})")

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] offsets [{self.start}, {self.until})"


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """One partition's log: first retained offset, last stable offset (LSO), and end (high watermark)."""

    first: int
    last_stable: int
    end: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's committed offset in one partition, with its metadata."""

    offset: int
    metadata: str
