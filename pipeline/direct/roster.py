"""Who holds what, what is done, and what rests; the director's memory."""

from __future__ import annotations

from collections.abc import Container, Iterable

from pipeline.direct.office import Desk
from pipeline.outcome import Outcome, Status
from pipeline.ownership import EVERY
from pipeline.plan import Fact
from pipeline.shared import Shared


class Roster:
    """
    ``desks``: slot -> its holder; ``held``: partition -> slot; ``leaving``: partitions that were called back; ``ours``:
    what this driver may give out.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.desks: dict[int, Desk] = {}
        self.held: dict[int, int] = {}
        self.leaving: set[int] = set()
        self.ours: Container[int] = EVERY
        self._partitions: set[int] = set()
        self._done: set[int] = set()
        self._rests_until: dict[int, float] = {}
        self._spared: set[int] = set()
        self._complete = False
        self._untold: dict[int, list[Outcome]] = {}
        self._told_at = shared.board.started

    def surveyed(self, facts: Iterable[Fact], *, all_of_them: bool) -> None:
        """Take in which partitions there are, and which of them have reached their goal."""
        goals, self._complete = self._shared.goals, all_of_them
        for fact in facts:
            self._partitions.add(fact.partition)
            if goals is not None and fact.position >= goals.get(fact.partition, fact.log.first):
                self._done.add(fact.partition)
            else:  # somebody may have moved it back
                self._done.discard(fact.partition)

    def drained(self) -> bool:
        return self._complete and self._partitions <= self._done and not self.held

    def unfinished(self) -> int:
        """How many of our partitions have not reached their goal."""
        return sum(p in self.ours for p in self._partitions - self._done)

    def free(self, now: float) -> set[int]:
        """Partitions that wait for a holder."""
        waiting = self._partitions - self._done - self.held.keys()
        return {p for p in waiting if p in self.ours and self._rests_until.get(p, 0.0) <= now}

    def rest(self, partition: int, until: float) -> None:
        """After a failure: not before ``until``, by the monotonic clock."""
        self._rests_until[partition] = until

    def gave(self, partition: int, slot: int) -> None:
        self.held[partition] = slot
        self._rests_until.pop(partition, None)

    def spared(self, partition: int) -> bool:
        """True once after a holder died over the partition."""
        spared = partition in self._spared
        self._spared.discard(partition)
        return spared

    def left(self, partition: int, position: int) -> None:
        self.held.pop(partition, None)
        self.leaving.discard(partition)
        goals = self._shared.goals
        if goals is not None and position >= goals.get(partition, 0):
            self._done.add(partition)

    def gone(self, desk: Desk) -> bool:
        """A holder's line is dead: all it held is free; False when its successor is there already."""
        if self.desks.get(desk.slot) is not desk:
            return False
        del self.desks[desk.slot]
        for partition in [p for p, slot in self.held.items() if slot == desk.slot]:
            del self.held[partition]
            self.leaving.discard(partition)
            if (lost := self._shared.running.pop(partition, None)) is not None:
                self._shared.lost[partition] = lost
            self._spared.add(partition)
        return True

    def outcome(self, outcome: Outcome) -> None:
        self._untold.setdefault(outcome.partition, []).append(outcome)

    def tell(self) -> None:
        """Show what ended since the last time: one range per partition and kind of end."""
        if not self._untold:
            return
        outcomes = [one for some in self._untold.values() for one in _joined(some)]
        self._untold.clear()
        self._shared.view.cycle(0, outcomes, sum(one.seconds for one in outcomes))


def _joined(outcomes: list[Outcome]) -> list[Outcome]:
    joined: list[Outcome] = []
    for one in outcomes:
        last = joined[-1] if joined else None
        if last is not None and last.status is one.status is Status.COMMITTED and last.until == one.start:
            joined[-1] = Outcome(
                one.partition,
                last.start,
                one.until,
                one.status,
                last.position,
                last.enriched + one.enriched,
                last.rejected + one.rejected,
                last.seconds + one.seconds,
            )
        else:
            joined.append(one)
    return joined
