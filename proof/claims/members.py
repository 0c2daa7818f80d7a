"""Members of a claims group: one as a program, a follower of the log, and many that race for partitions."""

from __future__ import annotations

import contextlib
import json
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from brew.claims import state
from brew.claims.log import Entry
from brew.claims.member import Member, Membership
from brew.claims.state import RecordEffect
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure
from brew.kafka.claims_log import ClaimsLog
from proof.campaign.programs import Background
from proof.claims.history import Belief, History, broken, uncovered

_JOIN_S, _TURN_S, _LEAVE_S, _AGAIN_S = 30.0, 3.0, 3.0, 0.2
_LOOKS_PER_INTERVAL, _LOOK_S, _READ_S, _WATCHING_JOIN_S = 10, 0.02, 5.0, 10.0
_RACE_S, _JITTER_S = 60.0, 0.004
_INTERVAL_S = 60.0  # long enough that no member becomes stale while it waits for the others


class _SkewedWriter:
    """A producer that writes wrong timestamps, which the brokers must ignore."""

    def __init__(self, inner: Any, skew_s: float) -> None:
        self._inner, self._skew_s = inner, skew_s

    def produce(self, *words: Any, **named: Any) -> None:
        self._inner.produce(*words, timestamp=int((time.time() + self._skew_s) * 1000), **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _SkewedLog(ClaimsLog):
    skew_s = 0.0

    def _writer(self) -> Any:
        return _SkewedWriter(super()._writer(), self.skew_s)


class _IgnoringLostClaims(Member):
    """The control: it ignores lost claims, and prints its holdings where it should have given them up."""

    def _apply(self, entries: Sequence[Entry]) -> dict[tuple[int, int], RecordEffect]:
        had = dict(self.holdings)
        answers = super()._apply(entries)
        lost = had.keys() - self.holdings.keys()
        self.holdings = had | self.holdings
        if lost:  # by its next turn, it may own everything again
            _print_held(self)
        return answers


def _print_held(member: Member) -> dict[int, int]:
    """Print the held partitions and their tokens in one line, and return them."""
    held = {p: claim.token for p, claim in member.holdings.items()}
    sys.stdout.write(json.dumps([member.membership.client_id, member.view.tables[0].next, held]) + "\n")
    sys.stdout.flush()
    return held


def take_part(
    connection: Connection,
    topic: str,
    membership: Membership,
    stop: threading.Event,
    *,
    skew_s: float,
    rate: float,
    snapshot_records: int,
    believing: bool,
) -> None:
    """
    Claim, send heartbeats and release until ``stop``, and print a `MemberView` per change and interval.

    ``skew_s``: error of the wall clock in seconds. ``rate``: speed of the monotonic clock.
    """
    state.SNAPSHOT_RECORDS = snapshot_records  # so that a short run has snapshots, too
    log = _SkewedLog(connection, topic)
    log.skew_s = skew_s
    member = (_IgnoringLostClaims if believing else Member)(log, membership, lambda: time.monotonic() * rate)
    printed, print_at = dict[int, int](), 0.0
    try:
        _join(member, stop)
        while not stop.wait(membership.interval_s / _LOOKS_PER_INTERVAL):
            try:
                member.turn(Deadline(_TURN_S))
                member.release_partitions({p: member.holdings[p] for p in member.to_release}, Deadline(_TURN_S))
            except (DeadlineExceeded, KafkaFailure):
                stop.wait(_AGAIN_S)  # brokers are killed on purpose; the holdings still count
            held = {p: claim.token for p, claim in member.holdings.items()}
            if held != printed or time.monotonic() > print_at:
                printed, print_at = _print_held(member), time.monotonic() + membership.interval_s
        member.leave(Deadline(_LEAVE_S))
    finally:
        log.close()


def _join(member: Member, stop: threading.Event) -> None:
    deadline = Deadline(_JOIN_S)
    while not stop.is_set():
        try:
            member.join(deadline)
        except KafkaFailure:
            deadline.check("joining")
            stop.wait(_AGAIN_S)
        else:
            return


class ClaimsFollower(Background):
    """Follows a log from its first record; creates the topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        super().__init__("watching claims", _WATCHING_JOIN_S)
        self.history = History()
        self._log = ClaimsLog(connection, topic)

    def run(self) -> None:
        self._log.tail({0: 0})
        while not self.over.wait(_LOOK_S):
            with contextlib.suppress(BrewError):  # brokers are killed on purpose
                self._take({})

    def _take(self, until: dict[int, int]) -> None:
        for entry in self._log.read(until, Deadline(_READ_S)):
            self.history.add(entry.offset, entry.time_ms, entry.value)

    def snapshots_left(self) -> int:
        deadline = Deadline(_READ_S)
        return sum(entry.key == b"Snapshot" for entry in self._log.history(self._log.bounds(deadline), deadline))

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        with contextlib.suppress(BrewError):
            if raised[0] is None:
                self._take({0: self._log.bounds(Deadline(_READ_S))[0][1]})
        self._log.close()


@dataclass
class Races:
    """Results of the races: findings, and the seconds that each round took until every partition was owned."""

    rounds: int
    claimants: int
    partitions: int
    messages: int = 0
    seconds: float = 0.0
    wins: Counter[str] = field(default_factory=Counter)
    owned_after_s: list[float] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def race(
    connection: Connection,
    topic: str,
    *,
    rounds: int,
    claimants: int = 8,
    partitions: int = 64,
    advance: Callable[[], None] = lambda: None,
    seed: int = 1,
) -> Races:
    """Race for ``rounds`` rounds on the claims topic, which must be used for nothing else."""
    races, stem = Races(rounds, claimants, partitions), uuid.uuid4().hex[:8]
    logs = [ClaimsLog(connection, topic) for _ in range(claimants)]
    begin = time.monotonic()
    try:
        members = []
        for n, log in enumerate(logs):
            membership = Membership(f"c{n}", f"race-{stem}", "raced", tuple(range(partitions)), _INTERVAL_S)
            members.append(Member(log, membership))
            members[-1].join(Deadline(_RACE_S))
        start = members[0].view.tables[0].next
        beliefs = _run_races(members, races, advance, seed)
        entries = logs[0].history({0: (start, logs[0].bounds(Deadline(_RACE_S))[0][1])}, Deadline(_RACE_S))
    finally:
        for log in logs:
            log.close()
    races.seconds, races.messages = time.monotonic() - begin, len(entries)
    history = History()
    for entry in entries:
        history.add(entry.offset, 0, entry.value)  # members do not become stale: an owner remains one until it releases
    races.findings += broken(beliefs, history.granted)
    races.wins.update(history.granted.values())
    return races


def _run_races(members: list[Member], races: Races, advance: Callable[[], None], seed: int) -> list[Belief]:
    """Run all rounds: all members claim everything at once, compare their holdings, and release everything."""
    gate, beliefs = threading.Barrier(len(members)), list[Belief]()
    taken: list[list[Belief]] = [[] for _ in members]

    def judge_round(began: float) -> None:
        races.owned_after_s.append(time.monotonic() - began)
        held = [belief for beliefs_of in taken for belief in beliefs_of]
        races.findings += uncovered(held, races.partitions)
        beliefs.extend(held)
        advance()

    def drive(number: int) -> None:
        member, random_s = members[number], random.Random(seed * 1000 + number)  # noqa: S311 - jitter
        name = f"c{number}"
        try:
            for _ in range(races.rounds):
                gate.wait(_RACE_S)
                began = time.monotonic()
                time.sleep(random_s.random() * _JITTER_S)
                member.claim(random_s.sample(range(races.partitions), races.partitions), Deadline(_RACE_S))
                taken[number] = [Belief(name, p, claim.token) for p, claim in member.held().items()]
                if gate.wait(_RACE_S) == 0:
                    judge_round(began)
                gate.wait(_RACE_S)
                member.release_partitions(dict(member.holdings), Deadline(_RACE_S))
        except BaseException:
            gate.abort()
            raise

    with ThreadPoolExecutor(len(members)) as pool:
        for ended in [pool.submit(drive, number) for number in range(len(members))]:
            ended.result()
    return beliefs
