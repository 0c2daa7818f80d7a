"""One partition in a holder's hands: what is there now becomes one transaction, then the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from pipeline.attempt import Job, Offer, attempt
from pipeline.crash import Dice
from pipeline.direct.stretch import CHUNK, Stretch
from pipeline.direct.terms import Grant, Terms
from pipeline.direct.turns import Desk
from pipeline.outcome import Outcome, Status
from pipeline.pace import Pace
from protocol.kafka.clients import FULL_MS
from protocol.kafka.tail import IDLE_MS, Tail
from protocol.position import OffsetRange

# A drain wants to know where its partition ends. A following run may hold hundreds that have nothing to do: with the
# waits of a drain 64 of them cost a quarter of a processor, client and broker together. News comes at once either way.
_WAIT_S, _IDLE_WAIT_S = 0.05, 0.2
IDLE_FOLLOWING_MS = 500
_LEAST_AHEAD = 1024 * 1024
_LONGEST_REST_MS = 50
_ON = {Status.COMMITTED, Status.ALREADY_DONE}


def work(
    grant: Grant,
    terms: Terms,
    share: int,
    begun: Callable[[], None],
    report: Callable[[Outcome], None],
    stop: threading.Event,
    desk: Desk,
) -> int:
    """
    Transact until the goal is reached, or ``stop`` is set, or a transaction does not end well; the position then.

    ``share``: how many partitions the holder's read-ahead is for. Each transaction waits for its turn among those of
    this process; ``begun`` hears of it then, ``report`` of its end.

    Raises:
        KafkaFailure: the partition can't be read.
    """
    dice = Dice(terms.crash)
    pace = Pace.at_most(terms.max_records, terms.transaction.timeout_s)
    job = Job({}, terms.transaction, terms.limits, terms.journal, terms.profiles, terms.traced)
    wait_s, idle_ms = (_IDLE_WAIT_S, IDLE_FOLLOWING_MS) if grant.goal is None else (_WAIT_S, IDLE_MS)
    connection, group = terms.transaction.connection, terms.transaction.group
    ahead, full_ms = ahead_of(terms.direct.read_ahead_bytes, share)
    tail = Tail(connection, group, terms.topic, grant.partition, grant.start, ahead, idle_ms, full_ms)
    at, spared, first_time = grant.start, grant.spared, grant.first_time
    try:
        while not stop.is_set() and (grant.goal is None or at < grant.goal):
            # With profiles all is read before the transaction begins: their table is newer than the orders then.
            chunk, more = (CHUNK, pace.cap) if terms.profiles is None else (pace.cap, 0)
            first = tail.take(min(chunk, pace.cap), terms.direct.transaction_bytes, wait_s)
            if first is None:
                continue
            offered = OffsetRange(terms.topic, grant.partition, at, first.until)
            crash = None if spared else dice.throw(offered)
            stretch = Stretch(tail, first, more, terms.direct.transaction_bytes, desk.producing)
            with desk.transactions.one():
                if stop.is_set():  # many partitions may have waited for their turns: none begins after SIGTERM
                    break
                offer = Offer(offered, grant.targets, first_time, crash, stretch.reached, stretch.aside)
                begun()
                outcome = attempt(offer, stretch, job)
            report(outcome)
            if outcome.status not in _ON:
                break
            pace = pace.after_outcome(outcome)
            at, spared, first_time = outcome.until, False, False
    finally:
        tail.close()
    return at


def ahead_of(total_bytes: int, share: int) -> tuple[int, int]:
    """
    What one of ``share`` partitions fetches ahead, in bytes, and how long a full reader rests, in milliseconds.

    Most of many readers are full and wait for their turn. Each that wakes up costs processor, and what is ahead bounds
    a lone busy one to itself in a rest (20 MiB/s at the least).
    """
    return max(_LEAST_AHEAD, total_bytes // max(1, share)), min(_LONGEST_REST_MS, max(FULL_MS, share))


def without_crash(terms: Terms) -> Terms:
    """The same terms for a task that Spark repeats: a crash on purpose strikes once."""
    return replace(terms, crash=replace(terms.crash, probability=0.0))
