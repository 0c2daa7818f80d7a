"""The claims topic: how it is made, and which of its partitions coordinates what (docs/CLAIMS.md, 'Log')."""

from __future__ import annotations

import functools
import zlib

PARTITIONS = 1
CONFIG = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "segment.bytes": "67108864",
}
WHOLE_TOPIC = -1
"""In place of a partition's number: the topic as a whole."""


@functools.lru_cache(4096)
def coordinating_partition(topic: str, partition: int, of: int) -> int:
    """The partition of a log with ``of`` partitions in which all that concerns this partition stands."""
    return zlib.crc32(f"{topic}:{partition}".encode()) % of
