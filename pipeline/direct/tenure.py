"""One partition in a holder's hands: what is there now becomes one transaction, then the next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from pipeline.attempt import Job, Offer, attempt
from pipeline.crash import Dice
from pipeline.direct.terms import Grant, Terms
from pipeline.outcome import Outcome, Status
from pipeline.pace import Pace
from pipeline.ports import Rows
from protocol.kafka.tail import Tail, Taken
from protocol.position import OffsetRange

_WAIT_S = 0.05
_ON = {Status.COMMITTED, Status.ALREADY_DONE}


def work(grant: Grant, terms: Terms, ahead_bytes: int, report: Callable[[Outcome], None], stop: threading.Event) -> int:
    """
    Transact until the goal is reached, or ``stop`` is set, or a transaction does not end well; the position then.

    Raises:
        KafkaFailure: the partition can't be read.
    """
    dice = Dice(terms.crash)
    pace = Pace.at_most(terms.max_records, terms.transaction.timeout_s)
    job = Job({}, terms.transaction, terms.limits, terms.journal)
    tail = Tail(
        terms.transaction.connection, terms.transaction.group, terms.topic, grant.partition, grant.start, ahead_bytes
    )
    at, spared, first_time = grant.start, grant.spared, grant.first_time
    try:
        while not stop.is_set() and (grant.goal is None or at < grant.goal):
            taken = tail.take(pace.cap, terms.direct.transaction_bytes, _WAIT_S)
            if taken is None:
                continue
            offered = OffsetRange(terms.topic, grant.partition, at, taken.until)
            crash = None if spared else dice.throw(offered)
            outcome = attempt(Offer(offered, grant.targets, first_time, crash), _rows(taken), job)
            report(outcome)
            if outcome.status not in _ON:
                break
            pace = pace.after_outcome(outcome)
            at, spared, first_time = taken.until, False, False
    finally:
        tail.close()
    return at


def _rows(taken: Taken) -> Iterator[Rows]:
    """The kernel's parallel lists; none when there is nothing but markers."""
    records = taken.records
    if records:
        yield Rows(
            [one.offset() for one in records],
            [one.key() for one in records],
            [one.value() for one in records],
            [one.headers() for one in records],
            [one.timestamp()[1] for one in records],
        )


def without_crash(terms: Terms) -> Terms:
    """The same terms for a task that Spark repeats: a crash on purpose strikes once."""
    return replace(terms, crash=replace(terms.crash, probability=0.0))
