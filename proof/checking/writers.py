"""What writers were told: the ranges whose commit the broker acknowledged; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from protocol.journal import Entry, Phase, Step


class Acknowledged:
    """Offsets of the input behind a `commit done` of a journal, as merged ranges per partition."""

    def __init__(self, entries: Iterable[Entry], topic: str, group: str | None = None) -> None:
        found: dict[int, list[tuple[int, int]]] = {}
        self.any_writer = False
        for entry in entries:
            if entry.step is Step.READ:
                continue
            self.any_writer = True
            said = entry.fields
            if entry.step is not Step.COMMIT or entry.phase is not Phase.DONE or said.get("topic", topic) != topic:
                continue
            if group is None or said.get("group", group) == group:
                found.setdefault(said["partition"], []).append((said["start"], said["until"]))
        self.ranges = {partition: _merged(some) for partition, some in found.items()}

    def until(self, partition: int) -> int:
        """The highest offset that was acknowledged; -1 without one."""
        some = self.ranges.get(partition)
        return some[-1][1] if some else -1

    def holding(self, partition: int, offset: int) -> tuple[int, int] | None:
        """The acknowledged range that holds the offset."""
        some = self.ranges.get(partition, [])
        at = bisect_right(some, (offset, 1 << 62)) - 1
        return some[at] if at >= 0 and offset < some[at][1] else None

    def covers(self, partition: int, offset: int, count: int) -> bool:
        """Whether one of these offsets was acknowledged; true of all where no writer wrote anything down."""
        if not self.any_writer:
            return True
        some = self.ranges.get(partition, [])
        return any(start < offset + count and offset < until for start, until in some)


def _merged(some: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, until in sorted(some):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(until, merged[-1][1])
        else:
            merged.append((start, until))
    return merged
