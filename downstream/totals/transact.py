"""One range of one partition in one Kafka transaction: the six steps, with state that follows the commit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from downstream.totals.position import Position, position
from downstream.totals.work import Output, Work
from protocol.deadline import Deadline
from protocol.errors import BrewError, Fenced, Refused
from protocol.kafka.scan import LogRecord
from protocol.kafka.transaction import KafkaTransaction
from protocol.names import CrashPoint
from protocol.position import LogOffsets
from protocol.steps import abort_at_once, queue


class Crash(Protocol):
    """Something that may kill this process."""

    def at(self, point: CrashPoint, topic: str, kafka: KafkaTransaction) -> None:
        """``topic``: the one that the transaction reads."""
        ...


class Reader(Protocol):
    """Reads the visible records of `[start, until)`."""

    def __call__(self, start: int, until: int) -> Iterable[list[LogRecord]]: ...


@dataclass(frozen=True, slots=True)
class Source:
    """The partition that is read, and what its log held when this attempt was planned."""

    topic: str
    topic_id: str
    partition: int
    log: LogOffsets

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class Done:
    """What an attempt did: `[start, until)` is committed; empty when somebody had been there before."""

    start: int
    until: int
    records: int = 0


def transact(
    source: Source,
    until: int,
    work: Work,
    read: Reader,
    kafka: KafkaTransaction,
    timeout_s: float,
    crash: Crash | None = None,
) -> Done:
    """
    Work off `[committed, until)` and move the committed offset behind it.

    1. fence: whoever held this transactional id is out, and its open transaction aborted.
    2. locate: the stable committed offset. Only now the state is restored if it stands elsewhere: nobody else can be
       adding to the changelog any more. Then the range is read, before anything is open that readers would wait for.
    3. begin.
    4. produce: results, and for totals the changelog beside them; then flush.
    5. send offsets: the range's end.
    6. commit. Only then the state changes.

    Raises:
        Fenced: a newer attempt owns this partition.
        Refused: the position can't be trusted.
        Abortable, Fatal, DeadlineExceeded: nothing is visible of this attempt, or all of it; the next one finds out.
    """
    kafka.fence(Deadline(timeout_s))  # 1
    found = kafka.locate(Deadline(timeout_s))  # 2
    _may_crash(crash, CrashPoint.AFTER_FENCE, source, kafka)
    at = position(str(source), source.topic_id, found, source.log)
    contradiction = work.ready(at.offset, fresh=found is None)
    if contradiction is not None:
        # A newer holder may have committed while the state was restored; only an offset that stays is a contradiction.
        if kafka.locate(Deadline(timeout_s)) != found:
            raise Fenced(f"{source}: somebody else went on while the state was restored")
        raise Refused(contradiction)
    if at.offset >= until:
        return Done(at.offset, at.offset)
    records = 0
    for batch in read(at.offset, until):
        work.take(batch)
        records += len(batch)
    _write(source, until, at, work, kafka, Deadline(timeout_s), crash)
    _may_crash(crash, CrashPoint.AFTER_COMMIT, source, kafka)
    work.committed()
    _may_crash(crash, CrashPoint.BEFORE_REPORT, source, kafka)
    return Done(at.offset, until, records)


def _write(
    source: Source,
    until: int,
    at: Position,
    work: Work,
    kafka: KafkaTransaction,
    deadline: Deadline,
    crash: Crash | None,
) -> None:
    """Steps 3 to 6."""
    kafka.begin()  # 3
    try:
        outputs = list(work.outputs(until))
        middle = len(outputs) // 2
        _produce(outputs[:middle], kafka, deadline)  # 4
        if crash is not None:
            kafka.flush(deadline)
            crash.at(CrashPoint.MID_PRODUCE, source.topic, kafka)
        _produce(outputs[middle:], kafka, deadline)
        kafka.flush(deadline)
        _may_crash(crash, CrashPoint.AFTER_FLUSH, source, kafka)
        kafka.send_offsets(until, Position(until, at.began).metadata(source.topic_id), deadline)  # 5
        _may_crash(crash, CrashPoint.AFTER_SEND_OFFSETS, source, kafka)
    except Exception:
        work.dropped()
        abort_at_once(kafka)
        raise
    _may_crash(crash, CrashPoint.COMMIT_IN_FLIGHT, source, kafka)
    try:
        kafka.commit(deadline)  # 6
    except BrewError:
        # It may have been applied: the state stays where it was, and the next attempt's locate tells.
        work.dropped()
        raise


def _produce(outputs: Iterable[Output], kafka: KafkaTransaction, deadline: Deadline) -> None:
    with kafka.mapped("produce"):
        for topic, partition, key, value in outputs:
            queue(kafka, deadline, topic, value, key, partition)


def _may_crash(crash: Crash | None, point: CrashPoint, source: Source, kafka: KafkaTransaction) -> None:
    if crash is not None:
        crash.at(point, source.topic, kafka)
