"""
Consume partitions by claim instead of by group assignment.

The position in the claims topic replaces the group's committed offset. A pattern that keeps its positions elsewhere
(a ledger) continues from its own; the position in the claims topic is then for monitoring only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from brew.claims.heartbeater import Heartbeater, HeldPartitions
from brew.claims.member import Holding, Membership
from brew.claims.messages import UNKNOWN_ID
from brew.deadline import Deadline
from brew.kafka.claims_log import ClaimsLog
from brew.kafka.group_consumer import Listener, Member, MemberSettings, Polled
from downstream.consume.handler import (
    AssignedPartition,
    ClaimsSettings,
    DeliverySemantics,
    Handler,
    HandlerContext,
    LastingFailure,
    NotOwned,
    PartitionBatch,
    RetryLater,
)

_IDLE_INTERVALS = 3  # a dead member's partitions are stale after two
_RELEASE_S = 1.0


class ClaimedMember(Member):
    """
    Reads the partitions that its heartbeater holds. As in a group, partitions change hands only inside `poll`. No
    heartbeats are sent for a worker that has not polled for ``max_poll_interval_s``.
    """

    def __init__(
        self,
        settings: MemberSettings,
        claims: ClaimsSettings,
        partitions: Sequence[int],
        tell: Callable[[str], None] = lambda _text: None,
        topic_id: str = UNKNOWN_ID,
    ) -> None:
        super().__init__(settings)
        self._claiming = LastingFailure(f"claims in {claims.topic}", tell)
        self._polled_at, self._max_poll_interval_s = time.monotonic(), settings.max_poll_interval_s
        self._idle_after = Deadline(_IDLE_INTERVALS * claims.interval_s)
        self._assignment_reported = False
        self.heartbeater = Heartbeater(
            lambda: ClaimsLog(settings.connection, claims.topic),
            Membership(
                claims.client_id,
                settings.group,
                settings.topic,
                tuple(partitions),
                claims.interval_s,
                topic_id=topic_id,
            ),
            healthy=lambda: time.monotonic() - self._polled_at < self._max_poll_interval_s,
        )
        self._held = HeldPartitions(self.heartbeater)

    def join(self, listener: Listener) -> None:
        """Join; partitions are assigned through ``listener`` during `poll`."""
        self._listener = listener
        self.heartbeater.__enter__()
        self._idle_after = Deadline(self._idle_after.budget_s)

    def poll(self, limit: int, timeout_s: float) -> dict[int, Polled]:
        """Poll as `Member.poll` does, after taking over and releasing partitions as the log requires."""
        self._polled_at = time.monotonic()
        self._follow_claims()
        return super().poll(limit, timeout_s)

    def _follow_claims(self) -> None:
        listener, held = self._listener, self._held
        if listener is None:
            return
        if (error := self.heartbeater.last_error) is None:
            self._claiming.worked()
        else:
            self._claiming.failed(error)
        if lost := held.lost():
            self._assignment_reported = False
            self._drop(lost)
            listener.lost(lost)
        if wanted := held.due():
            try:
                listener.revoked(wanted)
                held.release_partitions(wanted)  # also those that the handler was never assigned
            finally:
                held.drop(wanted)
                self._drop(wanted)
        gained = held.gained(but=wanted)
        if gained or (not self._assignment_reported and self._idle_after.expired() and self.all_owned()):
            # Report an empty assignment once: a drain must not wait forever while others own every partition.
            self._assignment_reported = True
            self._add(listener.assigned(gained))

    def topic_grew(self, partitions: int) -> None:
        """Claim the new partitions, too."""
        self.heartbeater.set_partitions(tuple(range(partitions)))

    def all_owned(self) -> bool:
        """Return whether each partition has an owner: none has while a group is paused, or its log out of reach."""
        return self.heartbeater.owners.keys() >= set(self.heartbeater.membership.partitions)

    def close(self, deadline: Deadline) -> bool:
        """Release all partitions and close; return False if the brokers exceeded the deadline."""
        self._listener = None
        self.heartbeater.leave()
        return super().close(deadline)


class AtLeastOnce(Handler):
    """Process, then send what the pattern reports as done with the next heartbeat; a crash repeats the work since."""

    def __init__(self, inner: Handler, heartbeater: Heartbeater) -> None:
        self._inner, self._heartbeater = inner, heartbeater
        self._held: dict[int, Holding] = {}

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:
        """Pass the log's positions, where known, to the handler as the group's committed offsets."""
        held = self._heartbeater.held()
        offsets = []
        for assignment in assignments:
            claimed = held.get(assignment.partition)
            if claimed is None:
                raise RetryLater(f"partition {assignment.partition} was claimed, but may no longer be ours")
            holding = self._held.get(assignment.partition)
            if holding is None or holding.token != claimed.token:
                holding = self._held[assignment.partition] = claimed
            # A topic that was deleted and recreated has the position of the old one here; Kafka's own was deleted.
            of = None if holding.topic_id == UNKNOWN_ID else holding.topic_id
            at = replace(assignment, committed=holding.position, committed_topic_id=of, claimed=True)
            offsets.append(at if holding.position >= 0 else assignment)
        return self._inner.assigned(offsets, deadline)

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        """Process the batches, whose position the next heartbeat sends; raises `NotOwned` if ownership is uncertain."""
        held = self._heartbeater.held()
        for batch in batches:
            if batch.partition not in held or held[batch.partition].token != self._held[batch.partition].token:
                raise NotOwned(f"partition {batch.partition} may no longer be ours: two intervals without a heartbeat")
        self._inner.handle(batches, self._reporting_to_claims(context))

    def _reporting_to_claims(self, context: HandlerContext) -> HandlerContext:
        def report(positions: Mapping[int, int]) -> None:
            done = {
                p: replace(self._held[p], position=max(at, self._held[p].position))
                for p, at in positions.items()
                if p in self._held
            }
            self._held |= done
            self._heartbeater.progress(done)
            context.report(positions)

        return replace(context, report=report)

    def tick(self, context: HandlerContext) -> None:
        self._inner.tick(self._reporting_to_claims(context))

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Hand over: the next owner continues exactly where this one stopped."""
        self._inner.revoked(partitions, deadline)
        done = {p: self._held.pop(p) for p in partitions if p in self._held}
        # Handlers may have used up the time; without a release, others would wait for two intervals.
        self._heartbeater.release_partitions(done, Deadline(max(_RELEASE_S, deadline.remaining_s())))

    def lost(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            self._held.pop(partition, None)
        self._inner.lost(partitions)

    def close(self, deadline: Deadline) -> None:
        self._inner.close(deadline)


class AtMostOnce(AtLeastOnce):
    """Claim the messages, read back, verify, heartbeat, and only then process; a crash drops what was claimed."""

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        """Process the messages that could be claimed, then raise `NotOwned` if another claim was not granted."""
        for batch in batches:
            ours, known = self._held[batch.partition], self._heartbeater.held().get(batch.partition)
            # Claimed, but not worked on: the answer was lost, or the pattern has a position of its own (a ledger).
            claimed = known is not None and known.token == ours.token and batch.until <= known.position
            if not claimed and not self._heartbeater.claim_messages(batch.partition, ours, batch.until):
                raise NotOwned(
                    f"offsets {batch.start} to {batch.until} of partition {batch.partition} could not be claimed"
                )
            self._held[batch.partition] = replace(ours, position=max(ours.position, batch.until))
            self._inner.handle([batch], context)


FLOWS = {DeliverySemantics.AT_LEAST_ONCE: AtLeastOnce, DeliverySemantics.AT_MOST_ONCE: AtMostOnce}
