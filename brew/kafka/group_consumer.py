"""A consumer that owns partitions, through its group or by name; the one door for programs that keep consuming."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.clients import SILENT_S, consumer, is_cut_off, mapped
from brew.kafka.log_reader import LogRecord, ends_partition
from brew.names import READ_COMMITTED

__all__ = ["NOWHERE", "Listener", "LogRecord", "Member", "MemberSettings", "Polled"]

NOWHERE: int = OFFSET_END
"""Behind all that is there: for an owned partition that nobody can tell the position of yet, until it is sought."""

_NO_POSITION = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the library's public name
# The library repairs these by itself; a member that polled too late hears of it through `lost`.
_PASSED_OVER = {KafkaError._MAX_POLL_EXCEEDED, KafkaError.UNKNOWN_TOPIC_OR_PART}  # noqa: SLF001

_METADATA_S = 10.0
_HEARTBEAT_S = 1.0  # members hear of a rebalance in the answer to a heartbeat, so this is how long one takes


class Listener(Protocol):
    """Who is told which partitions come and go, from inside `Member.poll` and on its thread."""

    def assigned(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Take partitions over; return the offset to read each from."""
        ...

    def revoked(self, partitions: Collection[int]) -> None:
        """Give partitions back; nobody else has them before this returns."""
        ...

    def lost(self, partitions: Collection[int]) -> None:
        """Partitions are gone; somebody else may have them already."""
        ...


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """
    One member's place in its group.

    ``max_poll_interval_s``: between two polls; a member that takes longer loses its partitions.
    ``session_timeout_s``: without a heartbeat; the time until others get a dead member's partitions.
    """

    connection: Connection
    group: str
    topic: str
    max_poll_interval_s: float = 60.0
    session_timeout_s: float = 10.0
    isolation: str = READ_COMMITTED


@dataclass(slots=True)
class Polled:
    """One partition's share of a poll: its records in order, and the offset to read next."""

    records: list[LogRecord] = field(default_factory=list)
    until: int = -1


class Member:
    """
    A consumer of one topic that commits nothing by itself and never starts where nobody told it to.

    Used by one thread. Rebalances are cooperative: partitions that stay are worked on while others move.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self._topic = settings.topic
        self._owned: set[int] = set()
        self._listener: Listener | None = None
        self._failure: BaseException | None = None
        more: dict[str, str | int | bool] = {
            "partition.assignment.strategy": "cooperative-sticky",
            "max.poll.interval.ms": int(settings.max_poll_interval_s * 1000),
            "session.timeout.ms": int(settings.session_timeout_s * 1000),
            "heartbeat.interval.ms": int(min(_HEARTBEAT_S, settings.session_timeout_s / 4) * 1000),
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 65_536,
        }
        self._connection = settings.connection
        self._made = partial(consumer, settings.connection, settings.group, settings.isolation, **more)
        self._consumer: Consumer = self._made()
        self._by_group = False
        self._heard_at = time.monotonic()

    def join(self, listener: Listener) -> None:
        """Become a member of the group; partitions come through ``listener`` during `poll`."""
        self._listener, self._by_group = listener, True
        self._subscribe()

    def _subscribe(self) -> None:
        with mapped("subscribe"):
            self._consumer.subscribe(
                [self._topic],
                on_assign=lambda _, given: self._guarded(self._assigned, given),
                on_revoke=lambda _, taken: self._guarded(self._revoked, taken),
                on_lost=lambda _, taken: self._guarded(self._lost, taken),
            )

    def take(self, partitions: Collection[int], listener: Listener) -> None:
        """Own exactly these partitions without asking the group; who else reads them is the caller's business."""
        self._listener = listener
        positions = listener.assigned(partitions)
        with mapped("assign"):
            # A topic that this client has not heard of is only asked for by a timer, a second later (measured).
            self._consumer.list_topics(self._topic, timeout=_METADATA_S)
        self._add(positions)

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._owned)

    def poll(self, limit: int, timeout_s: float) -> dict[int, Polled]:
        """
        Up to ``limit`` records of owned partitions, as partition -> records and next offset.

        A partition whose end was reached is there too, perhaps without records: its next offset lies behind the
        markers and aborted records that no reader sees.

        Raises:
            Refused: a position is not in the log (any more).
            KafkaFailure: what the library can't repair by itself.
        """
        with mapped("poll"):
            got = self._consumer.consume(limit, timeout=max(0.0, timeout_s))
        self._raise_failure()
        if got:
            self._heard_at = time.monotonic()
        else:
            self._replace_if_cut_off()
        found: dict[int, Polled] = defaultdict(Polled)
        for message in cast("list[LogRecord]", got):
            partition, error = message.partition(), message.error()
            if error is None:
                if partition in self._owned:
                    share = found[partition]
                    share.records.append(message)
                    share.until = message.offset() + 1
            elif self._ends(error, partition) and partition in self._owned:
                found[partition].until = max(found[partition].until, message.offset())
        return dict(found)

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read owned partitions from other offsets; records fetched from the old ones are never handed out."""
        asked = {p: offset for p, offset in positions.items() if p in self._owned}
        with mapped("seek"):
            self._consumer.incremental_unassign([TopicPartition(self._topic, p) for p in asked])
        self._add(asked)

    def pause(self, partitions: Iterable[int]) -> None:
        """Hand out nothing of these partitions until `resume`, and stay in the group."""
        with mapped("pause"):
            self._consumer.pause([TopicPartition(self._topic, p) for p in partitions if p in self._owned])

    def resume(self, partitions: Iterable[int]) -> None:
        with mapped("resume"):
            self._consumer.resume([TopicPartition(self._topic, p) for p in partitions if p in self._owned])

    def report(self, positions: Mapping[int, int], metadata: str, *, wait: bool = False) -> None:
        """
        Tell Kafka the group's position; a failure is passed over: who depends on it reads some records again.

        ``wait``: until the broker has answered (at most the library's own request time-out).
        """
        offsets = [TopicPartition(self._topic, p, offset, metadata) for p, offset in positions.items()]
        if offsets:
            with contextlib.suppress(KafkaException):
                if wait:
                    self._consumer.commit(offsets=offsets, asynchronous=False)
                else:
                    self._consumer.commit(offsets=offsets, asynchronous=True)

    def group_metadata(self) -> Any:
        """What a transactional producer sends with offsets: the coordinator refuses an older generation."""
        return self._consumer.consumer_group_metadata()

    def close(self, deadline: Deadline) -> bool:
        """Leave the group; False when the brokers took longer than the deadline, which does no harm."""
        self._listener = None  # whoever closes has said good-bye to the partitions before
        leaving = threading.Thread(target=self._leave, name="leave-group", daemon=True)
        leaving.start()
        leaving.join(deadline.remaining_s())
        return not leaving.is_alive()

    def _leave(self) -> None:
        _close(self._consumer)

    def _replace_if_cut_off(self) -> None:
        """Begin again with a new consumer where a silent one reaches no broker any more; its partitions were lost."""
        if time.monotonic() - self._heard_at < SILENT_S:
            return
        self._heard_at = time.monotonic()
        if not is_cut_off(self._consumer, self._connection, self._topic):
            return
        # It can tell nobody that it leaves, so nobody waits for it.
        threading.Thread(target=_close, args=(self._consumer,), name="give-up-consumer", daemon=True).start()
        self._consumer = self._made()
        gone, self._owned = sorted(self._owned), set()
        if self._listener is None:
            return
        if gone:
            self._listener.lost(gone)
        if self._by_group:
            self._subscribe()
        elif gone:
            self._add(self._listener.assigned(gone))

    # Called by the library inside consume() and close(); what they raise would get lost in there.

    def _guarded(self, what: Any, partitions: list[TopicPartition]) -> None:
        try:
            what([one.partition for one in partitions if one.topic == self._topic])
        except BaseException as error:  # noqa: BLE001 - leaves from `poll`, where it can be handled
            self._failure = self._failure or error

    def _assigned(self, partitions: list[int]) -> None:
        if self._listener is None:
            return
        self._add(self._listener.assigned(partitions))

    def _revoked(self, partitions: list[int]) -> None:
        try:
            if self._listener is not None:
                self._listener.revoked(partitions)
        finally:
            self._drop(partitions)

    def _lost(self, partitions: list[int]) -> None:
        try:
            if self._listener is not None:
                self._listener.lost(partitions)
        finally:
            self._drop(partitions)

    def _add(self, positions: Mapping[int, int]) -> None:
        with mapped("assign"):
            self._consumer.incremental_assign([TopicPartition(self._topic, p, o) for p, o in positions.items()])
        self._owned |= positions.keys()

    def _drop(self, partitions: list[int]) -> None:
        gone = [TopicPartition(self._topic, p) for p in partitions if p in self._owned]
        self._owned -= set(partitions)
        with mapped("unassign"):
            self._consumer.incremental_unassign(gone)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _ends(self, error: KafkaError, partition: int) -> bool:
        if error.code() == _NO_POSITION:
            raise Refused(
                f"{self._topic}[{partition}] can't be read from where it was left: {error.str()}; retention or a "
                "recreated topic took those records. Set the position by hand if that is accepted, then start again"
            )
        with mapped(f"poll of {self._topic}[{partition}]"):
            return ends_partition(error, _PASSED_OVER)


def _close(client: Consumer) -> None:
    with contextlib.suppress(KafkaException, RuntimeError):
        client.close()
