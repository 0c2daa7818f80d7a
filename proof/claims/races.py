"""Members that all claim the same partitions at the same moment, round after round, on a real broker."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from brew.claims.member import Member, Membership
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka.claims_log import ClaimsLog
from proof.claims.history import Belief, ClaimsRecord, broken, owners, uncovered

_WAIT_S = 60.0
_JITTER_S = 0.004
_INTERVAL_S = 60.0  # nobody gets stale while it waits for the others


@dataclass
class Races:
    """What came of it: findings of the judge, and how long a round took until every partition was owned."""

    rounds: int
    claimants: int
    partitions: int
    messages: int = 0
    seconds: float = 0.0
    wins: dict[str, int] = field(default_factory=dict)
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
    """
    Race on a claims topic of its own.

    Raises:
        DeadlineExceeded, Refused: the broker did not play along.
    """
    told, stem = Races(rounds, claimants, partitions), uuid.uuid4().hex[:8]
    logs = [ClaimsLog(connection, topic) for _ in range(claimants)]
    begin = time.monotonic()
    try:
        members = [
            Member(log, Membership(f"c{n}", f"race-{stem}", "raced", tuple(range(partitions)), _INTERVAL_S))
            for n, log in enumerate(logs)
        ]
        for member in members:
            member.join(Deadline(_WAIT_S))
        start = members[0].world.tables[0].next
        beliefs = _run(members, told, advance, seed)
        entries = logs[0].history({0: (start, logs[0].bounds(Deadline(_WAIT_S))[0][1])}, Deadline(_WAIT_S))
    finally:
        for log in logs:
            log.close()
    told.seconds, told.messages = time.monotonic() - begin, len(entries)
    granted, _ = owners(ClaimsRecord(entry.offset, entry.value) for entry in entries)
    told.findings += broken(beliefs, granted)
    for client in granted.values():
        told.wins[client] = told.wins.get(client, 0) + 1
    return told


def _run(members: list[Member], told: Races, advance: Callable[[], None], seed: int) -> list[Belief]:
    """All rounds: claim everything at once, look at each other's holdings, give everything back."""
    gate = threading.Barrier(len(members))
    beliefs: list[Belief] = []
    taken: list[list[Belief]] = [[] for _ in members]

    def judge_round(began: float) -> None:
        told.owned_after_s.append(time.monotonic() - began)
        held = [one for some in taken for one in some]
        told.findings += uncovered(held, told.partitions)
        beliefs.extend(held)
        advance()

    def drive(number: int) -> None:
        member, random_s = members[number], random.Random(seed * 1000 + number)  # noqa: S311 - jitter
        name = f"c{number}"
        try:
            for _ in range(told.rounds):
                gate.wait(_WAIT_S)
                began = time.monotonic()
                time.sleep(random_s.random() * _JITTER_S)
                wanted = random_s.sample(range(told.partitions), told.partitions)
                member.claim(wanted, Deadline(_WAIT_S))
                taken[number] = [Belief(name, p, one.token) for p, one in member.held().items()]
                if gate.wait(_WAIT_S) == 0:
                    judge_round(began)
                gate.wait(_WAIT_S)
                member.release_partitions(dict(member.holdings), Deadline(_WAIT_S))
        except BaseException:
            gate.abort()
            raise

    with ThreadPoolExecutor(len(members)) as pool:
        for ended in [pool.submit(drive, number) for number in range(len(members))]:
            ended.result()
    return beliefs
