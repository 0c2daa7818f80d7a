"""Orders become deltas, deltas become totals; each range in one Kafka transaction with its state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

from brew.deadline import Deadline
from brew.errors import Fenced, Refused
from brew.fault_injection import KillAt
from brew.kafka.clients import AdminClient
from brew.kafka.log_reader import LogRecord
from brew.kafka.offsets import log_offsets
from brew.kafka.topics import Topic
from brew.kafka.transaction import KafkaTransaction
from brew.names import CrashPoint
from brew.offsets import Committed, LogOffsets
from brew.transaction import Write, queue, transact
from downstream.totals.state_store import (
    CHECKPOINT_KEY,
    Store,
    StoreCheckpoint,
    checkpoint_value,
    counted_before,
    counted_value,
    input_key,
    restore,
)
from downstream.totals.topics import TotalsSettings, position, recreated
from downstream.totals.total import Total, deltas

_CUT_S, _PAUSE_S = 10.0, 0.1
BY_KEY = -1
"""The partition chosen by the key's murmur2 hash."""


class Output(NamedTuple):
    topic: str
    partition: int
    key: bytes
    value: bytes


class StageTask(Protocol):
    """One partition's work, in this order, by one thread at a time; ask for ``client`` each time, it is replaced."""

    def ready(self, position: int, *, fresh: bool) -> str | None:
        """Move to the committed offset after fence and locate (``fresh``: none); return what contradicts it, if any."""
        ...

    def take(self, records: Sequence[LogRecord]) -> None: ...

    def outputs(self, until: int) -> Iterator[Output]:
        """Yield everything that the transaction writes."""
        ...

    def committed(self) -> None:
        """Keep the changes, because the transaction is committed."""
        ...

    def dropped(self) -> None:
        """Drop the changes, because the transaction failed or its outcome is unknown."""
        ...


@dataclass
class Split:
    """Turns orders into deltas, by customer and tier; notes in the changelog once that its partition is counted."""

    settings: TotalsSettings
    client: Callable[[], AdminClient]
    source: Topic
    partition: int
    changelog_partitions: int
    _found: dict[bytes, Total] = field(default_factory=dict)
    _noted: bool = False

    def ready(self, position: int, *, fresh: bool) -> str | None:  # noqa: ARG002 - the port's shape
        self._found = {}
        return self._counted_before() if fresh else None

    def _counted_before(self) -> str | None:
        """Return the contradiction if orders of this partition were counted, although it has no committed offset."""
        settings, where = self.settings, f"{self.source.name}[{self.partition}]"
        counted = counted_before(settings, self.client(), self._noted_in, input_key(self.partition))
        if counted is None:
            return None
        until, topic_id = counted
        if topic_id != self.source.topic_id:
            return recreated(where, self.source.topic_id, topic_id)
        return (
            f"offsets-vanished: group {settings.group!r} has no committed offset in {where}, but counted its orders, "
            f"those below {until} at least; they would be counted twice. Brokers delete an offset "
            "offsets.retention.minutes after its last commit. Count again with another --group and another --output"
        )

    @property
    def _noted_in(self) -> int:
        return self.partition % self.changelog_partitions

    def take(self, records: Sequence[LogRecord]) -> None:
        add(self._found, deltas(record.value() for record in records))

    def outputs(self, until: int) -> Iterator[Output]:
        for key, total in self._found.items():
            yield Output(self.settings.deltas, BY_KEY, key, total.encode())
        if not self._noted:
            value = counted_value(until, self.source.topic_id)
            yield Output(self.settings.changelog, self._noted_in, input_key(self.partition), value)

    def committed(self) -> None:
        self._found, self._noted = {}, True

    def dropped(self) -> None:
        self._found = {}


@dataclass
class Aggregate:
    """Adds the deltas of a partition to the totals in the store."""

    settings: TotalsSettings
    client: Callable[[], AdminClient]
    partition: int
    store: Store
    restored: Callable[[int, int, float], None] = lambda _partition, _records, _seconds: None
    stop: threading.Event = field(default_factory=threading.Event)
    """Ends a restore, so that a large state is closed within the time that a signal leaves, and its rest read later."""
    _found: dict[bytes, Total] = field(default_factory=dict)
    _changes: dict[bytes, bytes | None] = field(default_factory=dict)
    _until: int = -1
    _keys: int = 0
    _least_end: int = 0
    """The changelog's end is at least this: where it was before the last transaction, and what that one wrote."""

    def ready(self, position: int, *, fresh: bool) -> str | None:
        """Restore the store unless it is already at the committed offset."""
        self.dropped()
        if fresh and position > 0:
            return (
                f"range-lost: {self.settings.deltas}[{self.partition}] begins at {position}, and none of it was ever "
                "added; earlier records were deleted. Count again with another --group and another --output"
            )
        checkpoint = self.store.checkpoint
        if checkpoint is not None and checkpoint.until > position:
            self.store.wipe()  # it holds changes that were never committed, or that an operator took back
            checkpoint = None
        if checkpoint is None or checkpoint.until != position:
            self._restore()
            checkpoint = self.store.checkpoint
        if (checkpoint is None) == fresh and (checkpoint is None or checkpoint.until == position):
            return None if checkpoint is None else self._lost_tail(checkpoint)
        holds = "nothing" if checkpoint is None else f"the deltas below {checkpoint.until}"
        return (
            f"position-moved: {self.settings.changelog}[{self.partition}] holds {holds}, and the group stands at "
            f"{'no offset' if fresh else position} of {self.settings.deltas}[{self.partition}]; "
            "deltas would be counted twice or skipped. Count again with another --group and another --output"
        )

    def _lost_tail(self, checkpoint: StoreCheckpoint) -> str | None:
        """
        Return the contradiction if the changelog's tail was cut off: a later restore would find older totals in it.
        Asked with each transaction: after one more, the changelog would have the group's offset again, and look whole.
        The store has a total of another holder only after a restore, so its checkpoint stays as it is until a commit.
        """
        least, patience = max(self._least_end, checkpoint.changelog), Deadline(_CUT_S)
        log, at = self.settings.changelog, self.partition
        while (end := log_offsets(self.client(), log, [at], Deadline(self.settings.timeout_s))[at].end) < least:
            if patience.expired():  # until then it may be a broker that has lost its leadership
                return (
                    f"changelog-damaged: {self.settings.changelog}[{self.partition}] ends at {end}, but this program "
                    f"wrote it up to {least}: its log was truncated (unclean leader election), and lacks totals. Count "
                    "again with another --group and another --output"
                )
            time.sleep(_PAUSE_S)
        self._least_end = end
        return None

    def _restore(self) -> None:
        began = time.monotonic()
        records = restore(self.settings, self.client(), self.partition, self.store, self.stop)
        if records:
            self.restored(self.partition, records, time.monotonic() - began)

    def take(self, records: Sequence[LogRecord]) -> None:
        for record in records:
            key, value = record.key(), record.value()
            where = f"foreign-delta: {self.settings.deltas}[{self.partition}] offset {record.offset()}"
            if key is None or value is None:
                raise Refused(
                    f"{where} lacks key or value, so this program did not write it; only its group may write there"
                )
            add(self._found, {key: Total.read(where, value)})

    def outputs(self, until: int) -> Iterator[Output]:
        partition, changelog, output = self.partition, self.settings.changelog, self.settings.output
        keys = list(self._found)
        before = self.store.get(keys)
        damaged = f"changelog-damaged: {changelog}[{partition}]"
        for key, old in zip(keys, before, strict=True):
            total = self._found[key] if old is None else Total.read(damaged, old).plus(self._found[key])
            self._changes[key] = value = total.encode()
            yield Output(changelog, partition, key, value)
            yield Output(output, partition, key, total.document(key))
        checkpoint = self.store.checkpoint
        self._until = until
        self._keys = (0 if checkpoint is None else checkpoint.keys) + before.count(None)
        yield Output(changelog, partition, CHECKPOINT_KEY, checkpoint_value(until, self._keys))

    def committed(self) -> None:
        """The store changes only now: an abort would otherwise leave changes in it that are in no log."""
        # With the checkpoint's record and the marker. All below is in the store, as nobody else wrote: no fence came.
        self._least_end += len(self._changes) + 2
        self.store.write(self._changes, StoreCheckpoint(self._until, self._least_end, self._keys))
        self.dropped()

    def dropped(self) -> None:
        self._found, self._changes = {}, {}


def add(totals: dict[bytes, Total], more: dict[bytes, Total]) -> None:
    for key, total in more.items():
        before = totals.get(key)
        totals[key] = total if before is None else before.plus(total)


Reader = Callable[[int, int], Iterable[list[LogRecord]]]
"""(start, until) -> the visible records of `[start, until)`, in batches."""


@dataclass(frozen=True, slots=True)
class Source:
    """The partition to read, its log's offsets when this attempt was planned, and what is committed with its offset."""

    topic: str
    topic_id: str
    partition: int
    log: LogOffsets
    layout: str = ""

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Result of an attempt: `[start, until)` is committed; empty if another process was ahead."""

    start: int
    until: int
    records: int = 0


def advance(
    source: Source,
    until: int,
    work: StageTask,
    read: Reader,
    kafka: KafkaTransaction,
    timeout_s: float,
    crash: KillAt | None = None,
) -> AttemptResult:
    """
    Process `[committed, until)` in one transaction and advance the committed offset.

    The state is restored, if necessary, only after *locate*: no other process can then be adding to the changelog. The
    range is read before the transaction opens, so that readers need not wait. The state changes after the commit.

    Raises:
        Fenced: a newer attempt owns this partition.
        Refused: the position cannot be trusted.
        Abortable, Fatal, DeadlineExceeded: nothing or all of this attempt is visible; the next one finds out.
    """
    result = AttemptResult(until, until)

    def may_crash(point: CrashPoint) -> None:
        if crash is not None:
            crash.at(point, source.topic, kafka)

    def decide(committed: Committed | None) -> Write | None:
        nonlocal result
        start = position(str(source), source.topic_id, committed, source.log)
        contradiction = work.ready(start.offset, fresh=committed is None)
        if contradiction is not None:
            # A newer holder may have committed during the restore; else it is a contradiction.
            if kafka.locate(Deadline(timeout_s)) != committed:
                raise Fenced(f"{source}: another process continued while the state was restored")
            raise Refused(contradiction)
        result = AttemptResult(start.offset, max(start.offset, until))
        if start.offset >= until:
            return None
        for batch in read(start.offset, until):
            work.take(batch)
            result = replace(result, records=result.records + len(batch))
        produce = partial(_produce_all, work, until, kafka, crash, source)
        return Write(produce, lambda: until, start.metadata(source.topic_id, source.layout), Deadline(timeout_s))

    try:
        if transact(kafka, decide, Deadline(timeout_s), may_crash):
            work.committed()
            may_crash(CrashPoint.BEFORE_REPORT)
    except Exception:
        # A commit that fails may have been applied: keep the state as it was, the next attempt's locate finds out.
        work.dropped()
        raise
    return result


def _produce_all(
    work: StageTask, until: int, kafka: KafkaTransaction, crash: KillAt | None, source: Source, deadline: Deadline
) -> None:
    outputs = list(work.outputs(until))
    middle = len(outputs) // 2
    _produce(outputs[:middle], kafka, deadline)
    if crash is not None:
        kafka.flush(deadline)
        crash.at(CrashPoint.MID_PRODUCE, source.topic, kafka)
    _produce(outputs[middle:], kafka, deadline)


def _produce(outputs: Iterable[Output], kafka: KafkaTransaction, deadline: Deadline) -> None:
    with kafka.mapped("produce"):
        for topic, partition, key, value in outputs:
            queue(kafka, deadline, topic, value, key, partition)
