"""
The kernel: six steps that make records and the offset after them visible together, or never.

Every exactly-once writer of the library goes through `transact`: a range of an input partition
(`brew.range_transaction`), totals, replays of dead letters, restored positions, the sink.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from brew.deadline import Deadline
from brew.errors import BrewError
from brew.names import CrashPoint
from brew.offsets import Committed


class Transaction(Protocol):
    """The broker's side of the six steps; `brew.kafka.transaction.KafkaTransaction` is the real one."""

    produce: Callable[..., None]

    def mapped(self, step: str) -> AbstractContextManager[None]: ...
    def fence(self, deadline: Deadline) -> None: ...
    def locate(self, deadline: Deadline) -> Committed | None: ...
    def begin(self) -> None: ...
    def make_room(self, deadline: Deadline) -> None: ...
    def await_acks(self, deadline: Deadline) -> None: ...
    def flush(self, deadline: Deadline) -> None: ...
    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None: ...
    def commit(self, deadline: Deadline) -> None: ...
    def commit_without_waiting(self) -> None: ...
    def abort(self, deadline: Deadline) -> None: ...


@dataclass(frozen=True, slots=True)
class Write:
    """
    What to write, decided between *locate* and *begin*.

    ``produce`` queues all records within the deadline it gets, or raises; afterwards ``until`` returns the offset to
    commit, with ``metadata``. ``deadline`` is for steps 3 to 6: preparation may take long, while no open transaction
    makes readers wait.
    """

    produce: Callable[[Deadline], None]
    until: Callable[[], int]
    metadata: str
    deadline: Deadline


def transact(
    kafka: Transaction,
    decide: Callable[[Committed | None], Write | None],
    deadline: Deadline,
    may_crash: Callable[[CrashPoint], None] = lambda _point: None,
) -> bool:
    """
    Commit records and the offset after them in one Kafka transaction; False if ``decide`` finds nothing to write.

    1. fence: `init_transactions` ends any lingering transaction of this id.
    2. locate: read the stable committed offset; ``decide`` gets it (None: there is none) and may refuse by raising.
    3. begin.
    4. produce; then flush.
    5. send offsets.
    6. commit.

    ``deadline`` is for steps 1 and 2. ``may_crash`` is called at each crash point except those inside ``produce``.

    Raises:
        Fenced: a newer holder has the transactional id.
        Abortable, Fatal, DeadlineExceeded: either nothing or all of this attempt is visible; the next locate finds out.
    """
    kafka.fence(deadline)  # 1
    committed = kafka.locate(deadline)  # 2
    may_crash(CrashPoint.AFTER_FENCE)
    write = decide(committed)
    if write is None:
        return False
    kafka.begin()  # 3
    try:
        write.produce(write.deadline)  # 4
        kafka.flush(write.deadline)
        may_crash(CrashPoint.AFTER_FLUSH)
        kafka.send_offsets(write.until(), write.metadata, write.deadline)  # 5
        may_crash(CrashPoint.AFTER_SEND_OFFSETS)
    except Exception:
        # EndTxn(commit) was not sent, so an abort can't contradict it; readers need not wait for the time-out.
        abort_at_once(kafka)
        raise
    may_crash(CrashPoint.COMMIT_IN_FLIGHT)
    # A commit that fails may have been applied: send nothing after it, the next attempt's locate finds out.
    kafka.commit(write.deadline)  # 6
    may_crash(CrashPoint.AFTER_COMMIT)
    return True


_ABORT_S = 5.0


def queue(
    kafka: Transaction,
    deadline: Deadline,
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int,
    timestamp: int = 0,
    headers: object = None,
) -> None:
    """
    Queue one record, waiting for room: ignoring a BufferError would lose the record.

    ``timestamp`` in milliseconds since the epoch; 0 is now.
    """
    while True:
        try:
            kafka.produce(topic, value, key, partition, None, None, timestamp, headers)
        except BufferError:
            kafka.make_room(deadline)
        else:
            return


def abort_at_once(kafka: Transaction) -> None:
    """Abort the transaction if the broker answers, so that readers need not wait; otherwise the next fence does it."""
    try:
        kafka.abort(Deadline(_ABORT_S))
    except BrewError:
        return
