"""Which of the input's partitions this driver works on: all of them, or those that it claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import Protocol

from brew.claims.heartbeater import Heartbeater, HeldPartitions
from brew.errors import BrewError

IsIdle = Callable[[int], bool]
"""Whether nothing is at work on a partition now, so that it may be handed over."""


class Ownership(Protocol):
    """Asked before each piece of work; whatever it answers, the fence decides what becomes visible."""

    def turn(self, idle: IsIdle) -> Container[int]:
        """
        Hand over what others are due and is idle; what may be worked on from now on.

        Raises:
            BrewError: nothing is ours any more, and nothing will be again.
        """

    def current_partitions(self) -> Container[int]:
        """What is ours now, without a look at what others are due; never raises."""

    def set_partitions(self, partitions: Iterable[int]) -> None:
        """The input has these partitions now."""


class _AllPartitions(Container[int]):
    def __contains__(self, _partition: object) -> bool:
        return True


ALL_PARTITIONS: Container[int] = _AllPartitions()


class FullOwnership:
    """One driver works on all there is."""

    def turn(self, _idle: IsIdle) -> Container[int]:
        return ALL_PARTITIONS

    def current_partitions(self) -> Container[int]:
        return ALL_PARTITIONS

    def set_partitions(self, partitions: Iterable[int]) -> None: ...


class ClaimedOwnership:
    """What a keeper holds; used by all lanes at once. ``tell`` hears of each change."""

    def __init__(self, keeper: Heartbeater, tell: Callable[[str], None]) -> None:
        self._heartbeater, self._held, self._tell = keeper, HeldPartitions(keeper), tell
        self._lock = threading.Lock()

    def turn(self, idle: IsIdle) -> Container[int]:
        """As `Ownership.turn`."""
        with self._lock:
            hand = self._held
            lost, gained, due = hand.lost(), hand.gained(), hand.due()
            given = [p for p in due if idle(p)]
            if given:
                hand.release_partitions(given)
            if lost or gained or given:
                self._report_changes(lost, given)
            return hand.partitions - set(due)

    def _report_changes(self, lost: Collection[int], given: Collection[int]) -> None:
        who, now = self._heartbeater.membership, self._held.partitions
        lines = [f"{who.client_id} works on {len(now)} of {len(who.partitions)} partitions: {listed(now) or '-'}"]
        lines += [f"lost {listed(lost)}"] if lost else []
        lines += [f"gave back {listed(given)}"] if given else []
        self._tell("; ".join(lines))

    def current_partitions(self) -> Container[int]:
        try:
            return self._heartbeater.held().keys()
        except BrewError:  # leaves from `turn`
            return ()

    def set_partitions(self, partitions: Iterable[int]) -> None:
        self._heartbeater.set_partitions(tuple(partitions))


def listed(partitions: Iterable[int]) -> str:
    """Numbers for people, as `0-3, 6`."""
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
