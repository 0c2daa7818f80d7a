"""
The two flows as handlers around a pattern's own: when the log hears of the position, before the work or after it.

The position in the claims topic takes the place of the group's committed offset; a pattern that keeps its positions
elsewhere (a ledger) goes on from there, and the log's position is for others to look at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from downstream.claims.settings import Flow
from downstream.consume.handler import Handler, Later, Lease, NotOwned, Seat, Slice
from protocol.claims.keeper import Keeper
from protocol.claims.member import Holding
from protocol.deadline import Deadline


class AtLeastOnce:
    """
    Work, then tell the position with the next heartbeat; a crash repeats what was done since the last one.

    The position is what the pattern reports as done: one that works behind the loop's back may have read far more.
    """

    def __init__(self, inner: Handler, keeper: Keeper) -> None:
        self._inner, self._keeper = inner, keeper
        self._held: dict[int, Holding] = {}

    def assigned(self, seats: Sequence[Seat], deadline: Deadline) -> Mapping[int, int]:
        """
        The log's position, where it knows one, stands for the group's committed offset.

        Raises:
            Later: a claim is not surely ours just now.
        """
        held = self._keeper.held()
        found = []
        for seat in seats:
            if seat.partition not in held:
                raise Later(f"partition {seat.partition} was claimed, and is not surely ours any more")
            holding = self._held.setdefault(seat.partition, held[seat.partition])
            if holding.token != held[seat.partition].token:
                holding = self._held[seat.partition] = held[seat.partition]
            found.append(replace(seat, committed=holding.position) if holding.position >= 0 else seat)
        return self._inner.assigned(found, deadline)

    def handle(self, slices: Sequence[Slice], lease: Lease) -> None:
        """
        Do the work, and let the next heartbeat tell.

        Raises:
            NotOwned: a claim is not surely ours.
        """
        self._check(slices)
        self._inner.handle(slices, self._telling(lease))

    def _check(self, slices: Sequence[Slice]) -> None:
        held = self._keeper.held()
        for one in slices:
            if one.partition not in held or held[one.partition].token != self._held[one.partition].token:
                raise NotOwned(f"partition {one.partition} is not surely ours: two intervals without a heartbeat")

    def _telling(self, lease: Lease) -> Lease:
        """The lease, whose reports the log hears of, too."""

        def report(positions: Mapping[int, int]) -> None:
            done = {
                p: replace(self._held[p], position=max(at, self._held[p].position))
                for p, at in positions.items()
                if p in self._held
            }
            self._held |= done
            self._keeper.progress(done)
            lease.report(positions)

        return replace(lease, report=report)

    def tick(self, lease: Lease) -> None:
        self._inner.tick(self._telling(lease))

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Hand over: the next owner goes on exactly where this one ended."""
        self._inner.revoked(partitions, deadline)
        self._keeper.give_back({p: self._held.pop(p) for p in partitions if p in self._held})

    def lost(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            self._held.pop(partition, None)
        self._inner.lost(partitions)

    def close(self, deadline: Deadline) -> None:
        self._inner.close(deadline)


class AtMostOnce(AtLeastOnce):
    """Claim the messages, read back, verify, heartbeat, and only then work; a crash drops what was claimed."""

    def handle(self, slices: Sequence[Slice], lease: Lease) -> None:
        """
        Work on what could be claimed.

        Raises:
            NotOwned: a claim was not granted; those before it in ``slices`` are worked on all the same.
        """
        for one in slices:
            if not self._keeper.claim_messages(one.partition, self._held[one.partition], one.until):
                raise NotOwned(f"offsets {one.start} to {one.until} of partition {one.partition} could not be claimed")
            self._held[one.partition] = replace(self._held[one.partition], position=one.until)
            self._inner.handle([one], lease)


FLOWS: dict[Flow, type[AtLeastOnce]] = {Flow.AT_LEAST_ONCE: AtLeastOnce, Flow.AT_MOST_ONCE: AtMostOnce}
