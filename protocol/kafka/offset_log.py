"""Kafka's own offset log: where a group's offsets lie, and what was committed there in which batch."""

from __future__ import annotations

from collections.abc import Iterator

from protocol.batches import OFFSETS_TOPIC, OffsetBatch, OffsetCommit
from protocol.kafka.introspect import RawLogs
from protocol.kafka.raw_format import DefaultRecordBatch

_COMMIT_KEYS = 1


def offsets_partition(group: str, partitions: int) -> int:
    """Where a group's offsets lie: Java's hash of its name, modulo the partitions of the offset log."""
    units = group.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def offset_batches(
    raw: RawLogs, group: str, topic: str, partition: int, start: int, until: int
) -> Iterator[OffsetBatch]:
    """Batches of one partition of the offset log, with the group's commits for ``topic`` where they hold some."""
    mark = group.encode()
    for batch, content in raw.batches(OFFSETS_TOPIC, partition, start, until):
        ours = not batch.control and mark in bytes(content)
        yield OffsetBatch(batch, tuple(_commits(content, group, topic)) if ours else ())


def _commits(content: memoryview, group: str, topic: str) -> Iterator[OffsetCommit]:
    """Keys of version 0 and 1 hold group, topic, partition; values of all versions begin with version and offset."""
    for record in DefaultRecordBatch(content):
        key, value = record.key, record.value
        if key is None or int.from_bytes(key[:2], "big") > _COMMIT_KEYS:
            continue
        names, at = [], 2
        for _ in range(2):
            end = at + 2 + int.from_bytes(key[at : at + 2], "big")
            names.append(key[at + 2 : end].decode())
            at = end
        if names == [group, topic]:
            until = None if value is None else int.from_bytes(value[2:10], "big", signed=True)
            yield OffsetCommit(int.from_bytes(key[at : at + 4], "big"), until)
