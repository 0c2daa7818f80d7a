"""One partition in a holder's hands: what is there now becomes one transaction, then the next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from pipeline.attempt import Job, Offer, attempt
from pipeline.crash import CrashOrder, Dice
from pipeline.direct.stretch import CHUNK, Stretch
from pipeline.direct.terms import Grant, Terms
from pipeline.direct.turns import READING, Desk
from pipeline.outcome import Outcome, Status
from protocol.kafka.clients import FULL_MS
from protocol.kafka.tail import IDLE_MS, Tail, Taken
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

    ``share``: how many partitions the holder's read-ahead is for. A backlog waits for its turn to be read, each
    transaction for its turn among those of this process; ``begun`` hears of it then, ``report`` of its end.

    Raises:
        KafkaFailure: the partition can't be read.
    """
    following = grant.goal is None  # somebody who follows wants to hear of news in every partition
    ahead, full_ms = ahead_of(terms.direct.read_ahead_bytes, share, share if following else min(share, READING))
    wait_s, idle_ms = (_IDLE_WAIT_S, IDLE_FOLLOWING_MS) if following else (_WAIT_S, IDLE_MS)
    with nullcontext() if following else desk.reading.one(stop) as turn:
        if stop.is_set():
            return grant.start
        connection, group = terms.transaction.connection, terms.transaction.group
        tail = Tail(connection, group, terms.topic, grant.partition, grant.start, ahead, idle_ms, full_ms)
        try:
            return _Tenure(grant, terms, tail, begun, report, stop, desk, turn).work(wait_s)
        finally:
            tail.close()


@dataclass(frozen=True, slots=True)
class _Tenure:
    grant: Grant
    terms: Terms
    tail: Tail
    begun: Callable[[], None]
    report: Callable[[Outcome], None]
    stop: threading.Event
    desk: Desk
    turn: object

    def work(self, wait_s: float) -> int:
        grant, terms, desk = self.grant, self.terms, self.desk
        dice = Dice(terms.crash)
        at, spared, first_time = grant.start, grant.spared, grant.first_time
        while not self.stop.is_set() and (grant.goal is None or at < grant.goal):
            first = self.tail.take(self._first(), terms.direct.transaction_bytes, wait_s)
            if first is None:
                desk.reading.step_back(self.turn)
                continue
            offered = OffsetRange(terms.topic, grant.partition, at, first.until)
            crash = None if spared else dice.throw(offered)
            with desk.transactions.one():
                if self.stop.is_set():  # many partitions may have waited for their turns: none begins after SIGTERM
                    break
                outcome = self._transaction(first, offered, first_time=first_time, crash=crash)
                desk.paces.heed(outcome)
            desk.reading.go_on(self.turn)
            self.report(outcome)
            if outcome.status not in _ON:
                break
            at, spared, first_time = outcome.until, False, False
        return at

    def _first(self) -> int:
        """With profiles all is read before the transaction begins: their table is newer than the orders then."""
        cap = self.desk.paces.of(self.grant.partition).cap
        return min(CHUNK, cap) if self.terms.profiles is None else cap

    def _transaction(
        self, first: Taken, offered: OffsetRange, *, first_time: bool, crash: CrashOrder | None
    ) -> Outcome:
        terms, desk = self.terms, self.desk
        # Others may have learned since this one's first records were taken.
        most = desk.paces.of(offered.partition).cap if terms.profiles is None else 0
        stretch = Stretch(self.tail, first, most, terms.direct.transaction_bytes, desk.producing)
        job = Job({}, terms.transaction, terms.limits, terms.journal, terms.profiles, terms.traced)
        self.begun()
        return attempt(
            Offer(offered, self.grant.targets, first_time, crash, stretch.reached, stretch.aside), stretch, job
        )


def ahead_of(total_bytes: int, share: int, readers: int) -> tuple[int, int]:
    """
    What one of ``share`` partitions fetches ahead, in bytes, and how long a full reader rests, in milliseconds.

    ``readers``: how many of them are read at a time.

    Most of many readers are full and wait for their turn. Each that wakes up costs processor, and what is ahead bounds
    a lone busy one to itself in a rest (20 MiB/s at the least).
    """
    return max(_LEAST_AHEAD, total_bytes // max(1, share)), min(_LONGEST_REST_MS, max(FULL_MS, readers))


def without_crash(terms: Terms) -> Terms:
    """The same terms for a task that Spark repeats: a crash on purpose strikes once."""
    return replace(terms, crash=replace(terms.crash, probability=0.0))
