"""Raw batches of many partitions in one request per leader, where one request each would take too long."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from protocol.batches import RawBatch
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.kafka.introspect import AdminPartition, RawLogs, ask, plain_admin
from protocol.kafka.raw_format import parsed
from protocol.retry import again

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer import FetchRequest

_EACH_BYTES = 1024 * 1024
_ALL_BYTES = 64 * 1024 * 1024


class LogEnds:
    """Made by `log_ends`."""

    def __init__(self, admin: Any, deadline: Deadline) -> None:
        self._admin, self._deadline = admin, deadline

    def batches(
        self, topic: str, wanted: Mapping[int, tuple[int, int]]
    ) -> Iterator[tuple[int, list[tuple[RawBatch, memoryview]]]]:
        """
        Partition, and its batches that hold offsets of ``wanted`` (`[start, until)`), in log order, with their bytes.

        The first answer holds a megabyte of each partition; what is longer is read on by itself.

        Raises:
            DeadlineExceeded: there was no time for the rest of them.
        """
        starts = {partition: start for partition, (start, until) in wanted.items() if start < until}
        answers = self._fetched(topic, starts) if starts else {}
        for partition, (start, until) in wanted.items():
            found = [one for one in parsed(answers.get(partition, b"")) if _inside(one[0], start, until)]
            here = found[-1][0].last_offset + 1 if found else start
            found += RawLogs(self._admin).batches(topic, partition, here, until, self._deadline)
            yield partition, found

    def _fetched(self, topic: str, starts: Mapping[int, int]) -> dict[int, bytes]:
        step = f"raw batches of {topic}"

        def once() -> dict[int, bytes]:
            found: dict[int, bytes] = ask(self._admin, self._deadline, step, _fetch, self._admin, topic, starts)
            return found

        return again(once, step, self._deadline)


def _inside(batch: RawBatch, start: int, until: int) -> bool:
    return start <= batch.last_offset and batch.base_offset < until


async def _fetch(admin: Any, topic: str, starts: Mapping[int, int]) -> dict[int, bytes]:
    """A partition that its leader does not tell of is left out."""
    leaders = await admin._async_get_leader_for_partitions([AdminPartition(topic, p) for p in starts])  # noqa: SLF001
    found: dict[int, bytes] = {}
    for leader, partitions in leaders.items():
        asked = [
            FetchRequest.FetchTopic.FetchPartition(
                partition=one.partition, fetch_offset=starts[one.partition], partition_max_bytes=_EACH_BYTES
            )
            for one in sorted(partitions)
        ]
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=_ALL_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=asked)],
            forgotten_topics_data=[],
            min_version=4,
            max_version=12,  # from 13 on topics go by id
        )
        answer = await admin._manager.send(request, node_id=leader)  # noqa: SLF001
        for one in answer.responses[0].partitions if answer.responses else ():
            if not one.error_code:
                found[one.partition_index] = bytes(one.records or b"")
    return found


@contextmanager
def log_ends(connection: Connection, deadline: Deadline) -> Iterator[LogEnds]:
    """A connection for these questions; ``deadline`` holds for all of them together."""
    with plain_admin(connection, deadline) as admin:
        yield LogEnds(admin, deadline)
