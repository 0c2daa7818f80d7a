"""The consume loop: `read_committed`, positions kept by the handler, rebalances, pauses, a clean shutdown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, KafkaFailure, Refused
from brew.kafka import offsets, topics
from brew.kafka.clients import AdminClient, admin, reach
from brew.kafka.cluster import broker_watch
from brew.kafka.cluster_admin import leaderless, no_leader
from brew.kafka.group_consumer import NOWHERE, Member, MemberSettings, Polled
from brew.kafka.topics import Topic
from brew.names import READ_UNCOMMITTED
from downstream.claims.ownership import FLOWS, ClaimedMember
from downstream.consume.handler import (
    AssignedPartition,
    Handler,
    HandlerContext,
    LoopSettings,
    NotOwned,
    PartitionBatch,
    RetryLater,
    metadata,
    topic_id_in,
)

_REACH_S = 10.0
_ASK_S = 15.0
_SAFE_SHARE = 0.8  # of the poll interval; after that, work in progress could overlap with the next owner's
_LEAVE_S = 3.0
_REPORT_S = 1.0
_LAST_REPORT_S = 2.0
_RENEW_S = 3600.0  # with named partitions, brokers delete an offset `offsets.retention.minutes` after its last commit
# Nobody deletes, recreates and fills a topic in the first of these times; a check takes 1 to 2 ms.
_TOPIC_CHECK_S, _IDLE_TOPIC_CHECK_S, _TOPIC_ASK_S, _TOPIC_PAUSE_S = 0.1, 1.0, 2.0, 5.0
_WAITING_AGAIN_S = 10.0
_LEADER_S = 2.0


@dataclass
class _PartitionProgress:
    """An owned partition's next offset, the end of its drain, and when it began to wait."""

    position: int
    goal: int
    retry_at: Deadline | None = None
    give_up_at: Deadline | None = None


@dataclass
class LoopResult:
    """Counters of the loop; ``seconds`` run from reaching the brokers to leaving the group."""

    records: int = 0
    batches: int = 0
    rebalances: int = 0
    postponed: int = 0
    seconds: float = 0.0
    positions: dict[int, int] = field(default_factory=dict)


class Loop:
    """Drives one handler, between polls only, so a rebalance interrupts no batch; the handler says where to start."""

    def __init__(
        self,
        settings: LoopSettings,
        handler: Handler,
        stop: threading.Event,
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self._settings, self._handler, self._stop, self._tell = settings, handler, stop, tell
        self._progress: dict[int, _PartitionProgress] = {}
        self._settled = Deadline(settings.settle_s)
        self._regain_by: Deadline | None = None
        self._reported: dict[int, int] = {}
        self._unreported: dict[int, int] = {}
        self._report_due, self._renew_due = Deadline(_REPORT_S), Deadline(_RENEW_S)
        self._topic_checked_at = time.monotonic()
        self._waiting: dict[int, str] = {}
        self._waiting_again = Deadline(_WAITING_AGAIN_S)
        self.result = LoopResult()

    def run(self) -> LoopResult:
        """
        Consume until drained or stopped; always close the handler at the end.

        Raises:
            Unreachable, Refused: there is nothing to read, or reading cannot start at the handler's offset.
            BrewError: raised by the handler.
        """
        settings, began = self._settings, time.monotonic()
        try:
            reach(settings.connection, Deadline(_REACH_S))
            self._admin: AdminClient = admin(settings.connection)
            self._topic: Topic = topics.describe_one(self._admin, settings.topic, Deadline(_ASK_S))
            wrong = [p for p in settings.partitions or () if not 0 <= p < self._topic.partitions]
            if wrong:
                raise Refused(f"{self._topic.name} has partitions 0 to {self._topic.partitions - 1}, not {wrong}")
            self._member = self._make_member()
            waits = "this member waits, and will continue where it was"
            watch = broker_watch(settings.connection, settings.topic, waits, None, self._tell)
            try:
                with watch if settings.follow else nullcontext():
                    self._consume()
            finally:
                self._leave()
        finally:
            self._handler.close(Deadline(_LEAVE_S))
            self.result.seconds = time.monotonic() - began
        return self.result

    def _make_member(self) -> Member:
        """Return a group member, or one that owns partitions by claim and whose handler reports to the claims topic."""
        settings = self._settings
        times = settings.max_poll_interval_s, settings.session_timeout_s
        asked = MemberSettings(settings.connection, settings.group, settings.topic, *times)
        if settings.claims is None:
            return Member(asked)
        partitions = settings.partitions or range(self._topic.partitions)
        member = ClaimedMember(asked, settings.claims, partitions, self._tell, self._topic.topic_id)
        self._handler = FLOWS[settings.claims.flow](self._handler, member.heartbeater)
        return member

    def _consume(self) -> None:
        settings = self._settings
        if settings.partitions is None or settings.claims is not None:
            self._member.join(self)
        else:
            self._member.take(settings.partitions, self)
            self._pause_waiting()
        while not self._stop.is_set():
            self._turn(self._member.poll(settings.batch, settings.linger_s))
            if not settings.follow and self._drained():
                return

    def _turn(self, polled: Mapping[int, Polled]) -> None:
        """Do everything between two polls, within one deadline."""
        deadline = self._poll_deadline()
        batches = self._slices(polled)  # before any wait ends: what a waiting partition fetched is not its next offset
        self._check_topic_if_due(_TOPIC_CHECK_S if batches else _IDLE_TOPIC_CHECK_S)
        self._pause_waiting()
        self._retry(deadline)
        self._round(batches, deadline)

    def _poll_deadline(self) -> Deadline:
        """Return the deadline after a poll until which no other member can own our partitions."""
        return Deadline(self._settings.max_poll_interval_s * _SAFE_SHARE)

    def _round(self, batches: list[PartitionBatch], deadline: Deadline) -> None:
        context = HandlerContext(
            deadline, frozenset(self._progress), self._member.pause, self._member.resume, self._report
        )
        try:
            if batches:
                self._handler.handle(batches, context)
                self._advance(batches)
            self._handler.tick(context)
            if self._renew_due.expired():
                self._unreported, self._renew_due = dict(self._reported), Deadline(_RENEW_S)
            if self._unreported and self._report_due.expired():
                self._send_report()
        except (RetryLater, NotOwned) as error:
            self._postpone([batch.partition for batch in batches] or list(self._progress), error)

    def _advance(self, batches: list[PartitionBatch]) -> None:
        for batch in batches:
            progress = self._progress[batch.partition]
            progress.position, progress.give_up_at = batch.until, None
            self.result.positions[batch.partition] = batch.until
            self.result.records += len(batch.records)
        self.result.batches += 1

    def _slices(self, polled: Mapping[int, Polled]) -> list[PartitionBatch]:
        """Return the batches that advance a partition; records of a waiting partition are read again later."""
        batches = []
        for partition, share in sorted(polled.items()):
            progress = self._progress.get(partition)
            if progress is None or progress.retry_at is not None:
                continue
            if share.until > progress.position:
                batches.append(PartitionBatch(partition, progress.position, share.until, share.records))
            elif not share.records:
                progress.give_up_at = None  # at the log's end there is nothing left that could fail
        return batches

    # Rebalance callbacks, called by the member inside its poll.

    def assigned(self, partitions: Collection[int]) -> Mapping[int, int]:
        self.result.rebalances += 1
        self._settled, self._regain_by = Deadline(self._settings.settle_s), None
        return self._take_over(partitions, self._poll_deadline())

    def revoked(self, partitions: Collection[int]) -> None:
        ours = [p for p in partitions if self._progress.pop(p, None)]
        if ours:
            self._handler.revoked(ours, Deadline(self._settings.session_timeout_s))
            self._send_last_report(ours, Deadline(self._settings.session_timeout_s))

    def lost(self, partitions: Collection[int]) -> None:
        ours = [p for p in partitions if self._progress.pop(p, None)]
        self._send_nothing_of(partitions)
        # Until partitions are assigned again, nobody is known to work on them: this does not count as drained.
        self._regain_by = Deadline(self._settings.patience_s)
        self._tell(
            f"partitions {sorted(partitions)} were lost: this member was not heard for long, and others may own them"
        )
        self._handler.lost(ours)

    def _take_over(self, partitions: Collection[int], deadline: Deadline) -> Mapping[int, int]:
        """Fetch offsets from Kafka, then ask the handler where to start; the first offset if it raises `RetryLater`."""
        if not partitions:
            return {}
        try:
            assignments = self._describe_assigned(partitions, deadline.part(_ASK_S))
        except (KafkaFailure, DeadlineExceeded) as error:
            return self._take_over_later(partitions, RetryLater(f"their offsets can't be read: {error}"))
        added: dict[int, _PartitionProgress] = {}
        waiting: dict[int, int] = {}
        if without := sorted(set(partitions).difference(assignment.partition for assignment in assignments)):
            for partition in without if self._settings.follow else ():
                self._progress.pop(partition, None)  # its patience begins anew: only a drain needs all partitions
            waiting = self._take_over_later(without, RetryLater(no_leader(self._settings.topic, without), _LEADER_S))
        for assignment in assignments:
            # After a wait a drain still ends where it was to end, or at a log that has become shorter.
            kept = self._progress.get(assignment.partition) or _PartitionProgress(NOWHERE, NOWHERE)
            goal = assignment.last_stable if kept.goal == NOWHERE else min(kept.goal, assignment.last_stable)
            added[assignment.partition] = _PartitionProgress(assignment.first, goal, None, kept.give_up_at)
        self._progress |= added
        try:
            positions = self._handler.assigned(assignments, deadline)
        except RetryLater as error:
            self._postpone(added, error)
            return {**waiting, **{p: progress.position for p, progress in added.items()}}
        for partition, position in positions.items():
            added[partition].position = position
        for one in assignments:  # not that of a topic that was deleted: it would be committed as this one's
            if one.reported is not None and one.committed_topic_id in {None, one.topic_id}:
                self._reported.setdefault(one.partition, one.reported)
        return {**waiting, **positions}

    def _take_over_later(self, partitions: Collection[int], error: RetryLater) -> dict[int, int]:
        """Make partitions wait whose offsets cannot be read, like those whose store is down."""
        added = {p: self._progress.get(p) or _PartitionProgress(NOWHERE, NOWHERE) for p in partitions}
        self._progress |= added
        self._postpone(partitions, error)
        return {p: progress.position for p, progress in added.items()}

    def _describe_assigned(self, partitions: Collection[int], deadline: Deadline) -> list[AssignedPartition]:
        """Return the state of those partitions that have a leader."""
        settings = self._settings
        self._admin = admin(settings.connection)  # a cached client may have lost the brokers for good (`is_cut_off`)
        self._check_same_topic(deadline)
        led = sorted(set(partitions).difference(leaderless(self._admin, settings.topic, deadline)))
        if not led:
            return []
        whose = (settings.connection, settings.group, settings.topic)
        known = offsets.committed_by(*whose, led, READ_UNCOMMITTED, deadline)
        logs = offsets.log_offsets(self._admin, settings.topic, led, deadline)  # later: no end is below a position
        assignments = []
        for p in led:
            committed, log = known[p], logs[p]
            position, of = (None, None) if committed is None else (committed.offset, topic_id_in(committed))
            place = (settings.topic, self._topic.topic_id, p)
            assignments.append(
                AssignedPartition(*place, position, log.first, log.last_stable, of, position, end=log.end)
            )
        return assignments

    def _check_topic_if_due(self, every_s: float) -> None:
        """Check the topic between takeovers, too: the client reads a recreated one on from its old position (seen)."""
        if time.monotonic() - self._topic_checked_at >= every_s:
            pause_s = 0.0
            try:
                self._check_same_topic(Deadline(_TOPIC_ASK_S))
            except (KafkaFailure, DeadlineExceeded):
                self._admin, pause_s = admin(self._settings.connection), _TOPIC_PAUSE_S
            self._topic_checked_at = time.monotonic() + pause_s

    def _check_same_topic(self, deadline: Deadline) -> None:
        """Check that the topic is still the one of the start, to which positions and the reported topic id belong."""
        now = topics.describe(self._admin, [self._topic.name], deadline).get(self._topic.name)
        if now is None:
            return
        if now.topic_id != self._topic.topic_id:
            raise Refused(
                f"topic-recreated: {self._topic.name} had id {self._topic.topic_id} when this program started, and has "
                f"id {now.topic_id} now: it was deleted and recreated; a restart says where to continue"
            )
        if now.partitions > self._topic.partitions:
            self._topic = now
            if self._settings.partitions is None:
                self._member.topic_grew(now.partitions)

    def _postpone(self, partitions: Collection[int], error: RetryLater | NotOwned) -> None:
        delay_s = error.delay_s if isinstance(error, RetryLater) else 0.5
        self.result.postponed += 1
        self._tell_wait(partitions, str(error))
        for partition in partitions:
            progress = self._progress[partition]
            progress.give_up_at = progress.give_up_at or Deadline(self._settings.patience_s)
            if progress.give_up_at.expired():
                raise Refused(
                    f"{self._settings.topic}[{partition}] made no progress for "
                    f"{self._settings.patience_s:g} s (--patience-s): {error}; correct it, then run again: it "
                    "continues where it was"
                ) from error
            progress.retry_at = Deadline(delay_s)

    def _tell_wait(self, partitions: Collection[int], reason: str) -> None:
        """Report a wait once, and every few seconds while it lasts: an unavailable store is tried twice a second."""
        waiting = list(partitions) or [NOWHERE]
        if any(self._waiting.get(p) != reason for p in waiting) or self._waiting_again.expired():
            self._waiting |= dict.fromkeys(waiting, reason)
            self._waiting_again = Deadline(_WAITING_AGAIN_S)
            self._tell(f"{f'partitions {sorted(partitions)} wait' if partitions else 'this member waits'}: {reason}")

    def _pause_waiting(self) -> None:
        self._member.pause([p for p, progress in self._progress.items() if progress.retry_at is not None])

    def _retry(self, deadline: Deadline) -> None:
        due = [
            p for p, progress in self._progress.items() if progress.retry_at is not None and progress.retry_at.expired()
        ]
        if due:
            positions = self._take_over(due, deadline)
            self._member.seek(positions)
            ready = [p for p in due if self._progress[p].retry_at is None]
            self._member.resume(ready)
            self._pause_waiting()

    def _drained(self) -> bool:
        if not self._progress:
            self._check_regained()
            settled = self._regain_by is None and self._settled.expired()
            return self.result.rebalances > 0 and settled and self._member.all_owned()
        return all(
            progress.retry_at is None and progress.position >= progress.goal for progress in self._progress.values()
        )

    def _check_regained(self) -> None:
        if self._regain_by is not None and self._regain_by.expired():
            raise Refused(
                f"this member has lost its partitions of {self._settings.topic}, and for "
                f"{self._settings.patience_s:g} s (--patience-s) nobody has told who owns them: check that the brokers "
                "answer, then run again: it continues where it was"
            )

    def _report(self, positions: Mapping[int, int]) -> None:
        for partition in positions.keys() & self._progress.keys():
            self._progress[partition].give_up_at = None
        self._unreported |= positions
        self._reported |= positions
        if self._report_due.expired():
            self._send_report()

    def _send_report(self) -> None:
        """Commit positions at most once per second, without waiting for the answer."""
        self._member.report(self._unreported, metadata(self._topic.topic_id))
        self._unreported, self._report_due = {}, Deadline(_REPORT_S)

    def _send_last_report(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Commit the positions of partitions that are released, also those sent before: nobody knows what was kept."""
        last = {p: self._reported[p] for p in partitions if p in self._reported}
        self._member.report(last, metadata(self._topic.topic_id), wait=deadline)
        self._send_nothing_of(partitions)

    def _send_nothing_of(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            self._reported.pop(partition, None)
            self._unreported.pop(partition, None)

    def _leave(self) -> None:
        """Release the partitions, so that no member has to wait for the session time-out."""
        deadline = Deadline(_LEAVE_S)
        ours, self._progress = sorted(self._progress), {}
        try:
            if ours:
                self._handler.revoked(ours, deadline)
                self._send_last_report(ours, Deadline(_LAST_REPORT_S))
        finally:
            self._member.close(deadline)
