"""Make customers' profiles out of numbers; pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from protocol.errors import UsageError
from protocol.profiles import profile

_CHUNK = 10_000
_SHARES = {"gold": 5, "silver": 15, "bronze": 30, "standard": 50}

Profile = tuple[bytes, bytes | None]
"""Customer and value; None removes the customer."""


@dataclass(frozen=True, slots=True)
class Customers:
    """
    ``count`` customers, `c-00001` and so on, as the seeded orders name them; then ``updates`` of some of them, and then
    ``tombstones`` that remove some; who is drawn from ``seed``.
    """

    topic: str
    count: int
    seed: int = 0
    updates: int = 0
    tombstones: int = 0

    def __post_init__(self) -> None:
        if min(self.count, self.updates, self.tombstones) < 0:
            raise UsageError("--customers, --updates and --tombstones can't be negative; give 0 or more")
        if self.tombstones > self.count:
            raise UsageError(
                f"--tombstones is {self.tombstones}, and there are {self.count} customers (--customers) to remove"
            )
        if self.updates and not self.count:
            raise UsageError(f"--updates is {self.updates}, and --customers 0 leaves nobody to update")

    @property
    def records(self) -> int:
        return self.count + self.updates + self.tombstones


def name(number: int) -> bytes:
    """A customer's id, the record's key."""
    return b"c-%05d" % number


def chunks(plan: Customers) -> Iterator[list[Profile]]:
    """Everything to write, in order, a chunk at a time."""
    every = _profiles(plan)
    while some := list(islice(every, _CHUNK)):
        yield some


def _profiles(plan: Customers) -> Iterator[Profile]:
    dice = random.Random(plan.seed)  # noqa: S311 - example data
    tiers = [tier for tier, share in _SHARES.items() for _ in range(share)]

    def of(number: int) -> Profile:
        return name(number), profile(name(number).decode(), dice.choice(tiers))

    made = (of(number) for number in range(1, plan.count + 1))
    updated = (of(dice.randint(1, plan.count)) for _ in range(plan.updates))
    return chain(made, updated, _removed(plan, dice))


def _removed(plan: Customers, dice: random.Random) -> Iterator[Profile]:
    for number in dice.sample(range(1, plan.count + 1), plan.tombstones):
        yield name(number), None
