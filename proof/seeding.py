"""Plan what a seeder writes: which order goes where, in which transaction, and how that one ends; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from proof.orders import Order, orders, spoiled
from protocol.errors import UsageError

_CHUNK = 10_000
_MOST_PER_TRANSACTION = 100

Record = tuple[int, Order]
"""The partition, and the order that goes there."""


@dataclass(frozen=True, slots=True)
class Seeding:
    """What to write; one refusal for all fields that do not fit together."""

    topic: str
    count: int
    start: int
    seed: int = 0
    bad_every: int = 0
    transactional: bool = False
    abort_every: int = 3
    transaction_size: int = 0
    markers_only_partition: int | None = None
    leave_open: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or self.start < 0 or self.bad_every < 0:
            raise UsageError("--count, --start and --bad-every can't be negative; give 0 or more")
        if self.abort_every == 1 or self.abort_every < 0:
            raise UsageError("--abort-every 1 would abort everything; give 2 or more, or 0 to abort nothing")
        if self.markers_only_partition is not None and not (self.transactional and self.abort_every):
            raise UsageError("--markers-only-partition needs aborted transactions; add --transactional")

    @property
    def per_transaction(self) -> int:
        """Few orders make small transactions, so that some are aborted on the way."""
        return self.transaction_size or max(1, min(_MOST_PER_TRANSACTION, self.count // 6))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that are written together; in one transaction, if there are transactions at all."""

    records: list[Record]
    aborted: bool = False


def chunks(plan: Seeding, partitions: int) -> Iterator[Chunk]:
    """Everything to write, in order, a chunk at a time: as many visible orders as the plan's count."""
    homes = _homes(plan, partitions)
    visible = _visible(plan, homes)
    if not plan.transactional:
        while records := list(islice(visible, _CHUNK)):
            yield Chunk(records)
        return
    ghosts = ghost_records(plan, "aborted", partitions)
    size = max(plan.per_transaction, partitions)
    for number in count(1):
        if plan.abort_every and number % plan.abort_every == 0:
            yield Chunk(list(islice(ghosts, size)), aborted=True)
            continue
        records = list(islice(visible, plan.per_transaction))
        if not records:
            break
        yield Chunk(records)
    if plan.abort_every and (number - 1) % plan.abort_every != 0:
        yield Chunk(list(islice(ghosts, size)), aborted=True)


def ghost_records(plan: Seeding, mark: str, partitions: int) -> Iterator[Record]:
    """Orders that never become visible, round robin over all partitions, without end."""
    ghost = orders(plan.seed, mark)
    return ((number % partitions, ghost(number)) for number in count(plan.start))


def _homes(plan: Seeding, partitions: int) -> list[int]:
    only_markers = plan.markers_only_partition
    if only_markers is not None and not (0 <= only_markers < partitions and partitions > 1):
        raise UsageError(
            f"--markers-only-partition is {only_markers}, topic {plan.topic!r} has {partitions} partition(s); "
            f"give one of its numbers and leave another partition for the orders"
        )
    return [p for p in range(partitions) if p != only_markers]


def _visible(plan: Seeding, homes: list[int]) -> Iterator[Record]:
    order = orders(plan.seed)
    bad_every = plan.bad_every
    for number in range(plan.start, plan.start + plan.count):
        made = order(number)
        nth = number - plan.start + 1
        if bad_every and nth % bad_every == 0:
            made = spoiled(made, nth // bad_every - 1)
        yield homes[number % len(homes)], made
