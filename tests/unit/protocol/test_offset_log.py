"""Where a group's offsets lie, and what a batch of them says."""

from __future__ import annotations

import pytest

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.kafka.cluster_admin import coordinator_partition
from brew.kafka.raw_log import offset_batches


@pytest.mark.parametrize(
    ("group", "partition"), [("", 0), ("abc", 96354 % 50), ("polygenelubricants", 0), ("hello", 99162322 % 50)]
)
def test_a_group_lies_where_javas_hash_puts_it(group: str, partition: int) -> None:
    """Among them a name whose hash is the smallest integer, which has no absolute value."""
    assert coordinator_partition(group, 50) == partition


def varint(number: int) -> bytes:
    """Zigzag, below 64."""
    return bytes([number << 1])


def commit(group: bytes, topic: bytes, partition: int, until: int | None, version: int = 1) -> bytes:
    """One record of the offset log, as brokers write it."""
    key = version.to_bytes(2, "big") + b"".join(len(one).to_bytes(2, "big") + one for one in (group, topic))
    key += partition.to_bytes(4, "big")
    value = b"\x01" if until is None else varint(10) + b"\x00\x03" + until.to_bytes(8, "big")
    record = b"\x00\x00\x00" + varint(len(key)) + key + value + varint(0)
    return varint(len(record)) + record


class Log:
    """Stands for the raw log: one batch."""

    def __init__(self, *records: bytes) -> None:
        self.raw = RawBatch(4, 4 + len(records) - 1, len(records), 7, 0, 0, True, False, None, 0)
        head = b"\x00" * 16 + b"\x02" + b"\x00" * 40 + len(records).to_bytes(4, "big")
        self.content = memoryview(head + b"".join(records))

    def batches(self, *_: object) -> list[tuple[RawBatch, memoryview]]:
        return [(self.raw, self.content)]


def test_only_the_groups_commits_of_the_topic_are_told() -> None:
    """Other groups and topics, group metadata (key version 2) and deletions lie in the same log."""
    log = Log(
        commit(b"g", b"in", 3, 17),
        commit(b"other", b"in", 3, 18),
        commit(b"g", b"else", 3, 19),
        commit(b"g", b"in", 2, None),
        commit(b"g", b"in", 1, 20, version=2),
    )
    (found,) = offset_batches(log, "g", "in", 0, 0, 9)  # type: ignore[arg-type]
    assert found == OffsetBatch(log.raw, (OffsetCommit(3, 17), OffsetCommit(2, None)))
