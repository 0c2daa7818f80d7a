"""The scripts of F11 to F13, which wait only for events, and the anomalies that a try leaves in the log."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from brew.deadline import Deadline
from brew.errors import BrewError
from proof.wire.codec import Api
from proof.wire.proxy import WireProxy
from proof.wire.rules import Action, Rule, Side, Trap
from proof.wire.writers import STEP_S, PositionReader, Writer

# How far a try may move the group's offset; a script uses one offset per transaction.
OFFSETS_PER_TRY = 10


class AttemptState(enum.StrEnum):
    """
    What the writer knows about its transaction.

    `GIVEN_UP`: no commit was requested. `COMMITTED`: the commit was acknowledged. `UNKNOWN`: it was not acknowledged.
    """

    GIVEN_UP = "given up"
    COMMITTED = "committed"
    UNKNOWN = "unknown"


@dataclass
class Attempt:
    """One transaction of a try: the keys of its delivered records, the offset it sent, and its state."""

    name: str
    keys: list[str] = field(default_factory=list)
    until: int | None = None
    state: AttemptState = AttemptState.GIVEN_UP


@dataclass
class Try:
    """One run of a script; ``late`` is the error code in the reply to the late frame, None without a reply."""

    number: int
    script: str
    attempts: list[Attempt] = field(default_factory=list)
    late: int | None = None
    position: int | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class RecordPlacement:
    """A record's offset, its producer, whether a `read_committed` reader gets it, and how often."""

    offset: int
    producer_id: int
    epoch: int
    visible: bool
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A violation by its name in the fault catalogue, with place and evidence."""

    name: str
    offset: int
    producer_id: int
    epoch: int
    evidence: str


def anomalies(tried: Try, log: Mapping[str, RecordPlacement]) -> list[Anomaly]:
    """Return a try's anomalies: torn, lost or duplicated transactions, and a position that is not the last commit's."""
    found = [anomaly for attempt in tried.attempts if (anomaly := _of_attempt(attempt, log)) is not None]
    acknowledged = [a.until for a in tried.attempts if a.state is AttemptState.COMMITTED and a.until is not None]
    unknown = any(a.state is AttemptState.UNKNOWN for a in tried.attempts)
    if acknowledged and tried.position != acknowledged[-1] and not unknown:
        behind = tried.position is not None and tried.position < acknowledged[-1]
        name = "offset-regression" if behind else "offset-ahead"
        evidence = f"the group stands at {tried.position}, the last acknowledged commit was {acknowledged[-1]}"
        found.append(Anomaly(name, -1, -1, -1, evidence))
    return found


def _of_attempt(attempt: Attempt, log: Mapping[str, RecordPlacement]) -> Anomaly | None:
    places = [log[key] for key in attempt.keys if key in log]
    visible = [place for place in places if place.visible]

    def anomaly(name: str, place: RecordPlacement, evidence: str) -> Anomaly:
        return Anomaly(name, place.offset, place.producer_id, place.epoch, evidence)

    if attempt.state is AttemptState.COMMITTED and len(visible) < len(attempt.keys):
        hidden = next((place for place in places if not place.visible), RecordPlacement(-1, -1, -1, visible=False))
        evidence = f"{attempt.name} was acknowledged, {len(visible)} of its {len(attempt.keys)} records are visible"
        return anomaly("lost-commit", hidden, evidence)
    if not visible:
        return None
    if twice := [place for place in visible if place.copies > 1]:
        count = f"{len(twice)} of {len(attempt.keys)} records of {attempt.name}"
        return anomaly("duplicate-output", twice[0], f"{count} are visible {twice[0].copies} times")
    if attempt.state is AttemptState.GIVEN_UP or len(visible) < len(attempt.keys):
        evidence = f"{len(visible)} of {len(attempt.keys)} records of {attempt.name} ({attempt.state}) are visible"
        return anomaly("torn-txn", visible[0], evidence)
    return None


@dataclass(frozen=True)
class Tally:
    """All tries of one writer: verdicts, replies to the late frames, and anomalies by name."""

    tries: int
    clean: int
    broken: int
    inconclusive: int
    names: Counter[str]
    late: Counter[str]
    first: list[tuple[int, Anomaly]]
    troubles: list[str]


def tally(tries: Sequence[Try], log: Mapping[str, RecordPlacement], error_name: Mapping[int, str]) -> Tally:
    """Count the tries; one without anomalies is inconclusive if it met trouble or its late frame got no reply."""
    names, late, first = Counter[str](), Counter[str](), list[tuple[int, Anomaly]]()
    clean = broken = inconclusive = 0
    for tried in tries:
        found = anomalies(tried, log)
        late["no answer" if tried.late is None else error_name[tried.late]] += 1
        names.update({anomaly.name for anomaly in found})
        first += [(tried.number, anomaly) for anomaly in found]
        if found:
            broken += 1
        elif tried.late is None or tried.trouble:
            inconclusive += 1
        else:
            clean += 1
    troubles = [f"try {tried.number}: {tried.trouble}" for tried in tries if tried.trouble]
    return Tally(len(tries), clean, broken, inconclusive, names, late, first[:20], troubles[:20])


class _TryRun:
    """One running try."""

    def __init__(self, writer: Writer, number: int, script: str) -> None:
        self.writer = writer
        self.result = Try(number, script)

    def begin(self, name: str, count: int = 0) -> Attempt:
        """Begin a transaction, and deliver ``count`` records of it."""
        self.writer.begin()
        self.result.attempts.append(attempt := Attempt(name))
        if count:
            self.write(attempt, count)
        return attempt

    def write(self, attempt: Attempt, count: int) -> None:
        stem = f"{self.result.number}/{attempt.name}"
        keys = [f"{stem}/{len(attempt.keys) + n}" for n in range(count)]
        self.writer.write([(key, b"late frames") for key in keys])
        attempt.keys += keys

    def send_offsets(self, attempt: Attempt, step: int) -> None:
        until = self.result.number * OFFSETS_PER_TRY + step
        self.writer.send_offsets(until)
        attempt.until = until

    def commit(self, attempt: Attempt) -> None:
        attempt.state = AttemptState.UNKNOWN
        self.writer.commit()
        attempt.state = AttemptState.COMMITTED

    def give_up(self) -> None:
        """Abort, as after an application's error; if that fails, recover the writer."""
        try:
            self.writer.abort()
        except BrewError:
            self.writer.recover()

    def finish(self, attempt: Attempt, trap: Trap, count: int, step: int) -> None:
        """Write the rest and commit; if that fails, recover the writer and repeat the transaction once."""
        try:
            self._rest(attempt, count, step)
        except BrewError:
            self.writer.recover()
            self._rest(self.begin(f"{attempt.name}-again"), count, step)
        trap.caught(_soon())

    def _rest(self, attempt: Attempt, count: int, step: int) -> None:
        if count:
            self.write(attempt, count)
        self.end(attempt, step)

    def end(self, attempt: Attempt, step: int) -> None:
        self.send_offsets(attempt, step)
        self.commit(attempt)

    def too_late(self, trap: Trap) -> None:
        """Release the held frame and wait for the broker's reply to it."""
        trap.release()
        self.result.late = trap.answered(_soon()).error


def late_commit(run: _TryRun, trap: Trap) -> None:
    """F11: the first transaction's commit arrives inside the second one, which is then aborted and repeated."""
    first = run.begin("first", 2)
    run.end(first, 1)
    trap.caught(_soon())
    run.begin("second", 1)
    run.too_late(trap)
    run.give_up()
    run.finish(run.begin("third"), trap, 2, 2)


def late_abort(run: _TryRun, trap: Trap) -> None:
    """F11: the first transaction's abort arrives inside the second one, which continues and commits."""
    run.begin("first", 1)
    run.give_up()
    trap.caught(_soon())
    second = run.begin("second", 2)
    run.too_late(trap)
    run.finish(second, trap, 0, 1)


def late_offsets(run: _TryRun, trap: Trap) -> None:
    """F12: the first transaction's offset arrives inside the second one, after the second one's own."""
    first = run.begin("first", 1)
    run.send_offsets(first, 1)
    trap.caught(_soon())
    run.commit(first)
    second = run.begin("second", 1)
    run.send_offsets(second, 2)
    run.too_late(trap)
    try:
        run.commit(second)
    except BrewError:
        run.writer.recover()


def late_records(run: _TryRun, trap: Trap) -> None:
    """F12: the first transaction's record batch arrives inside the second one, after one of its own batches."""
    first = run.begin("first", 1)
    trap.caught(_soon())
    run.end(first, 1)
    second = run.begin("second", 1)
    run.too_late(trap)
    run.finish(second, trap, 1, 2)


def lost_records_reply(run: _TryRun, trap: Trap) -> None:
    """F13: the broker writes the batch, but its reply is lost; the client sends the batch again."""
    first = run.begin("first", 2)
    trap.caught(_soon())
    run.result.late = 0  # the broker replied, but the reply was lost
    run.end(first, 1)


Script = Callable[[_TryRun, Trap], None]
SCRIPTS: dict[str, tuple[Script, Rule]] = {
    "late-commit": (late_commit, Rule(Api.END_TXN, committed=True, cut=True)),
    "late-abort": (late_abort, Rule(Api.END_TXN, committed=False, cut=True)),
    "late-offsets": (late_offsets, Rule(Api.TXN_OFFSET_COMMIT, cut=True)),
    "late-records": (late_records, Rule(Api.PRODUCE, cut=True)),
    "lost-records-reply": (lost_records_reply, Rule(Api.PRODUCE, Action.CUT, Side.REPLY)),
}


def run_script(proxy: WireProxy, writer: Writer, positions: PositionReader, number: int, script: str) -> Try:
    """Run a script once; an error is recorded in the try's ``trouble``, and the writer recovers."""
    steps, rule = SCRIPTS[script]
    run = _TryRun(writer, number, script)
    trap = proxy.add(rule)
    try:
        steps(run, trap)
    except BrewError as error:
        run.result.trouble = str(error)
        with suppress(BrewError):
            writer.recover()
    finally:
        proxy.remove(trap)
    run.result.position = positions.position()
    return run.result


def _soon() -> Deadline:
    return Deadline(STEP_S)
