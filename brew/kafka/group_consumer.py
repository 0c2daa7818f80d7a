"""A consumer that owns partitions, assigned by its group or by the caller; for programs that keep consuming."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.clients import SILENT_S, consumer, is_cut_off, mapped
from brew.kafka.log_reader import LogRecord, ends_partition
from brew.kafka.topic_reader import headers_of
from brew.names import READ_COMMITTED

NOWHERE: int = OFFSET_END
"""The log's end: where an owned partition starts while its position is unknown, until `Member.seek`."""

_NO_POSITION = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the library's public name
# The library recovers from these by itself; a member that polled too late is informed through `lost`.
_IGNORED = {KafkaError._MAX_POLL_EXCEEDED, KafkaError.UNKNOWN_TOPIC_OR_PART}  # noqa: SLF001

_METADATA_S = 10.0
_HEARTBEAT_S = 1.0  # members learn of a rebalance from the response to a heartbeat


class Listener(Protocol):
    """Callbacks for assigned and revoked partitions, called within `Member.poll` on its thread."""

    def assigned(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Start working on these partitions; return the offset to read each one from."""
        ...

    def revoked(self, partitions: Collection[int]) -> None:
        """Stop working on these partitions; no other member gets them before this returns."""
        ...

    def lost(self, partitions: Collection[int]) -> None:
        """Handle the loss of these partitions; another member may own them already."""
        ...


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """
    Settings of one member. ``max_poll_interval_s``: the longest time between two polls; a slower member loses its
    partitions. ``session_timeout_s``: the longest time without a heartbeat; after it, other members get the partitions.
    """

    connection: Connection
    group: str
    topic: str
    max_poll_interval_s: float = 60.0
    session_timeout_s: float = 10.0
    isolation: str = READ_COMMITTED


@dataclass(slots=True)
class Polled:
    """One partition's records of a poll in order, and the next offset to read."""

    records: list[LogRecord] = field(default_factory=list)
    until: int = -1


class Member:
    """A consumer of one topic, in one thread, that commits and starts only where it is told; cooperative rebalances."""

    def __init__(self, settings: MemberSettings) -> None:
        self._topic = settings.topic
        self._owned: set[int] = set()
        self._listener: Listener | None = None
        self._failure: BaseException | None = None
        options: dict[str, str | int | bool] = {
            "partition.assignment.strategy": "cooperative-sticky",
            "max.poll.interval.ms": int(settings.max_poll_interval_s * 1000),
            "session.timeout.ms": int(settings.session_timeout_s * 1000),
            "heartbeat.interval.ms": int(min(_HEARTBEAT_S, settings.session_timeout_s / 4) * 1000),
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 65_536,
        }
        self._connection = settings.connection
        self._made = partial(consumer, settings.connection, settings.group, settings.isolation, **options)
        self._consumer: Consumer = self._made()
        self._by_group = False
        self._heard_at = time.monotonic()

    def join(self, listener: Listener) -> None:
        """Join the group; partitions come through ``listener`` during `poll`."""
        self._listener, self._by_group = listener, True
        self._subscribe()

    def _subscribe(self) -> None:
        whose = self._consumer
        with mapped("subscribe"):
            whose.subscribe(
                [self._topic],
                on_assign=lambda _, partitions: self._run_callback(whose, self._assigned, partitions),
                on_revoke=lambda _, taken: self._run_callback(whose, partial(self._taken, lost=False), taken),
                on_lost=lambda _, taken: self._run_callback(whose, partial(self._taken, lost=True), taken),
            )

    def take(self, partitions: Collection[int], listener: Listener) -> None:
        """Own exactly these partitions, without the group; the caller must make sure that no one else reads them."""
        self._listener = listener
        positions = listener.assigned(partitions)
        with mapped("assign"):
            # Without this the client requests a new topic's metadata a second later, on a timer (measured).
            self._consumer.list_topics(self._topic, timeout=_METADATA_S)
        self._add(positions)

    def topic_grew(self, partitions: int) -> None:
        """Called when the topic has this many partitions now; a group assigns the new ones by itself."""

    @property
    def owned(self) -> frozenset[int]:
        return frozenset(self._owned)

    def all_owned(self) -> bool:
        """Return whether each partition has an owner, this member or another; a group leaves none without."""
        return True

    def poll(self, limit: int, timeout_s: float) -> dict[int, Polled]:
        """
        Return up to ``limit`` records of owned partitions, as partition -> records and next offset, which is past
        markers; a partition whose end was reached is included without records, too.

        Raises:
            Refused: a position is not in the log; or a header's name is not UTF-8, after the records before it.
            KafkaFailure: an error from which the library does not recover on its own.
        """
        with mapped("poll"):
            messages = self._consumer.consume(limit, timeout=max(0.0, timeout_s))
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if messages:
            self._heard_at = time.monotonic()
        else:
            self._replace_if_cut_off()
        polled: dict[int, Polled] = defaultdict(Polled)
        unreadable: set[int] = set()
        for message in cast("list[LogRecord]", messages):
            partition, error = message.partition(), message.error()
            if error is None:
                if partition not in self._owned or partition in unreadable:
                    continue
                if headers_of(message) is None:
                    unreadable.add(partition)
                    self._failure = self._unreadable(message)
                    continue
                batch = polled[partition]
                batch.records.append(message)
                batch.until = message.offset() + 1
            elif self._ends(error, partition) and partition in self._owned - unreadable:
                polled[partition].until = max(polled[partition].until, message.offset())
        return dict(polled)

    def _unreadable(self, record: LogRecord) -> Refused:
        return Refused(
            f"the record at {self._topic}[{record.partition()}] offset {record.offset()} has a header whose name is "
            "not UTF-8, and the client library can't read it; to leave it out, move the position "
            f"from {record.offset()} to {record.offset() + 1}: the group's offset, with claims theirs (`brew claims "
            "set-position`), and a ledger's next_offset in its table kafka_offsets"
        )

    def seek(self, positions: Mapping[int, int]) -> None:
        """Read owned partitions from other offsets; records already fetched are dropped."""
        wanted = {p: offset for p, offset in positions.items() if p in self._owned}
        with mapped("seek"):
            self._consumer.incremental_unassign([TopicPartition(self._topic, p) for p in wanted])
        self._add(wanted)

    def pause(self, partitions: Iterable[int]) -> None:
        """Return no records of these partitions until `resume`, and stay in the group."""
        with mapped("pause"):
            self._consumer.pause([TopicPartition(self._topic, p) for p in partitions if p in self._owned])

    def resume(self, partitions: Iterable[int]) -> None:
        with mapped("resume"):
            self._consumer.resume([TopicPartition(self._topic, p) for p in partitions if p in self._owned])

    def report(self, positions: Mapping[int, int], metadata: str, *, wait: Deadline | None = None) -> None:
        """Commit the position, ``wait`` for the answer at most so long; a failure only makes records be read again."""
        offsets = [TopicPartition(self._topic, p, offset, metadata) for p, offset in positions.items()]
        if offsets:
            commit = partial(self._consumer.commit, offsets=offsets, asynchronous=wait is None)
            if wait is None:
                _ignoring_failure(commit)
            else:
                _in_thread("commit-positions", commit).join(wait.remaining_s())

    def close(self, deadline: Deadline) -> bool:
        """Leave the group; False if that took longer than the deadline, which is harmless."""
        self._listener = None  # the caller has already stopped working on its partitions
        leaving = _in_thread("leave-group", self._consumer.close)
        leaving.join(deadline.remaining_s())
        return not leaving.is_alive()

    def _replace_if_cut_off(self) -> None:
        """Replace a silent consumer that no longer reaches a broker; its partitions count as lost."""
        if time.monotonic() - self._heard_at < SILENT_S:
            return
        self._heard_at = time.monotonic()
        if not is_cut_off(self._consumer, self._connection, self._topic):
            return
        given_up, self._consumer = self._consumer, self._made()
        # It can't tell any broker that it leaves, so don't wait for it.
        _in_thread("give-up-consumer", given_up.close)
        gone, self._owned = sorted(self._owned), set()
        if self._listener is None:
            return
        if gone:
            self._listener.lost(gone)
        if self._by_group:
            self._subscribe()
        elif gone:
            self._add(self._listener.assigned(gone))

    # The library calls these within consume() and close(), and would swallow their exceptions.

    def _run_callback(self, whose: Consumer, callback: Any, partitions: list[TopicPartition]) -> None:
        if whose is not self._consumer:  # it was given up: its partitions are lost already, and this is another thread
            return
        try:
            callback([tp.partition for tp in partitions if tp.topic == self._topic])
        except BaseException as error:  # noqa: BLE001 - `poll` raises it
            self._failure = self._failure or error

    def _assigned(self, partitions: list[int]) -> None:
        if self._listener is not None:
            self._add(self._listener.assigned(partitions))

    def _taken(self, partitions: list[int], *, lost: bool) -> None:
        try:
            if self._listener is not None:
                (self._listener.lost if lost else self._listener.revoked)(partitions)
        finally:
            self._drop(partitions)

    def _add(self, positions: Mapping[int, int]) -> None:
        with mapped("assign"):
            self._consumer.incremental_assign([TopicPartition(self._topic, p, o) for p, o in positions.items()])
        self._owned |= positions.keys()

    def _drop(self, partitions: list[int]) -> None:
        dropped = [TopicPartition(self._topic, p) for p in partitions if p in self._owned]
        self._owned -= set(partitions)
        with mapped("unassign"):
            self._consumer.incremental_unassign(dropped)

    def _ends(self, error: KafkaError, partition: int) -> bool:
        if error.code() == _NO_POSITION:
            raise Refused(
                f"{self._topic}[{partition}] can't be read from its position: {error.str()}; retention deleted those "
                "records, or the topic was recreated. Reset the offset if that loss is acceptable, then start again"
            )
        with mapped(f"poll of {self._topic}[{partition}]"):
            return ends_partition(error, _IGNORED)


def _in_thread(name: str, call: Callable[[], object]) -> threading.Thread:
    """Start a call that the library may hold for longer than there is time."""
    thread = threading.Thread(target=_ignoring_failure, args=(call,), name=name, daemon=True)
    thread.start()
    return thread


def _ignoring_failure(call: Callable[[], object]) -> None:
    with contextlib.suppress(KafkaException, RuntimeError):
        call()
