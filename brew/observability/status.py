"""The document of `/status`, as values."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson


class State(enum.StrEnum):
    """State of a whole program, as reported."""

    STARTING = "starting"
    WORKING = "working"
    IDLE = "idle"
    STOPPING = "stopping"
    STOPPED = "stopped"


class PartitionState(enum.StrEnum):
    """State of one partition; only the last two are unhealthy."""

    IDLE = "idle"
    WORKING = "working"
    BLOCKED = "blocked"
    FENCED = "fenced"
    STUCK = "stuck"
    UNRECOVERABLE = "unrecoverable"


UNHEALTHY = frozenset({PartitionState.STUCK, PartitionState.UNRECOVERABLE})


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one probe; ``reason`` is in words and never empty."""

    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Topics:
    """Where a program reads and writes; a program that writes no topic has null there."""

    input: str
    output: str | None = None
    dead_letter: str | None = None


@dataclass(frozen=True, slots=True)
class Transactions:
    """
    How attempts ended; ``refused`` ones wrote nothing, because the position was a different one. ``indefinite``: only
    the next attempt's *locate* finds out whether they were committed.
    """

    committed: int = 0
    aborted: int = 0
    fenced: int = 0
    refused: int = 0
    indefinite: int = 0


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """
    The last transaction that ended; ``steps`` maps the names of brew.names.STEPS to seconds, as far as known.
    ``producer_id`` and ``epoch`` are those of the id's newest holder, if they were asked for; a transaction that has
    begun since has a newer epoch. ``producer_unknown`` says why they are null. ``until``: the position that it
    committed; null if it did not commit.
    """

    transactional_id: str | None = None
    producer_id: int | None = None
    epoch: int | None = None
    records: int | None = None
    seconds: float | None = None
    steps: Mapping[str, float] = field(default_factory=dict)
    producer_unknown: str | None = "not requested; /status?producers asks the brokers"
    until: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """
    One input partition.

    ``position`` is the committed offset, ``end`` the last stable offset, ``lag`` the difference; ``held_back`` is the
    number of offsets after ``end``, which wait for an open transaction. ``rate`` is in records per second over the last
    ten seconds; ``step`` is the last step that was reported; ``open_s``: seconds since a transaction began whose end
    was not reported yet. ``lag_s`` is the age of the oldest readable record that is not done: 0 if there is none, null
    if the program does not know.
    """

    topic: str
    partition: int
    state: PartitionState
    reason: str = ""
    position: int | None = None
    end: int | None = None
    lag: int | None = None
    records: int = 0
    rate: float = 0.0
    step: str | None = None
    polled_age_s: float | None = None
    progress_age_s: float | None = None
    transactions: Transactions = Transactions()
    last_transaction: LastTransaction | None = None
    held_back: int | None = None
    open_s: float | None = None
    lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """
    Sums over all partitions since the start; ``recovery_s`` is the duration of the last recovery, null if none.
    ``malformed_profiles``: records of the profiles' topic that are not profiles; null without profiles.
    ``without_leader``: input partitions that have no leader and are left out; null if the program does not know.
    """

    records: int = 0
    rate: float = 0.0
    transactions: int = 0
    dead_letters: int = 0
    fences: int = 0
    recovery_s: float | None = None
    malformed_profiles: int | None = None
    without_leader: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """The whole document; ``started_at`` and ``now`` are ISO 8601 in UTC, ``reader`` is null outside the pipeline."""

    application: str
    version: str
    group: str | None
    topics: Topics
    bootstrap: str
    pid: int
    host: str
    started_at: str
    now: str
    state: State
    reader: str | None
    partitions: Sequence[PartitionStatus]
    totals: Totals
    live: Answer
    ready: Answer
    started: Answer

    def to_json(self) -> bytes:
        return orjson.dumps(self, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def from_json(document: bytes | str) -> Status:
    """Parse a document of any version, with defaults for what it lacks; raises `ValueError` if it is none."""
    try:
        read = orjson.loads(document)
        partitions = tuple(_partition(entry) for entry in read["partitions"])
        parts = {
            "topics": Topics(**_known(Topics, read["topics"])),
            "state": State(read["state"]),
            "partitions": partitions,
            "totals": Totals(**_known(Totals, read["totals"])),
            **{name: Answer(**_known(Answer, read[name])) for name in ("live", "ready", "started")},
        }
        return Status(**{**_known(Status, read), **parts})
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a status document: {error}") from error


def _partition(read: Mapping[str, Any]) -> PartitionStatus:
    last = read.get("last_transaction")
    parts = {
        "state": PartitionState(read["state"]),
        "transactions": Transactions(**_known(Transactions, read.get("transactions") or {})),
        "last_transaction": None if last is None else LastTransaction(**_known(LastTransaction, last)),
    }
    return PartitionStatus(**{**_known(PartitionStatus, read), **parts})


def _known(kind: Any, read: Mapping[str, Any]) -> dict[str, Any]:
    names = kind.__dataclass_fields__
    return {name: value for name, value in read.items() if name in names}


class Phase(enum.StrEnum):
    """Phase of a whole program, as recorded."""

    STARTING = "starting"
    STANDING_BY = "standing-by"
    WORKING = "working"
    STOPPING = "stopping"
    STOPPED = "stopped"
