"""Ownership of the input's partitions: all of them, or those that this driver has claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import Protocol

from brew.claims.heartbeater import Heartbeater, HeldPartitions
from brew.errors import BrewError

IsIdle = Callable[[int], bool]
"""Whether a partition has no running work, so that it may be handed over."""


class Ownership(Protocol):
    """Checked before each range; it only avoids conflicts, the fence decides what becomes visible."""

    def refresh(self, idle: IsIdle) -> Container[int]:
        """
        Hand over idle partitions that are due to other drivers; return the partitions that are owned now.

        Raises:
            BrewError: this driver owns nothing any more, and never will again.
        """

    def current_partitions(self) -> Container[int]:
        """The partitions that are owned now, without handing any over; never raises."""

    def set_partitions(self, partitions: Iterable[int]) -> None:
        """Set the partitions that the input has now."""


class _AllPartitions(Container[int]):
    def __contains__(self, _partition: object) -> bool:
        return True


ALL_PARTITIONS: Container[int] = _AllPartitions()


class FullOwnership:
    """A single driver owns all partitions."""

    def refresh(self, _idle: IsIdle) -> Container[int]:
        return ALL_PARTITIONS

    def current_partitions(self) -> Container[int]:
        return ALL_PARTITIONS

    def set_partitions(self, partitions: Iterable[int]) -> None: ...


class ClaimedOwnership:
    """The partitions that a heartbeater holds; all lanes use it. ``report`` gets a line for each change."""

    def __init__(self, heartbeater: Heartbeater, report: Callable[[str], None]) -> None:
        self._heartbeater, self._held, self._report = heartbeater, HeldPartitions(heartbeater), report
        self._lock = threading.Lock()

    def refresh(self, idle: IsIdle) -> Container[int]:
        """As `Ownership.refresh`."""
        with self._lock:
            held = self._held
            lost, gained, due = held.lost(), held.gained(), held.due()
            released = [p for p in due if idle(p)]
            if released:
                held.release_partitions(released)
            if lost or gained or released:
                self._report_changes(lost, released)
            return held.partitions - set(due)

    def _report_changes(self, lost: Collection[int], released: Collection[int]) -> None:
        membership, held = self._heartbeater.membership, self._held.partitions
        counts = f"{len(held)} of {len(membership.partitions)} partitions"
        lines = [f"{membership.client_id} works on {counts}: {listed(held) or '-'}"]
        lines += [f"lost {listed(lost)}"] if lost else []
        lines += [f"gave back {listed(released)}"] if released else []
        self._report("; ".join(lines))

    def current_partitions(self) -> Container[int]:
        try:
            return self._heartbeater.held().keys()
        except BrewError:  # `refresh` raises it
            return ()

    def set_partitions(self, partitions: Iterable[int]) -> None:
        self._heartbeater.set_partitions(tuple(partitions))


def listed(partitions: Iterable[int]) -> str:
    """Format partition numbers, as `0-3, 6`."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in _runs(partitions))


def _runs(partitions: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for number in sorted(partitions):
        if first is None or last is None:
            first = last = number
        elif number == last + 1:
            last = number
        else:
            yield first, last
            first = last = number
    if first is not None and last is not None:
        yield first, last
