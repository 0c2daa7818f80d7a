"""The experiments of F11 to F13: two writers as in tutorials and ours, their scripts, and the anomalies of a try."""

from __future__ import annotations

import contextlib
import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError
from brew.kafka.clients import KafkaException, TopicPartition, consumer, mapped, producer
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED, TransactionalId
from proof.wire.codec import Api, error_name
from proof.wire.proxy import WireProxy
from proof.wire.rules import Action, Rule, Side, Trap

# How far a try may move the group's offset; a script uses one offset per transaction.
_OFFSETS_PER_TRY = 10
_KEPT = 20
STEP_S, _TIMEOUT_S, _MESSAGE_MAX = 20.0, 60.0, 1_000_000
# librdkafka 2.16 restarts from its bootstrap servers when its only broker connection breaks; a reused producer's next
# send-offsets then hung past its time-out (docs/decisions/0007). It also doubles its reconnect backoff with each of our
# cuts, up to ten seconds.
_STEADY = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 50}


class ReusingWriter:
    """The positive control, as in tutorials: one producer for all transactions, replaced only after a fatal error."""

    _settings: ClassVar[dict[str, object]] = _STEADY
    _transactional = True

    def __init__(self, connection: Connection, group: str, source: str, output: str) -> None:
        self._name = str(TransactionalId(group, source, 0)) if self._transactional else None
        self._connection, self._group, self._source, self._output = connection, group, source, output
        self._reader = consumer(connection, group, READ_COMMITTED)
        self._open()

    def _open(self) -> None:
        self._producer = producer(
            self._connection, self._name, timeout_s=_TIMEOUT_S, message_max_bytes=_MESSAGE_MAX, **self._settings
        )
        if self._transactional:
            with mapped("fence"):
                self._producer.init_transactions(STEP_S)

    def begin(self) -> None:
        with mapped("begin"):
            self._producer.begin_transaction()

    def write(self, records: list[tuple[str, bytes]]) -> None:
        with mapped("produce"):
            for key, value in records:
                self._producer.produce(self._output, value, key, 0)
            self._producer.flush(STEP_S)

    def send_offsets(self, until: int) -> None:
        offsets = [TopicPartition(self._source, 0, until)]
        with mapped("send-offsets"):
            self._producer.send_offsets_to_transaction(offsets, self._reader.consumer_group_metadata(), STEP_S)

    def commit(self) -> None:
        with mapped("commit"):
            self._producer.commit_transaction(STEP_S)

    def abort(self) -> None:
        with mapped("abort"):
            self._producer.abort_transaction(STEP_S)

    def recover(self) -> None:
        """Replace the producer, as after a fatal error."""
        self._end()
        self._open()

    def close(self) -> None:
        self._end()
        self._reader.close()

    def _end(self) -> None:
        # librdkafka's `close` would wait without limit for the abort of an open transaction.
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(STEP_S)
        del self._producer


class PlainWriter(ReusingWriter):
    """The positive control for records: without sequence numbers, a batch that arrives twice is written twice."""

    _settings: ClassVar[dict[str, object]] = {"enable.idempotence": False, **_STEADY}
    _transactional = False
    _until = 0

    def begin(self) -> None:
        """Do nothing: there is no transaction."""

    def send_offsets(self, until: int) -> None:
        self._until = until

    def commit(self) -> None:
        with mapped("commit"):
            self._reader.commit(offsets=[TopicPartition(self._source, 0, self._until)], asynchronous=False)

    def abort(self) -> None:
        """Do nothing: written records stay."""


class StrictWriter:
    """The product's transaction, a new object each time: fence, locate, begin, produce, send offsets, commit."""

    def __init__(self, connection: Connection, group: str, source: str, output: str) -> None:
        self._settings = TransactionSettings(connection, group, _TIMEOUT_S)
        self._source, self._output = source, output
        self._now: KafkaTransaction | None = None

    @property
    def _transaction(self) -> KafkaTransaction:
        assert self._now is not None, "no transaction is open; call begin() first"
        return self._now

    def begin(self) -> None:
        self._now = KafkaTransaction(self._settings, self._source, 0)
        deadline = Deadline(STEP_S)
        self._now.fence(deadline)
        self._now.locate(deadline)
        self._now.begin()

    def write(self, records: list[tuple[str, bytes]]) -> None:
        with self._transaction.mapped("produce"):
            for key, value in records:
                self._transaction.produce(self._output, value, key, 0, None, None, 0, None)
        self._transaction.flush(Deadline(STEP_S))

    def send_offsets(self, until: int) -> None:
        self._transaction.send_offsets(until, "", Deadline(STEP_S))

    def commit(self) -> None:
        self._transaction.commit(Deadline(STEP_S))
        self.close()

    def abort(self) -> None:
        self._transaction.abort(Deadline(STEP_S))
        self.close()

    def recover(self) -> None:
        """Destroy the producer; the next fence and locate decide."""
        self.close()

    def close(self) -> None:
        if self._now is not None:
            self._now.close()
            self._now = None


Writer = ReusingWriter | StrictWriter
"""A transaction step by step; a step that fails raises a leaf of `brew.errors`."""
WRITERS: dict[str, type[Writer]] = {"reuse": ReusingWriter, "plain": PlainWriter, "strict": StrictWriter}


class AttemptState(enum.StrEnum):
    """What the writer knows: no commit was requested (`GIVEN_UP`), or it was acknowledged, or it was not."""

    GIVEN_UP = "given up"
    COMMITTED = "committed"
    UNKNOWN = "unknown"


@dataclass
class Attempt:
    """One transaction of a try: the keys of its records, delivered or not, the offset it sent, and its state."""

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
    sent = [attempt for attempt in tried.attempts if attempt.until is not None]
    committed = [attempt.until for attempt in sent if _took_effect(attempt, log)]
    last = committed[-1] if committed else None
    if tried.position != last and (last is not None or tried.position in {attempt.until for attempt in sent}):
        behind = last is not None and (tried.position is None or tried.position < last)
        evidence = f"the group stands at {tried.position}, the last commit that took effect sent {last}"
        found.append(Anomaly("offset-regression" if behind else "offset-ahead", -1, -1, -1, evidence))
    return found


def _took_effect(attempt: Attempt, log: Mapping[str, RecordPlacement]) -> bool:
    """Return whether the transaction is committed: its records show it where no acknowledgment came."""
    visible = any(log[key].visible for key in attempt.keys if key in log)
    return attempt.state is AttemptState.COMMITTED or (attempt.state is AttemptState.UNKNOWN and visible)


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


def tally(tries: Sequence[Try], log: Mapping[str, RecordPlacement]) -> Tally:
    """Count the tries; one without anomalies is inconclusive if it met trouble or its late frame got no reply."""
    found = {tried.number: anomalies(tried, log) for tried in tries}
    broken = sum(map(bool, found.values()))
    unclear = [tried for tried in tries if not found[tried.number] and (tried.late is None or tried.trouble)]
    return Tally(
        *(len(tries), len(tries) - broken - len(unclear), broken, len(unclear)),
        names=Counter(name for some in found.values() for name in {anomaly.name for anomaly in some}),
        late=Counter("no answer" if tried.late is None else error_name(tried.late) for tried in tries),
        first=[(number, anomaly) for number, some in found.items() for anomaly in some][:_KEPT],
        troubles=[f"try {tried.number}: {tried.trouble}" for tried in tries if tried.trouble][:_KEPT],
    )


class _TryRun:
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
        attempt.keys += keys  # before they are written: a batch that failed may have been delivered
        self.writer.write([(key, b"late frames") for key in keys])

    def send_offsets(self, attempt: Attempt, step: int) -> None:
        until = self.result.number * _OFFSETS_PER_TRY + step
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
            self.end(attempt, step, count)
        except BrewError:
            self.writer.recover()
            self.end(self.begin(f"{attempt.name}-again"), step, count)
        trap.caught(Deadline(STEP_S))

    def end(self, attempt: Attempt, step: int, count: int = 0) -> None:
        """Write ``count`` records more, send the offset, and commit."""
        if count:
            self.write(attempt, count)
        self.send_offsets(attempt, step)
        self.commit(attempt)

    def too_late(self, trap: Trap) -> None:
        """Release the held frame and wait for the broker's reply to it."""
        trap.release()
        self.result.late = trap.answered(Deadline(STEP_S)).error


def late_commit(run: _TryRun, trap: Trap) -> None:
    """F11: the first transaction's commit arrives inside the second one, which is then aborted and repeated."""
    first = run.begin("first", 2)
    run.end(first, 1)
    trap.caught(Deadline(STEP_S))
    run.begin("second", 1)
    run.too_late(trap)
    run.give_up()
    run.finish(run.begin("third"), trap, 2, 2)


def late_abort(run: _TryRun, trap: Trap) -> None:
    """F11: the first transaction's abort arrives inside the second one, which continues and commits."""
    run.begin("first", 1)
    run.give_up()
    trap.caught(Deadline(STEP_S))
    second = run.begin("second", 2)
    run.too_late(trap)
    run.finish(second, trap, 0, 1)


def late_offsets(run: _TryRun, trap: Trap) -> None:
    """F12: the first transaction's offset arrives inside the second one, after the second one's own."""
    first = run.begin("first", 1)
    run.send_offsets(first, 1)
    trap.caught(Deadline(STEP_S))
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
    trap.caught(Deadline(STEP_S))
    run.end(first, 1)
    second = run.begin("second", 1)
    run.too_late(trap)
    run.finish(second, trap, 1, 2)


def lost_records_reply(run: _TryRun, trap: Trap) -> None:
    """F13: the broker writes the batch, but its reply is lost; the client sends the batch again."""
    first = run.begin("first", 2)
    trap.caught(Deadline(STEP_S))
    run.result.late = 0  # the broker replied, but the reply was lost
    run.end(first, 1)


Script = Callable[[_TryRun, Trap], None]
SCRIPTS: dict[str, tuple[Script, Rule]] = {
    "late-commit": (late_commit, Rule(Api.EndTxn, committed=True, cut=True)),
    "late-abort": (late_abort, Rule(Api.EndTxn, committed=False, cut=True)),
    "late-offsets": (late_offsets, Rule(Api.TxnOffsetCommit, cut=True)),
    "late-records": (late_records, Rule(Api.Produce, cut=True)),
    "lost-records-reply": (lost_records_reply, Rule(Api.Produce, Action.CUT, Side.REPLY)),
}


def run_script(proxy: WireProxy, writer: Writer, number: int, script: str) -> Try:
    """Run a script once; an error is recorded in the try's ``trouble``, and the writer recovers."""
    steps, rule = SCRIPTS[script]
    run = _TryRun(writer, number, script)
    trap = proxy.add(rule)
    try:
        steps(run, trap)
    except BrewError as error:
        run.result.trouble = str(error)
        with contextlib.suppress(BrewError):
            writer.recover()
    finally:
        proxy.remove(trap)
    return run.result
