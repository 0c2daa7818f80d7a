"""A record of a topic, as readers see it, without a broker; and records whose headers the client can't read."""

from __future__ import annotations

from contextlib import closing

from brew.connection import Connection
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


class _NotUtf8(str):
    """A header's name that kafka-python writes as a byte that is not UTF-8."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return b"n\xff"


def write_unreadable(
    connection: Connection, topic: str, count: int, compression: str | None = None, headers: Headers = ()
) -> list[tuple[int, int]]:
    """Write so many orders whose first header has such a name; return their offsets in partition 0, and timestamps."""
    from kafka import KafkaProducer  # noqa: PLC0415 - slow, and rarely needed

    with closing(KafkaProducer(bootstrap_servers=connection.bootstrap, compression_type=compression)) as writer:
        value = b'{"customer_id":"c","total_cents":1}'
        sent = [writer.send(topic, value, b"k", [(_NotUtf8("n"), b"1"), *headers], 0) for _ in range(count)]
        return [(done.offset, done.timestamp) for done in (one.get(20) for one in sent)]
