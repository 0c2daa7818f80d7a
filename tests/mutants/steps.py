"""Mutants in fence and locate, and in the ownership of transactions."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from brew import range_transaction
from brew.attempt import AttemptSpec, Job
from brew.deadline import Deadline
from brew.kafka import committed_offset
from brew.kafka.committed_offset import PositionConfirmation
from brew.kafka.transaction import KafkaTransaction
from brew.names import READ_UNCOMMITTED, TransactionalId
from brew.offsets import Committed
from brew.outcome import Outcome, Status
from brew.range_transaction import Rows
from brew.readers.direct import worker
from mutants.mutant import Changes, Method, mutant

# Ownership of transactions.


@mutant("D1", on="zombie", named="duplicate-output")
def transactional_id_by_chance(change: Changes) -> None:
    """Each attempt uses a new transactional id, so no fence ends the previous one; the position is not confirmed."""
    _not_confirmed(change)
    change.set(TransactionalId, "__str__", lambda old: lambda self: f"{old(self)}-{uuid.uuid4().hex[:8]}")


@mutant("D1", on="side-by-side", named="fenced")
def transactional_id_shared(change: Changes) -> None:
    """All partitions share one transactional id, so the attempts of one run fence each other."""
    change.set(TransactionalId, "__str__", lambda _: lambda self: f"{self.group}:{self.topic}")


@mutant("D2", on="calm", named="epoch-reuse")
def producer_reused(change: Changes) -> None:
    """A partition's producer runs one transaction after another within one epoch."""
    _keep(change, when=lambda _: True)


@mutant("D2", on="failing-send-offsets", named="epoch-reuse")
def producer_reused_after_an_abort(change: Changes) -> None:
    """After an abort, the next transaction uses the same producer without a new fence."""
    change.set(
        KafkaTransaction,
        "abort",
        lambda old: lambda self, deadline: (old(self, deadline), vars(self).update(aborted=1)),
    )
    _keep(change, when=lambda kafka: vars(kafka).pop("aborted", 0))


def _keep(change: Changes, when: Callable[[KafkaTransaction], object]) -> None:
    """Don't close a transaction if ``when`` says so: the partition's next attempt continues it, unfenced."""
    kept: dict[tuple[Any, ...], KafkaTransaction] = {}
    ongoing: set[int] = set()

    def init(old: Method, self: KafkaTransaction, settings: Any, *place: Any) -> None:
        kept_transaction = kept.pop(place, None)
        if kept_transaction is None:
            old(self, settings, *place)
        else:
            vars(self).update(vars(kept_transaction))
            ongoing.add(id(self))
        self.place = place

    def fence(old: Method, self: KafkaTransaction, deadline: Deadline) -> None:
        if id(self) not in ongoing:
            old(self, deadline)

    def close(old: Method, self: KafkaTransaction) -> None:
        ongoing.discard(id(self))
        if when(self):
            kept[self.place] = self
        else:
            old(self)

    change.wrap(KafkaTransaction, "__init__", init)
    change.wrap(KafkaTransaction, "fence", fence)
    unchanged_close = KafkaTransaction.close
    change.at_end(lambda: [unchanged_close(transaction) for transaction in kept.values()])
    change.wrap(KafkaTransaction, "close", close)


@mutant("D11", on="failing-send-offsets", named="duplicate-output")
def abort_ignored(change: Changes) -> None:
    """A failed transaction is neither aborted nor discarded; the next attempt continues it."""
    change.set(KafkaTransaction, "abort", lambda _: lambda self, _deadline: vars(self).update(open=1))
    change.set(KafkaTransaction, "begin", lambda old: lambda self: None if vars(self).pop("open", 0) else old(self))
    _keep(change, when=lambda kafka: vars(kafka).get("open", 0))


# Fence and locate.


@mutant("D4", on="rival-behind-the-first-step", named="duplicate-output")
def locate_before_fence(change: Changes) -> None:
    """The position is read while an older producer of the id may still commit, and it is not confirmed."""
    _not_confirmed(change)
    fence, locate = KafkaTransaction.fence, KafkaTransaction.locate

    def first(self: KafkaTransaction, deadline: Deadline) -> None:
        self.found = locate(self, deadline)

    def second(self: KafkaTransaction, deadline: Deadline) -> Committed | None:
        fence(self, deadline)
        position: Committed | None = self.found
        return position

    change.set(KafkaTransaction, "fence", lambda _: first)
    change.set(KafkaTransaction, "locate", lambda _: second)


@mutant("D4", on="stale-answers", named="duplicate-output")
def not_confirmed(change: Changes) -> None:
    """After send-offsets, nobody checks whether the committed offset is still the located one."""
    _not_confirmed(change)


def _not_confirmed(change: Changes) -> None:
    change.set(PositionConfirmation, "confirm", lambda _: lambda *_arguments: None)


@mutant("D4", on="rival-before-the-fence", named="duplicate-output")
def no_locate(change: Changes) -> None:
    """The driver's plan is trusted, and the committed offset is not read."""
    change.set(KafkaTransaction, "locate", lambda _: lambda *_arguments: None)
    change.set(range_transaction, "_settled", lambda _: lambda *_arguments, **_more: None)


@mutant("D4", on="rival-before-the-fence", named="duplicate-output")
def position_inside_the_range_ignored(change: Changes) -> None:
    """A range that is partly committed is written again from its start."""
    change.wrap(range_transaction, "_produce_all", lambda old, run, batches, _: old(run, batches, run.offered.start))


@mutant("D7", on="vanished-behind-the-plan", named="duplicate-output")
def first_time_ignored(change: Changes) -> None:
    """A missing committed offset is taken for a first run, although the driver planned from one."""
    change.wrap(range_transaction, "_settled", lambda old, found, offered, **_: old(found, offered, first_time=True))


@mutant("D4", on="pending-under-another-id", named="duplicate-output")
def unstable_locate(change: Changes) -> None:
    """The position is read without waiting for pending offset commits."""
    change.set(committed_offset, "READ_COMMITTED", lambda _: READ_UNCOMMITTED)
    change.set(committed_offset, "_locators", lambda _: deque())  # the cached ones were made without the bug


@mutant("D12", on="lost-answer", named="duplicate-output")
def retried_without_locate(change: Changes) -> None:
    """After a commit without an answer, the range is written again without reading the committed offset."""
    blind = threading.local()

    def attempt(old: Method, offer: AttemptSpec, batches: Iterator[Rows], job: Job) -> Outcome:
        rows = [*batches]
        outcome: Outcome = old(offer, iter(rows), job)
        if outcome.status is Status.FAILED and "commit" in outcome.detail:
            blind.on = True
            outcome = old(offer, iter(rows), job)
            blind.on = False
        return outcome

    def settled(old: Method, *known: Any, **more: Any) -> Any:
        return None if getattr(blind, "on", False) else old(*known, **more)

    def write(old: Method, run: Any, batches: Any, position: int) -> None:
        old(run, batches, run.offered.start if getattr(blind, "on", False) else position)

    change.wrap(worker, "attempt", attempt)
    change.wrap(range_transaction, "_settled", settled)
    change.wrap(range_transaction, "_produce_all", write)
