"""What the lease coordinator remembers of its workers: who holds which partition, what is done, what to report."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from brew.claims.heartbeater import ALL_PARTITIONS
from brew.driver.run_context import RunContext
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.readers.direct.lease_server import WorkerSession


class Assignments:
    """
    The assignment of partitions to workers. ``sessions``: slot -> its worker's session. ``held``: partition -> slot.
    ``releasing``: partitions whose worker was asked to release them. ``owned``: the partitions that this driver may
    grant. ``reading``: the slots whose worker has begun a transaction since it connected.
    """

    def __init__(self, shared: RunContext) -> None:
        self._shared = shared
        self.sessions: dict[int, WorkerSession] = {}
        self.held: dict[int, int] = {}
        self.releasing: set[int] = set()
        self.reading: set[int] = set()
        self.owned: Container[int] = ALL_PARTITIONS
        self._partitions: set[int] = set()
        self._done: set[int] = set()
        self._backoff_until: dict[int, float] = {}
        self._exempt: set[int] = set()
        self._complete = False
        self._unreported: dict[int, list[Outcome]] = {}

    def surveyed(self, facts: Iterable[PartitionFacts], *, all_of_them: bool) -> None:
        """Update which partitions exist, and which of them have reached their goal."""
        goals, self._complete = self._shared.preflight.goals, all_of_them
        for fact in facts:
            self._partitions.add(fact.partition)
            if goals is not None and fact.position >= goals.get(fact.partition, fact.log.first):
                self._done.add(fact.partition)
            else:  # the offset may have been reset
                self._done.discard(fact.partition)

    def drained(self) -> bool:
        drains = self._shared.preflight.goals is not None
        return drains and self._complete and self._partitions <= self._done and not self.held

    def unfinished(self) -> int:
        """Return the number of owned partitions that have not reached their goal."""
        return sum(p in self.owned for p in self._partitions - self._done)

    def free(self, now: float) -> set[int]:
        """Return the owned partitions that have no worker and may be granted now."""
        waiting = self._partitions - self._done - self.held.keys()
        return {p for p in waiting if p in self.owned and self._backoff_until.get(p, 0.0) <= now}

    def back_off(self, partition: int, until: float) -> None:
        """Do not grant a failed partition before ``until`` (monotonic clock)."""
        self._backoff_until[partition] = until

    def assign(self, partition: int, slot: int) -> None:
        self.held[partition] = slot
        self._backoff_until.pop(partition, None)

    def exempt_from_crash(self, partition: int) -> bool:
        """Return True once after the partition's worker died."""
        exempt = partition in self._exempt
        self._exempt.discard(partition)
        return exempt

    def released(self, partition: int, position: int) -> None:
        self.held.pop(partition, None)
        self.releasing.discard(partition)
        goals = self._shared.preflight.goals
        if goals is not None and position >= goals.get(partition, 0):
            self._done.add(partition)

    def disconnected(self, session: WorkerSession) -> bool:
        """Free the partitions of the session's worker; False if another session already has the slot."""
        if self.sessions.get(session.slot) is not session:
            return False
        del self.sessions[session.slot]
        self.reading.discard(session.slot)
        for partition in [p for p, slot in self.held.items() if slot == session.slot]:
            del self.held[partition]
            self.releasing.discard(partition)
            if (lost_range := self._shared.running.pop(partition, None)) is not None:
                self._shared.lost[partition] = lost_range
            self._exempt.add(partition)
        return True

    def outcome(self, outcome: Outcome) -> None:
        self._unreported.setdefault(outcome.partition, []).append(outcome)

    def report(self) -> None:
        """Report the outcomes since the last report, with the commits of adjacent ranges merged."""
        if not self._unreported:
            return
        outcomes = [merged for outcomes in self._unreported.values() for merged in _merged(outcomes)]
        self._unreported.clear()
        self._shared.view.cycle(0, outcomes, sum(outcome.seconds for outcome in outcomes))


def _merged(outcomes: list[Outcome]) -> list[Outcome]:
    merged: list[Outcome] = []
    for outcome in outcomes:
        last = merged[-1] if merged else None
        if last is not None and last.status is outcome.status is Status.COMMITTED and last.until == outcome.start:
            merged[-1] = replace(
                last,
                until=outcome.until,
                enriched=last.enriched + outcome.enriched,
                rejected=last.rejected + outcome.rejected,
                seconds=last.seconds + outcome.seconds,
                dropped=last.dropped + outcome.dropped,
                written=last.written + outcome.written,
            )
        else:
            merged.append(outcome)
    return merged
