"""A record of a topic, as readers see it, without a broker."""

from __future__ import annotations

from brew.kafka.log_reader import LogRecord
from brew.offsets import Headers, SourcePosition


class FakeRecord(LogRecord):
    """A record of partition 3; ``source``: the offset in its source headers."""

    def __init__(
        self,
        offset: int = 0,
        key: bytes | None = None,
        value: bytes | None = b"{}",
        *,
        source: int | None = None,
        headers: Headers | None = None,
        time_ms: int = 0,
    ) -> None:
        given = headers if source is None else list(SourcePosition("in", 0, source).headers())
        self.offset, self.key, self.value = (lambda: offset), (lambda: key), (lambda: value)
        self.headers, self.partition, self.timestamp = (lambda: given), (lambda: 3), (lambda: (1, time_ms))
