"""Tell what a partition is at, and whether a program is alive, ready and started; pure: the time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.observe.phase import Phase
from protocol.observe.status import ILL, Answer, PartitionState, PartitionStatus, State

_NAMED = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds: unlooked-at, standing still with something to read, and servers away before it is an illness."""

    polling_ttl_s: float
    consuming_ttl_s: float
    away_s: float


@dataclass(frozen=True, slots=True)
class Vitals:
    """
    One partition's times, all by the same clock; None where a thing is not so now.

    ``waiting_since``: there is something to read, and the position has not moved. ``blocked_since``: all that is left
    (``held_back`` offsets) stands behind an open transaction. ``away_since``: a server that the work needs does not
    answer. ``fenced``: a newer holder took the id over, and nothing was committed since. ``trouble``: what went wrong
    last. ``fatal``: why nothing that is tried again can succeed.
    """

    polled_at: float
    waiting_since: float | None = None
    blocked_since: float | None = None
    away_since: float | None = None
    held_back: int = 0
    lag: int | None = None
    fenced: bool = False
    trouble: str = ""
    fatal: str = ""


class Finding(NamedTuple):
    """What a partition is at, and why; the reason is for people."""

    state: PartitionState
    reason: str


def judge(vitals: Vitals, bounds: Bounds, now: float) -> Finding:
    """The first of these that holds: blocked and idle are healthy for as long as they last."""
    if vitals.fatal:
        return Finding(PartitionState.UNRECOVERABLE, vitals.fatal)
    unseen_s = now - vitals.polled_at
    if unseen_s > bounds.polling_ttl_s:
        return Finding(
            PartitionState.STUCK,
            f"nobody has looked at it for {unseen_s:.0f} s (--polling-ttl {bounds.polling_ttl_s:g})",
        )
    behind = f": {vitals.trouble}" if vitals.trouble else ""
    if vitals.away_since is not None:
        away_s = now - vitals.away_since
        state = PartitionState.STUCK if away_s > bounds.away_s else PartitionState.BLOCKED
        return Finding(state, f"waits for a server for {away_s:.0f} s (at most {bounds.away_s:g}){behind}")
    if vitals.blocked_since is not None:
        since = f"{now - vitals.blocked_since:.0f} s"
        return Finding(
            PartitionState.BLOCKED, f"{vitals.held_back} offsets stand behind an open transaction, for {since}"
        )
    if vitals.waiting_since is None:
        return Finding(PartitionState.IDLE, "nothing to read")
    return _with_work(vitals, bounds, now, behind)


def _with_work(vitals: Vitals, bounds: Bounds, now: float, behind: str) -> Finding:
    still_s = now - (vitals.waiting_since if vitals.waiting_since is not None else now)
    left = "some" if vitals.lag is None else str(vitals.lag)
    if still_s > bounds.consuming_ttl_s:
        limit = f"(--consuming-ttl {bounds.consuming_ttl_s:g})"
        return Finding(
            PartitionState.STUCK, f"{left} offsets to read, nothing moved for {still_s:.0f} s {limit}{behind}"
        )
    if vitals.fenced:
        return Finding(PartitionState.FENCED, f"a newer holder took it over, nothing was committed since{behind}")
    return Finding(PartitionState.WORKING, f"{left} offsets to read{behind}")


@dataclass(frozen=True, slots=True)
class Program:
    """``beat_at``: when the program last looked at anything; ``away_since`` and ``fatal`` as in `Vitals`."""

    phase: Phase
    beat_at: float
    detail: str = ""
    away_since: float | None = None
    away_why: str = ""
    fatal: str = ""


def live(program: Program, partitions: Sequence[PartitionStatus], bounds: Bounds, now: float) -> Answer:
    """False only where a restart may help: something is stuck, or unrecoverable."""
    if program.fatal:
        return Answer(False, f"unrecoverable: {program.fatal}")
    if program.phase in {Phase.STARTING, Phase.STOPPING, Phase.STOPPED}:
        return Answer(True, _words(program))
    unseen_s = now - program.beat_at
    if unseen_s > bounds.polling_ttl_s:
        return Answer(False, f"nothing was looked at for {unseen_s:.0f} s (--polling-ttl {bounds.polling_ttl_s:g})")
    ill = [one for one in partitions if one.state in ILL]
    if ill:
        named = "; ".join(f"{one.topic}[{one.partition}] is {one.state}: {one.reason}" for one in ill[:_NAMED])
        return Answer(False, named + (f"; and {len(ill) - _NAMED} more" if len(ill) > _NAMED else ""))
    if program.phase is Phase.STANDING_BY:
        return Answer(True, _words(program))
    counts = Counter(one.state for one in partitions)
    told = ", ".join(f"{counts[state]} {state}" for state in PartitionState if counts[state])
    return Answer(True, told or "no partition is ours now")


def ready(program: Program, alive: Answer, waits: str = "") -> Answer:
    """
    True when it does its work, or could at once: the checks have passed, and brokers and stores answer.

    ``waits``: why none of its partitions can be worked on, where each of them waits for a store.
    """
    if program.phase not in {Phase.WORKING, Phase.STANDING_BY}:
        return Answer(False, _words(program))
    if program.away_since is not None:
        return Answer(False, f"the brokers do not answer: {program.away_why}")
    if waits and alive.ok:
        return Answer(False, f"every partition waits: {waits}")
    return Answer(alive.ok, alive.reason if not alive.ok else _words(program))


def started(program: Program) -> Answer:
    """True once the checks have passed and the work, or the wait for it, has begun."""
    return Answer(program.phase is not Phase.STARTING, _words(program))


def state_of(program: Program, partitions: Sequence[PartitionStatus]) -> State:
    """The program's state as one word."""
    if program.phase is Phase.WORKING:
        return State.IDLE if all(one.state is PartitionState.IDLE for one in partitions) else State.WORKING
    return State.IDLE if program.phase is Phase.STANDING_BY else State(program.phase.value)


def _words(program: Program) -> str:
    name = program.phase.value.replace("-", " ")
    return f"{name}: {program.detail}" if program.detail else name
