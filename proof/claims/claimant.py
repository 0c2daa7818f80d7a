"""A claimant as a program, and what it saw."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from brew.claims import state
from brew.claims.log import Entry
from brew.claims.member import Member, Membership
from brew.claims.state import RecordEffect
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure
from brew.kafka.claims_log import ClaimsLog
from proof.claims.history import History

_JOIN_S, _TURN_S, _LEAVE_S = 30.0, 3.0, 3.0
_LOOKS_PER_INTERVAL = 10
_AGAIN_S = 0.2


class _SkewedWriter:
    """A producer whose records carry a time that is wrong by so much; the brokers are to take no notice."""

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
    """The control: it never hears that the log gave to others what it once had, and tells so where it should have."""

    def _take(self, entries: Sequence[Entry]) -> dict[tuple[int, int], RecordEffect]:
        had = dict(self.holdings)
        answers = super()._take(entries)
        lost = had.keys() - self.holdings.keys()
        self.holdings = had | self.holdings
        if lost:  # at its next turn it may own all of it again
            _print_held(self)
        return answers


def _print_held(member: Member) -> dict[int, int]:
    """One line of what is held, by partition and token."""
    held = {p: one.token for p, one in member.holdings.items()}
    sys.stdout.write(json.dumps([member.who.client_id, member.world.tables[0].next, held]) + "\n")
    sys.stdout.flush()
    return held


def take_part(
    connection: Connection,
    topic: str,
    who: Membership,
    stop: threading.Event,
    *,
    skew_s: float = 0.0,
    rate: float = 1.0,
    snapshot_records: int = state.SNAPSHOT_RECORDS,
    believing: bool = False,
) -> None:
    """
    Claim, beat and give back until ``stop``; what is held goes to stdout when it changes, and once per interval, a line
    each, as `proof.claims.history.MemberView`.

    ``skew_s``: the wall clock is wrong by so much. ``rate``: how fast the monotonic clock runs.

    Raises:
        Refused: the log is not what it was.
    """
    state.SNAPSHOT_RECORDS = snapshot_records  # a short run is to see snapshots, too
    log = _SkewedLog(connection, topic)
    log.skew_s = skew_s
    member = (_IgnoringLostClaims if believing else Member)(log, who, lambda: time.monotonic() * rate)
    told, tell_at = dict[int, int](), 0.0
    try:
        _join(member, stop)
        while not stop.wait(who.interval_s / _LOOKS_PER_INTERVAL):
            try:
                member.turn(Deadline(_TURN_S))
                member.release_partitions({p: member.holdings[p] for p in member.give_back_wanted}, Deadline(_TURN_S))
            except (DeadlineExceeded, KafkaFailure):
                stop.wait(_AGAIN_S)  # brokers are killed on purpose; what is held now counts all the same
            held = {p: one.token for p, one in member.holdings.items()}
            if held != told or time.monotonic() > tell_at:
                told, tell_at = _print_held(member), time.monotonic() + who.interval_s
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


_LOOK_S, _READ_S, _WATCHING_JOIN_S = 0.02, 5.0, 10.0


class ClaimsFollower:
    """Follows a log from its first record on, in a thread; makes the topic."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self.history = History()
        self._log = ClaimsLog(connection, topic)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watching claims", daemon=True)

    def _run(self) -> None:
        self._log.tail({0: 0})
        while not self._end.wait(_LOOK_S):
            with contextlib.suppress(BrewError):  # brokers are killed on purpose
                self._take({})

    def _take(self, until: dict[int, int]) -> None:
        for entry in self._log.read(until, Deadline(_READ_S)):
            self.history.add(entry.offset, entry.time_ms, entry.value)

    def snapshots_left(self) -> int:
        """How many snapshots the log still holds."""
        deadline = Deadline(_READ_S)
        return sum(entry.key == b"Snapshot" for entry in self._log.history(self._log.bounds(deadline), deadline))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(_WATCHING_JOIN_S)
        with contextlib.suppress(BrewError):
            if kind is None:
                self._take({0: self._log.bounds(Deadline(_READ_S))[0][1]})
        self._log.close()
