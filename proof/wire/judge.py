"""What a late frame did: attempts as the writer knows them, held against what lies in the log. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class AttemptState(enum.StrEnum):
    """
    What the writer knows of its transaction.

    `GIVEN_UP`: it never asked for a commit. `COMMITTED`: its commit was acknowledged. `UNKNOWN`: it was not.
    """

    GIVEN_UP = "given up"
    COMMITTED = "committed"
    UNKNOWN = "unknown"


@dataclass
class Attempt:
    """One transaction of a try: the keys of its delivered records, the offset that it sent, its fate."""

    name: str
    keys: list[str] = field(default_factory=list)
    until: int | None = None
    fate: AttemptState = AttemptState.GIVEN_UP
    error: str = ""


@dataclass
class Try:
    """One go: ``late`` is the error code that answered the late frame, None when nothing did."""

    number: int
    script: str
    attempts: list[Attempt] = field(default_factory=list)
    late: int | None = None
    late_epoch: int = -1
    position: int | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class RecordPlacement:
    """Where a record lies, who wrote it, whether a `read_committed` reader gets it, and how often."""

    offset: int
    producer_id: int
    epoch: int
    visible: bool
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A name of the fault catalogue, with its place and its evidence."""

    name: str
    offset: int
    producer_id: int
    epoch: int
    evidence: str


def anomalies(one: Try, log: Mapping[str, RecordPlacement]) -> list[Anomaly]:
    """What is wrong with a try: torn transactions, commits that got lost, a position that is not the last commit's."""
    found = [anomaly for attempt in one.attempts if (anomaly := _of_attempt(attempt, log)) is not None]
    acknowledged = [a.until for a in one.attempts if a.fate is AttemptState.COMMITTED and a.until is not None]
    unknown = any(a.fate is AttemptState.UNKNOWN for a in one.attempts)
    if acknowledged and one.position != acknowledged[-1] and not unknown:
        name = "offset-regression" if one.position is not None and one.position < acknowledged[-1] else "offset-ahead"
        told = f"the group stands at {one.position}, the last acknowledged commit was {acknowledged[-1]}"
        found.append(Anomaly(name, -1, -1, -1, told))
    return found


def _of_attempt(attempt: Attempt, log: Mapping[str, RecordPlacement]) -> Anomaly | None:
    places = [log[key] for key in attempt.keys if key in log]
    visible = [place for place in places if place.visible]
    if attempt.fate is AttemptState.COMMITTED and len(visible) < len(attempt.keys):
        at = next((place for place in places if not place.visible), RecordPlacement(-1, -1, -1, visible=False))
        told = f"{attempt.name} was acknowledged, {len(visible)} of its {len(attempt.keys)} records are visible"
        return Anomaly("lost-commit", at.offset, at.producer_id, at.epoch, told)
    if not visible:
        return None
    if twice := [place for place in visible if place.copies > 1]:
        at = twice[0]
        told = f"{len(twice)} of {len(attempt.keys)} records of {attempt.name} are visible {at.copies} times"
        return Anomaly("duplicate-output", at.offset, at.producer_id, at.epoch, told)
    at = visible[0]
    told = f"{len(visible)} of {len(attempt.keys)} records of {attempt.name} ({attempt.fate}) are visible"
    if attempt.fate is AttemptState.GIVEN_UP or len(visible) < len(attempt.keys):
        return Anomaly("torn-txn", at.offset, at.producer_id, at.epoch, told)
    return None


@dataclass(frozen=True)
class Tally:
    """All tries of one writer: verdicts, what answered the late frames, and the anomalies by name."""

    tries: int
    clean: int
    broken: int
    inconclusive: int
    names: Counter[str]
    late: Counter[str]
    first: list[tuple[int, Anomaly]]
    troubles: list[str]


def tally(tries: Sequence[Try], log: Mapping[str, RecordPlacement], error_name: Mapping[int, str]) -> Tally:
    """Count; a try whose late frame got no answer, or that met trouble, is inconclusive unless something is wrong."""
    names: Counter[str] = Counter()
    late: Counter[str] = Counter()
    first: list[tuple[int, Anomaly]] = []
    clean = broken = inconclusive = 0
    for one in tries:
        found = anomalies(one, log)
        late["no answer" if one.late is None else error_name[one.late]] += 1
        names.update({anomaly.name for anomaly in found})
        first += [(one.number, anomaly) for anomaly in found]
        if found:
            broken += 1
        elif one.late is None or one.trouble:
            inconclusive += 1
        else:
            clean += 1
    troubles = [f"try {one.number}: {one.trouble}" for one in tries if one.trouble]
    return Tally(len(tries), clean, broken, inconclusive, names, late, first[:20], troubles[:20])
