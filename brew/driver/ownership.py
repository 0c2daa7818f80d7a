"""Which of the input's partitions this driver works on: all of them, or those that it claimed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import Protocol

from brew.claims.heartbeater import Hand, Keeper
from brew.errors import BrewError

Idle = Callable[[int], bool]
"""Whether nothing is at work on a partition now, so that it may be handed over."""


class Ownership(Protocol):
    """Asked before each piece of work; whatever it answers, the fence decides what becomes visible."""

    def turn(self, idle: Idle) -> Container[int]:
        """
        Hand over what others are due and is idle; what may be worked on from now on.

        Raises:
            BrewError: nothing is ours any more, and nothing will be again.
        """

    def surely(self) -> Container[int]:
        """What is ours now, without a look at what others are due; never raises."""

    def cover(self, partitions: Iterable[int]) -> None:
        """The input has these partitions now."""


class _Every(Container[int]):
    def __contains__(self, _partition: object) -> bool:
        return True


EVERY: Container[int] = _Every()


class Everything:
    """One driver works on all there is."""

    def turn(self, _idle: Idle) -> Container[int]:
        return EVERY

    def surely(self) -> Container[int]:
        return EVERY

    def cover(self, partitions: Iterable[int]) -> None: ...


class Claimed:
    """What a keeper holds; used by all lanes at once. ``tell`` hears of each change."""

    def __init__(self, keeper: Keeper, tell: Callable[[str], None]) -> None:
        self._keeper, self._hand, self._tell = keeper, Hand(keeper), tell
        self._lock = threading.Lock()

    def turn(self, idle: Idle) -> Container[int]:
        """As `Ownership.turn`."""
        with self._lock:
            hand = self._hand
            lost, gained, due = hand.lost(), hand.gained(), hand.due()
            given = [p for p in due if idle(p)]
            if given:
                hand.give_back(given)
            if lost or gained or given:
                self._tell_what_changed(lost, given)
            return hand.partitions - set(due)

    def _tell_what_changed(self, lost: Collection[int], given: Collection[int]) -> None:
        who, now = self._keeper.membership, self._hand.partitions
        lines = [f"{who.client_id} works on {len(now)} of {len(who.partitions)} partitions: {listed(now) or '-'}"]
        lines += [f"lost {listed(lost)}"] if lost else []
        lines += [f"gave back {listed(given)}"] if given else []
        self._tell("; ".join(lines))

    def surely(self) -> Container[int]:
        try:
            return self._keeper.held().keys()
        except BrewError:  # leaves from `turn`
            return ()

    def cover(self, partitions: Iterable[int]) -> None:
        self._keeper.cover(tuple(partitions))


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
