"""Build the view from the sources' answers; pure, with the time as an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from brew.names import quantity
from brew.observability.status import PartitionStatus, Status
from brew.preflight import Finding
from operations import labels
from operations.partition_state import PartitionSnapshot
from operations.ui.model import (
    History,
    InputSnapshot,
    Names,
    OutputTail,
    PollResult,
    Proof,
    Row,
    SourceStatus,
    Totals,
    Transaction,
    TransactionDurations,
    View,
    transactions,
)
from operations.xray.model import Strip

MOST_TRANSACTIONS = 40
_OVERRULES = {"unrecoverable", "stuck", "fenced"}
_NAMED_BY_KAFKA = {"blocked", "idle"}
_UNPROVEN = "not verified yet; run brew verify (make verify)"
_OUTDATED = "the output topic was recreated since the last one; run brew verify (make verify)"
_NO_PROGRAM = "none answers on this machine (--status-url); states and durations are from Kafka"


@dataclass(frozen=True, slots=True)
class PollResults:
    """The last answer of each source; None if it is not polled."""

    flow: PollResult[InputSnapshot]
    tail: PollResult[OutputTail]
    statuses: tuple[PollResult[Status], ...] = ()
    proof: PollResult[Proof | None] | None = None
    preflight: PollResult[list[Finding]] | None = None


class ViewHistory:
    """State that is kept between views: rates, and durations of transactions."""

    def __init__(self) -> None:
        self.history = History()
        self.ages = TransactionDurations()

    def add(self, answers: PollResults) -> None:
        flow = answers.flow
        if flow.value is not None and flow.at_s is not None:
            self.history.add(flow.at_s, flow.value)
            self.ages.add(flow.value)
        for status in answers.statuses:
            if status.value is not None:
                self.ages.add_reported(status.value)


def build_view(names: Names, answers: PollResults, memory: ViewHistory, now_s: float, now_ms: int, tail: int) -> View:
    """
    Return the view at one moment: positions and blocking transactions from Kafka, steps and rates from programs. A
    state that both report is the program's if unhealthy, else Kafka's if blocked or idle, else the program's.
    """
    memory.add(answers)
    ours, notes = _statuses(names, answers.statuses, now_s)
    reported: dict[int, PartitionStatus] = {}
    for status in ours:
        if (other := reported.get(status.partition)) is None or _age(status) < _age(other):
            reported[status.partition] = status
    flow, tails = answers.flow.value, answers.tail.value
    known = transactions(tails.all_strips, names.group, names.input) if tails else []
    ended = [memory.ages.with_duration(transaction, names.input, now_ms) for transaction in known]
    rows = tuple(_rows(answers, memory.history, reported, ended, now_s))
    if flow is not None and flow.unavailable:
        notes.append(f"not reported by the brokers: {flow.unavailable}")
    if tails is not None:
        notes += [f"not reported by the brokers: {reason}" for reason in tails.unavailable]
    if tails is not None and tails.strips and flow is not None:
        inputs, outputs = len(flow.snapshots) + flow.leaderless, len(tails.strips) + tails.unread
        if inputs != outputs:
            notes.append(
                f"{names.input} has {quantity(inputs, 'partition')} and {names.output} {outputs}: "
                "a row shows the tail of the output partition of the same number"
            )
    checks = None if answers.preflight is None or answers.preflight.value is None else tuple(answers.preflight.value)
    return View(
        names,
        now_ms,
        _source_statuses(answers, now_s, now_ms),
        rows,
        _totals(rows, ours, ended, memory.history, whole=flow is None or not flow.leaderless),
        tuple(ended[:MOST_TRANSACTIONS]),
        _current_proof(answers)[0],
        checks,
        tuple(notes),
        tail,
    )


def _statuses(
    names: Names, answers: Iterable[PollResult[Status]], now_s: float
) -> tuple[list[PartitionStatus], list[str]]:
    """Return what programs report of this group's partitions, and notes on those that are ignored."""
    ours, notes = [], []
    for answer in answers:
        if answer.value is None or answer.stale(now_s):
            continue
        if answer.value.group not in {None, names.group}:
            notes.append(f"{answer.name} reports group {answer.value.group}, not {names.group}, and is ignored")
            continue
        ours += [status for status in answer.value.partitions if status.topic == names.input]
    return ours, notes


def _age(status: PartitionStatus) -> float:
    return float("inf") if status.progress_age_s is None else status.progress_age_s


def _rows(
    answers: PollResults,
    history: History,
    reported: Mapping[int, PartitionStatus],
    ended: Sequence[Transaction],
    now_s: float,
) -> Iterable[Row]:
    flow, tail = answers.flow.value, answers.tail.value
    snapshots = {snapshot.partition: snapshot for snapshot in flow.snapshots} if flow else {}
    strips, also = (tail.strips, tail.also) if tail else ({}, ())
    latest: dict[int, Transaction] = {}
    for transaction in ended:
        if transaction.outcome != "open":
            latest.setdefault(transaction.partition if transaction.source is None else transaction.source, transaction)
    fresh = bool(snapshots) and not answers.flow.stale(now_s)
    now_ms = flow.now_ms if flow else 0
    for partition in sorted({*snapshots, *reported, *strips, *(strip.partition for strip in also)}):
        snapshot, status = snapshots.get(partition), reported.get(partition)
        kafka = history.state(partition) if snapshot is not None else ("unknown", "Kafka has not answered yet")
        state, why = _state(kafka, status, fresh=fresh)
        own_also = tuple(strip for strip in also if strip.partition == partition)
        row = Row(partition, state, why, strip=strips.get(partition), last=latest.get(partition), also=own_also)
        if snapshot is not None:
            row = _with_kafka_state(row, snapshot, history, now_ms)
        yield row if status is None else _with_program_status(row, status)


def _state(kafka: tuple[str, str], status: PartitionStatus | None, *, fresh: bool) -> tuple[str, str]:
    if status is None:
        return kafka
    own = (status.state.value, status.reason)
    if status.state.value in _OVERRULES or not fresh:
        return own
    return kafka if kafka[0] in _NAMED_BY_KAFKA else own


def _with_kafka_state(row: Row, snapshot: PartitionSnapshot, history: History, now_ms: int) -> Row:
    own = snapshot.own
    return replace(
        row,
        position=snapshot.position,
        last_stable=snapshot.log.last_stable,
        end=snapshot.log.end,
        left=snapshot.remaining.records,
        exact=snapshot.remaining.exact,
        rate=history.rate(snapshot.partition),
        trace=tuple(history.of.get(snapshot.partition, ())),
        open_s=own.age_s(now_ms) if own is not None and own.open else None,
        lag_s=snapshot.lag_s(now_ms),
    )


def _with_program_status(row: Row, status: PartitionStatus) -> Row:
    """Add steps and records, which only the program knows, and positions if Kafka does not report them."""
    own = status.last_transaction
    return replace(
        row,
        position=row.position if row.position is not None else status.position,
        end=row.end if row.end is not None else status.end,
        left=row.left if row.left is not None else status.lag,
        exact=row.exact and row.left is not None,  # the program's lag counts offsets
        lag_s=status.lag_s if status.lag_s is not None else row.lag_s,
        rate=status.rate,
        unit="records",
        step=status.step,
        steps={} if own is None else {step: float(seconds) for step, seconds in own.steps.items()},
    )


def _totals(
    rows: Sequence[Row],
    ours: Sequence[PartitionStatus],
    ended: Sequence[Transaction],
    history: History,
    *,
    whole: bool,
) -> Totals:
    """Sum up; not ``whole``: nobody knows the number of records in partitions without a leader, nor their age."""
    rates, unit = _rates(rows, history)
    lefts = [row.left for row in rows if row.left is not None]
    counted, outcomes = "in the tails", _outcomes(ended)
    if ours:
        counted, outcomes = "since the start of the programs", Counter({"open": outcomes["open"]})
        for made in (status.transactions for status in ours):
            outcomes += Counter({name: count for name, count in asdict(made).items() if name != "refused"})
    return Totals(
        sum(rates) if rates else None,
        unit,
        tuple(history.total),
        sum(lefts) if lefts and whole else None,
        whole and all(row.exact for row in rows),
        Counter(row.state for row in rows),
        outcomes,
        counted,
        max((row.lag_s for row in rows if row.lag_s is not None), default=None),
        whole and not any(row.left and row.lag_s is None for row in rows),
    )


def _rates(rows: Sequence[Row], history: History) -> tuple[list[float], str]:
    """Return the rates to add up, and their unit: of offsets unless programs report records of all partitions."""
    rates = [row.rate for row in rows if row.rate is not None]
    units = {row.unit for row in rows if row.rate is not None}
    if len(units) > 1:  # records and offsets do not add up
        rates = [rate for row in rows if (rate := history.rate(row.partition)) is not None]
    return rates, units.pop() if len(units) == 1 else "offsets"


def _outcomes(ended: Sequence[Transaction]) -> Counter[str]:
    """Count transactions by outcome; one of the group's, identified by its epoch, counts once for all partitions."""
    foreign = Counter(one.outcome for one in ended if one.transactional_id is None)
    own = {(one.producer_id, one.epoch, one.outcome) for one in ended if one.transactional_id is not None}
    return foreign + Counter(sorted(outcome for _, _, outcome in own))


def _current_proof(answers: PollResults) -> tuple[Proof | None, str]:
    """Return the last proof, and what to say if there is none: one of a topic that was recreated since is not shown."""
    proof, tail = None if answers.proof is None else answers.proof.value, answers.tail.value
    ids = {None if proof is None else proof.output_id, None if tail is None else tail.topic_id}
    return (proof, _UNPROVEN) if len(ids) == 1 or None in ids else (None, _OUTDATED)


def _source_statuses(answers: PollResults, now_s: float, now_ms: int) -> dict[str, SourceStatus]:
    flow, tail = answers.flow, answers.tail
    snapshots = len(flow.value.snapshots) if flow.value else 0
    logs = quantity(len(tail.value.all_strips) if tail.value else 0, "log")
    logs = "the output topic does not exist yet" if tail.value and tail.value.missing else logs
    lamps = {
        "flow": _source_status(flow, "Kafka", quantity(snapshots, "partition"), now_s),
        "tail": _source_status(tail, "log tails", logs, now_s),
    }
    for index, answer in enumerate(answers.statuses):
        status = answer.value
        said = "" if status is None else f"{status.application} {status.state.value}"
        lamps[f"status-{index}"] = _source_status(answer, urlsplit(answer.name).netloc or answer.name, said, now_s)
    if not answers.statuses:
        lamps["status"] = SourceStatus("running program", _NO_PROGRAM, off=True)
    proof, unproven = _current_proof(answers)
    if answers.proof is None or (proof is None and answers.proof.failed is None):
        lamps["proof"] = SourceStatus("proof", unproven, off=True)
    else:
        source = _source_status(answers.proof, "proof", "" if proof is None else proof.mark, now_s)
        old_s = None if proof is None else max(0.0, now_ms / 1000 - proof.written_s)
        lamps["proof"] = source if source.stale else replace(source, age_s=old_s)
    if answers.preflight is None:
        lamps["preflight"] = SourceStatus("preflight", "not requested", off=True)
    else:
        said = labels.all_checks(answers.preflight.value or [])
        lamps["preflight"] = _source_status(answers.preflight, "preflight", said, now_s)
    return lamps


def _source_status(answer: PollResult[Any], title: str, said: str, now_s: float) -> SourceStatus:
    age_s, stale = answer.age_s(now_s), None
    if answer.stale(now_s):
        old = "never answered" if age_s is None else f"last answer {age_s:.0f} s ago"
        stale = f"{old}: {answer.failed or 'the poll has not returned'}"
    elif age_s is None:
        said = "waiting for the first answer"
    return SourceStatus(title, said, age_s, stale)


def document(view: View) -> dict[str, Any]:
    """Return the view as JSON; null is what no source reported."""
    totals = view.totals
    return {
        "names": asdict(view.names),
        "now_ms": view.now_ms,
        "sources": {
            name: {"asked": not source.off, "said": source.said, "age_s": _rounded(source.age_s), "stale": source.stale}
            for name, source in view.source_statuses.items()
        },
        "totals": {
            "rate": _rounded(totals.rate),
            "unit": totals.unit,
            "to_read": totals.left,
            "exact": totals.exact,
            "lag_s": _rounded(totals.lag_s if totals.lag_exact else None),
            "states": dict(totals.states),
            "transactions": dict(totals.outcomes),
            "counted": totals.counted,
        },
        "partitions": [_row(row) for row in view.rows],
        "transactions": [_transaction(transaction) for transaction in view.transactions],
        "proof": None if view.proof is None else asdict(view.proof),
        "preflight": None if view.findings is None else [finding.document() for finding in view.findings],
        "unavailable": list(view.notes),
    }


def _row(row: Row) -> dict[str, Any]:
    strip = row.strip
    same = ("partition", "state", "why", "position", "last_stable", "end")
    return {
        **{name: getattr(row, name) for name in same},
        "to_read": row.left,
        "exact": row.exact,
        "lag_s": _rounded(row.lag_s),
        "rate": _rounded(row.rate),
        "unit": row.unit,
        "step": row.step,
        "steps_s": {name: _rounded(seconds) for name, seconds in row.steps.items()},
        "open_s": _rounded(row.open_s),
        "last_transaction": None if row.last is None else _transaction(row.last),
        "tail": None if strip is None else _strip(strip),
        "also_tails": {strip.topic: _strip(strip) for strip in row.also},
    }


def _strip(strip: Strip) -> dict[str, int]:
    return {kind.value: count for kind, count in strip.counts().items() if count}


def _transaction(transaction: Transaction) -> dict[str, Any]:
    return asdict(transaction) | {"seconds": _rounded(transaction.seconds)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
