"""Decide which open transactions are hanging or lingering, who owns them, and how to abort them; pure."""

from __future__ import annotations

import contextlib
import enum
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from brew.cluster import ENDED, ENDING, CoordinatorTransaction, PartitionTransaction, Place, ReadBounds
from brew.names import SinkTransactionalId, TransactionalId

LONGEST_MS = 900_000
"""Kafka's default of the brokers' maximum transaction timeout."""
_SLACK_MS = 5 * 60 * 1000  # what Kafka's own tool adds to the maximum transaction timeout


class Kind(enum.StrEnum):
    """Kinds of open transactions; `hanging` ones must be ended by hand, `lingering` ones end too late."""

    OPEN = "open"
    LINGERING = "lingering"
    HANGING = "hanging"
    UNKNOWN = "unknown"


UNHEALTHY = frozenset({Kind.LINGERING, Kind.HANGING})
_COORDINATED = frozenset({Kind.OPEN, Kind.LINGERING})
"""Kinds that are open at their coordinator."""
_ORDER = (Kind.HANGING, Kind.LINGERING, Kind.UNKNOWN, Kind.OPEN)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One open transaction: its kind and the reason, and the partitions that it holds back."""

    kind: Kind
    why: str
    producer_id: int
    producer_epoch: int
    holds: tuple[PartitionTransaction, ...]
    known: CoordinatorTransaction | None = None
    age_s: float | None = None

    @property
    def transactional_id(self) -> str | None:
        return None if self.known is None else self.known.transactional_id

    @property
    def owner(self) -> TransactionalId | None:
        """Group and input partition, if the id is a pipeline's."""
        with contextlib.suppress(ValueError):
            return TransactionalId.parse(self.transactional_id or "")
        return None

    @property
    def sink(self) -> SinkTransactionalId | None:
        """Name and topic, if the id is an exactly-once sink's."""
        with contextlib.suppress(ValueError):
            return SinkTransactionalId.parse(self.transactional_id or "")
        return None

    @property
    def position(self) -> tuple[str, Place] | None:
        """Group and place of the committed offset that the transaction moves; for a sink, its next batch id."""
        if (owner := self.owner) is not None:
            return owner.group, (owner.topic, owner.partition)
        return None if (sink := self.sink) is None else (sink.name, (sink.topic, 0))

    @property
    def overdue(self) -> bool:
        """True if its own timeout has passed, by this machine's clock; others linger only by ``older_than_s``."""
        return self.known is not None and self.age_s is not None and self.age_s * 1000 > self.known.timeout_ms

    @property
    def names(self) -> tuple[str, ...]:
        """Names that `--abort` accepts: its id, or TOPIC/PARTITION/PRODUCER-ID; a hanging one has only the latter."""
        partitions = tuple(f"{hold.topic}/{hold.partition}/{hold.producer_id}" for hold in self.holds)
        by_partition = self.transactional_id is None or (self.kind is Kind.HANGING and bool(partitions))
        return partitions if by_partition else (str(self.transactional_id), *partitions)


def diagnose(
    held: Iterable[PartitionTransaction],
    known: Iterable[CoordinatorTransaction],
    older_than_s: float,
    now_ms: int,
    longest_ms: int = LONGEST_MS,
) -> list[Diagnosis]:
    """
    Return the open transactions, unhealthy ones first; ``longest_ms``: the brokers' maximum timeout.

    ``held`` must be read from the leaders before ``known`` is read from the coordinators. A coordinator reports a
    transaction as ended only once all markers are written, so what a leader held before that is hanging (KIP-664).
    """
    owners = {transaction.producer_id: transaction for transaction in known}
    groups: defaultdict[tuple[int, int, bool], list[PartitionTransaction]] = defaultdict(list)
    for hold in held:
        orphaned = _orphaned(hold, owners.get(hold.producer_id))
        groups[hold.producer_id, hold.producer_epoch, orphaned].append(hold)
    cases = []
    for (producer_id, epoch, orphaned), holds in groups.items():
        owner = owners.get(producer_id)
        if owner is None or orphaned:
            cases.append(_without_coordinator(producer_id, epoch, tuple(sorted(holds)), owner, longest_ms, now_ms))
        else:
            cases.append(_coordinated(owner, tuple(sorted(holds)), older_than_s, now_ms))
    ongoing = {case.producer_id for case in cases if case.kind in _COORDINATED}
    others = (one for one in owners.values() if one.open and one.producer_id not in ongoing)
    cases += [_coordinated(transaction, (), older_than_s, now_ms) for transaction in others]
    return sorted(cases, key=lambda case: (_ORDER.index(case.kind), -(case.age_s or 0), case.producer_id))


def _orphaned(held: PartitionTransaction, owner: CoordinatorTransaction | None) -> bool:
    """True if the coordinator knows the producer but not this transaction."""
    if owner is None or owner.state in ENDED:
        return owner is not None
    if owner.state in ENDING:  # its markers are being written, with a newer epoch after a fence
        return False
    return held.place not in owner.places or held.producer_epoch < owner.producer_epoch


def _without_coordinator(
    producer_id: int,
    epoch: int,
    holds: tuple[PartitionTransaction, ...],
    owner: CoordinatorTransaction | None,
    longest_ms: int,
    now_ms: int,
) -> Diagnosis:
    if owner is not None:
        state = f"{owner.transactional_id!r} is {owner.state}"
        why = f"its coordinator has no such open transaction ({state}): no timeout ends it"
        return Diagnosis(Kind.HANGING, why, producer_id, epoch, holds, owner)
    idle_ms = now_ms - max(hold.last_ms for hold in holds)
    if idle_ms > longest_ms + _SLACK_MS:
        last = f"its last record is {idle_ms / 1000:.0f} s old"
        why = f"no coordinator knows the producer, and {last}: no timeout ends it"
        return Diagnosis(Kind.HANGING, why, producer_id, epoch, holds)
    why = "no coordinator reports it: it is hanging, or this user lacks Describe on its transactional id"
    return Diagnosis(Kind.UNKNOWN, why, producer_id, epoch, holds)


def _coordinated(
    owner: CoordinatorTransaction, holds: tuple[PartitionTransaction, ...], older_than_s: float, now_ms: int
) -> Diagnosis:
    age_s = owner.age_s(now_ms)
    kind, why = Kind.OPEN, "within its timeout"
    if owner.state in ENDING:
        why = f"{owner.state}: its markers are being written"
    elif age_s is not None and age_s * 1000 > owner.timeout_ms:
        kind, why = Kind.LINGERING, f"open for longer than its timeout of {owner.timeout_ms / 1000:g} s"
    elif age_s is not None and age_s > older_than_s:
        ends_s = owner.timeout_ms / 1000 - age_s
        kind = Kind.LINGERING
        why = f"open for longer than {older_than_s:g} s; its timeout ends it in {ends_s:.0f} s"
    return Diagnosis(kind, why, owner.producer_id, owner.producer_epoch, holds, owner, age_s)


def confirm_hanging(cases: Iterable[Diagnosis], still: Collection[PartitionTransaction]) -> list[Diagnosis]:
    """Return the cases without those hanging ones that the leaders no longer report."""
    now = {_identity(transaction) for transaction in still}
    return [case for case in cases if case.kind in _COORDINATED or any(_identity(hold) in now for hold in case.holds)]


def _identity(held: PartitionTransaction) -> tuple[Place, int, int, int]:
    return held.place, held.first_offset, held.producer_id, held.producer_epoch


def blocked_partitions(
    case: Diagnosis, bounds: Mapping[Place, ReadBounds], groups: Mapping[str, Mapping[Place, int]]
) -> list[dict[str, Any]]:
    """Return the partitions that a transaction holds back, with the groups that wait there, and those that will."""
    blocked = []
    for held in case.holds:
        bound = bounds.get(held.place, ReadBounds(held.first_offset, held.first_offset))
        positions = {
            name: offsets[held.place]
            for name, offsets in sorted(groups.items())
            # A sink's own group commits the id of its next batch, not an offset of this partition.
            if held.place in offsets and case.position != (name, held.place)
        }
        blocked.append(
            {
                "topic": held.topic,
                "partition": held.partition,
                "from_offset": held.first_offset,
                "offsets_waiting": max(0, bound.end - held.first_offset),
                "groups_at_it": [name for name, offset in positions.items() if offset >= held.first_offset],
                "groups_on_the_way": [name for name, offset in positions.items() if offset < held.first_offset],
            }
        )
    return blocked


def select_to_abort(
    cases: Iterable[Diagnosis], names: Collection[str], *, everything: bool, young: bool = False
) -> list[Diagnosis]:
    """Return the named cases, or all that are hanging or past their timeout; ``young``: also those within it."""

    def picked(case: Diagnosis) -> bool:
        late = case.kind is Kind.HANGING or (case.kind is Kind.LINGERING and (young or case.overdue))
        return (everything and late) or not set(names).isdisjoint(case.names)

    return list(filter(picked, cases))


def same_transaction(case: Diagnosis, now: CoordinatorTransaction | None) -> bool:
    """True while it is open at its coordinator; a later transaction under the same id is a different one."""
    was = case.known
    if was is None or now is None or not now.open:
        return False
    return (now.producer_id, now.producer_epoch, now.began_ms) == (was.producer_id, was.producer_epoch, was.began_ms)


def still_hanging(
    case: Diagnosis, held: Iterable[PartitionTransaction], known: Iterable[CoordinatorTransaction]
) -> list[PartitionTransaction]:
    """Return what partitions still hold of a transaction that no coordinator knew, and that none reports now."""
    owners = {transaction.producer_id: transaction for transaction in known}
    ours = {_identity(hold) for hold in case.holds}
    return [
        hold
        for hold in held
        if _identity(hold) in ours and (hold.producer_id not in owners or _orphaned(hold, owners[hold.producer_id]))
    ]


def aborted_by_fence(case: Diagnosis) -> bool:
    """True if fencing its id aborts it; one that its coordinator does not know needs an abort marker."""
    return case.known is not None and case.known.open and case.kind in _COORDINATED


def reprocessed_after_abort(case: Diagnosis, groups: Mapping[str, Mapping[Place, int]]) -> str:
    if not aborted_by_fence(case):
        return "no known position goes back; the records become aborted, hidden from read_committed readers"
    if case.position is None:
        return "its owner is fenced, and has to restart from its last committed position"
    group, (topic, partition) = case.position
    position = groups.get(group, {}).get((topic, partition))
    if case.sink is not None:
        batch = "its first batch" if position is None else f"batch {position}"
        again = f"sink {group} writes {batch} again at its query's next attempt"
    else:
        start = "its first offset" if position is None else f"offset {position}"
        again = f"group {group} reads {topic}[{partition}] again from {start} at its next attempt"
    return f"{again}; the aborted copies stay in the log, hidden from read_committed readers"


def kafka_abort_command(bootstrap: str, held: PartitionTransaction) -> str:
    return (
        f"kafka-transactions.sh --bootstrap-server {bootstrap} abort --topic {held.topic} "
        f"--partition {held.partition} --start-offset {held.first_offset}"
    )
