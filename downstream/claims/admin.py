"""Administration of a group through its claims log: inspect, pause, set positions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from brew.claims.member import Member, Membership, read_to_end
from brew.claims.messages import NOTHING
from brew.claims.state import BrokerClock, ClaimsView, Status, status
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.claims_log import ClaimsLog
from brew.kafka.clients import SILENT_S
from downstream.consume.handler import fresh_client_id

READ_S = 30.0
_LOOK_S = 0.05


class Row(NamedTuple):
    """One partition of one group, as recorded in the log; times in seconds of the brokers' clock."""

    group: str
    topic: str
    partition: int
    owner: str | None
    state: str
    heard_s_ago: float
    interval_s: float
    position: int
    token: int


class MemberRow(NamedTuple):
    """One member, whether it owns partitions or not."""

    group: str
    topic: str
    client: str
    state: str
    heard_s_ago: float


class PauseRow(NamedTuple):
    group: str
    by: str
    ends_in_s: float


@dataclass(frozen=True, slots=True)
class ClaimsSnapshot:
    rows: list[Row]
    members: list[MemberRow]
    pauses: list[PauseRow]


@dataclass(frozen=True, slots=True)
class Filter:
    """The group and topic to show; None selects all."""

    group: str | None = None
    topic: str | None = None

    def __call__(self, group: str, topic: str | None = None) -> bool:
        return self.group in {None, group} and (topic is None or self.topic in {None, topic})


class Watcher:
    """Reads the log, writes nothing; takes this machine's clock for the brokers' until new records arrive."""

    def __init__(self, connection: Connection, claims_topic: str) -> None:
        self._log = ClaimsLog(connection, claims_topic, create=False)
        self.view: ClaimsView = read_to_end(self._log, Deadline(READ_S))
        self._clock = BrokerClock()
        for partition, table in enumerate(self.view.tables):
            self._clock.observe(partition, max(table.clock, time.time_ns() // 1_000_000))
        self._silent = Deadline(SILENT_S)

    def read_new(self) -> bool:
        """Read new log entries; return True if there were any."""
        records = self._log.read({}, Deadline(READ_S))
        for entry in records:
            self.view.apply(entry)
            self._clock.observe(entry.partition, entry.time_ms)
        if records or self._silent.expired():
            if not records:
                self._log.replace_cut_off()
            self._silent = Deadline(SILENT_S)
        return bool(records)

    def snapshot(self, wanted: Filter) -> ClaimsSnapshot:
        return claims_snapshot(self.view, self._clock, wanted)

    def close(self) -> None:
        self._log.close()


def claims_snapshot(view: ClaimsView, clock: BrokerClock, wanted: Filter) -> ClaimsSnapshot:
    rows, members, pauses = [], {}, {}
    for index, table in enumerate(view.tables):
        now = clock.now_ms(index)
        for place, owner in table.owners.items():
            if wanted(place[0], place[1]):
                state = "free" if owner.client_id is None else str(owner.status(now))
                age, interval = (now - owner.last_heartbeat_ms) / 1000, owner.interval_ms / 1000
                rows.append(Row(*place, owner.client_id, state, age, interval, owner.position, owner.token))
        for (group, topic), known in table.members.items():
            for client, member in known.items():
                who, state = (group, topic, client), status(member.last_heartbeat_ms, member.interval_ms, now)
                if wanted(group, topic) and state is not Status.STALE:
                    members[who] = MemberRow(*who, str(state), (now - member.last_heartbeat_ms) / 1000)
        for group, pause in table.pauses.items():
            if wanted(group) and now < pause.until:
                pauses[group] = PauseRow(group, pause.client, (pause.until - now) / 1000)
    return ClaimsSnapshot(sorted(rows), sorted(members.values()), sorted(pauses.values()))


@contextmanager
def administrator(
    connection: Connection, claims_topic: str, group: str, topic: str, partitions: tuple[int, ...] = ()
) -> Iterator[Member]:
    """Join as a member that is assigned no partitions."""
    with closing(ClaimsLog(connection, claims_topic, create=False)) as log:
        member = Member(log, Membership(fresh_client_id(), group, topic, partitions, works=False))
        member.join(Deadline(READ_S))
        yield member


def pause(member: Member, wanted: Filter, for_s: float, wait_s: float) -> None:
    """Pause a group until no partition has an owner; raises `Refused`, the pause lifted, if one still has."""
    member.pause_group(for_s, Deadline(READ_S))
    try:
        _await_release(member, wanted, for_s, wait_s)
    except BaseException:  # also a signal's: the group would stay idle until the pause is over
        member.pause_group(0, Deadline(READ_S))
        raise


def _await_release(member: Member, wanted: Filter, for_s: float, wait_s: float) -> None:
    within_s, option = min((wait_s, "--wait-s"), (for_s, "--for-s"))  # after the pause they claim again
    deadline = Deadline(within_s)
    while held := _owners(member, wanted):
        if deadline.expired():
            raise Refused(
                f"{wanted.group} still owns partitions after {deadline.budget_s:g} s: {', '.join(sorted(held))}; "
                f"the pause was ended. Stop these members, or wait longer ({option})"
            )
        time.sleep(_LOOK_S)
        member.read_new(Deadline(READ_S))


def _owners(member: Member, wanted: Filter) -> set[str]:
    rows = claims_snapshot(member.view, member.clock, wanted).rows
    return {row.owner for row in rows if row.owner is not None and row.state != Status.STALE}


class PositionChange(NamedTuple):
    """A partition's position before and after; -1 means none."""

    partition: int
    before: int
    after: int


def set_position(
    member: Member, positions: Callable[[], Mapping[int, int]], wanted: Filter, wait_s: float
) -> list[PositionChange]:
    """Pause the group, set its positions through claims of our own, and resume; raises `Refused` if a member works."""
    pause(member, wanted, 2 * wait_s + READ_S, wait_s)
    try:
        asked = positions()
        before = {p: claim.position for p, claim in member.owned().items()}
        member.claim(sorted(asked), Deadline(READ_S))
        missing = sorted(asked.keys() - member.holdings.keys())
        if missing:
            raise Refused(f"partitions {missing} could not be claimed: another process ended the pause; try again")
        member.release_partitions(
            {p: replace(member.holdings[p], position=offset) for p, offset in asked.items()}, Deadline(READ_S)
        )
        return [PositionChange(p, before.get(p, NOTHING), offset) for p, offset in sorted(asked.items())]
    finally:
        member.release_partitions(dict(member.holdings), Deadline(READ_S))
        member.pause_group(0, Deadline(READ_S))
