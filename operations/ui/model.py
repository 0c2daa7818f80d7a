"""The live view as values; pure."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

from brew.cluster import CoordinatorTransaction
from brew.names import TransactionalId
from brew.observability.status import Status
from brew.preflight import Finding
from operations.partition_state import PartitionSnapshot, State, classify
from operations.xray.model import Kind, Run, Strip

_T = TypeVar("_T")
_STALE_AFTER_POLLS = 3


@dataclass(frozen=True, slots=True)
class PollResult(Generic[_T]):
    """A source's last answer, when it came, why the latest poll failed; ``patience_s``: the timeout of a poll."""

    name: str
    every_s: float
    patience_s: float
    value: _T | None = None
    at_s: float | None = None
    since_s: float = 0.0
    took_s: float = 0.0
    failed: str | None = None

    def age_s(self, now_s: float) -> float | None:
        return None if self.at_s is None else max(0.0, now_s - self.at_s)

    def stale(self, now_s: float) -> bool:
        """True if the latest poll failed, or no answer came for three pauses and the timeout."""
        last = self.since_s if self.at_s is None else self.at_s
        limit_s = _STALE_AFTER_POLLS * max(self.every_s, self.took_s) + self.patience_s
        return self.failed is not None or now_s - last > limit_s


@dataclass(frozen=True, slots=True)
class InputSnapshot:
    """Input partitions at one moment, without ``leaderless`` ones; ``unavailable`` is what could not be read."""

    now_ms: int
    snapshots: tuple[PartitionSnapshot, ...]
    unavailable: str | None = None
    leaderless: int = 0


@dataclass(frozen=True, slots=True)
class OutputTail:
    """
    Last offsets of each output partition but ``unread`` ones, and ``also`` of further topics; a new ``topic_id``: it
    was recreated.
    """

    topic: str
    strips: Mapping[int, Strip]
    missing: bool = False
    also: tuple[Strip, ...] = ()
    topic_id: str | None = None
    unavailable: tuple[str, ...] = ()
    unread: int = 0

    @property
    def all_strips(self) -> tuple[Strip, ...]:
        return (*self.strips.values(), *self.also)


@dataclass(frozen=True, slots=True)
class Proof:
    """A result file of `proof`: verdict, numbers, findings as sentences, and the topic id of the output, if known."""

    mark: str
    title: str
    lines: tuple[str, ...]
    wrong: tuple[str, ...]
    written_s: float
    output_id: str | None = None


LOOKING = "looking"
KEPT = 60
_WINDOW_S, _RATE_S = 5.0, 10.0
_MOMENTARY = {State.STUCK, State.FENCED}


class History:
    """The latest snapshots: each partition's state and rate in offsets per second; ``total``: all rates over time."""

    def __init__(self) -> None:
        self._flows: deque[tuple[float, InputSnapshot, dict[int, PartitionSnapshot]]] = deque()
        self.total: deque[float] = deque(maxlen=KEPT)
        self.of: dict[int, deque[float]] = {}

    def add(self, at_s: float, flow: InputSnapshot) -> None:
        """Add a snapshot; does nothing if it is already known."""
        if self._flows and self._flows[-1][0] >= at_s:
            return
        if self._flows:
            before_s, _, known = self._flows[-1]
            whole = 0.0
            for snapshot in flow.snapshots:
                rate = _moved(known.get(snapshot.partition, snapshot), snapshot) / (at_s - before_s)
                self.of.setdefault(snapshot.partition, deque(maxlen=KEPT)).append(rate)
                whole += rate
            self.total.append(whole)
        self._flows.append((at_s, flow, {snapshot.partition: snapshot for snapshot in flow.snapshots}))
        while len(self._flows) > 2 and at_s - self._flows[0][0] > _RATE_S:  # noqa: PLR2004 - a rate needs two snapshots
            self._flows.popleft()

    def rate(self, partition: int) -> float | None:
        """Return offsets per second over the last ten seconds, or the last two snapshots; None with one snapshot."""
        known = self._known(partition)
        if len(known) <= 1:
            return None
        moved = sum(_moved(before, after) for (_, before), (_, after) in pairwise(known))
        return moved / (known[-1][0] - known[0][0])

    def _known(self, partition: int) -> list[tuple[float, PartitionSnapshot]]:
        return [(at_s, snapshots[partition]) for at_s, _, snapshots in self._flows if partition in snapshots]

    def state(self, partition: int) -> tuple[str, str]:
        """Return state and reason, compared with five seconds ago so that a pause between two commits is ignored."""
        if not (known := self._known(partition)):
            return LOOKING, "not observed yet"
        at_s, now = known[-1]
        # Snapshots may be further apart: after an outage, or with a long --interval.
        old_s, old = next((each for each in reversed(known) if at_s - each[0] >= _WINDOW_S), known[0])
        state, why = classify(old, now, self._flows[-1][1].now_ms)
        if state in _MOMENTARY and not now.outside and at_s - old_s < _WINDOW_S:
            return LOOKING, f"no progress seen yet; after {_WINDOW_S:g} s the state is known"
        return state.value, why


def _moved(before: PartitionSnapshot, after: PartitionSnapshot) -> int:
    """Return by how many offsets the group moved on; without a committed offset, only the log's start moves."""
    return 0 if after.committed is None else max(0, after.position - before.position)


_KEPT = 4096
_OUTCOMES = {Kind.COMMIT_MARKER: "committed", Kind.ABORT_MARKER: "aborted"}
Writer = tuple[int, int]
"""Producer id and epoch."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """
    One transaction in one output partition; ``source`` is the input partition, ``first`` to ``last`` its offsets.

    ``records``: all that it wrote there, at least so many unless ``exact``; None if none of it was read. ``first`` is
    None if it begins before what was read. ``state`` and ``timeout_s`` are its coordinator's, for the group's own open
    transactions.
    """

    partition: int
    outcome: str
    producer_id: int
    epoch: int
    records: int | None = None
    ended_ms: int | None = None
    marker: int | None = None
    transactional_id: str | None = None
    source: int | None = None
    first: int | None = None
    last: int | None = None
    seconds: float | None = None
    state: str | None = None
    timeout_s: float | None = None
    exact: bool = True
    topic: str = ""


class TransactionDurations:
    """Durations of transactions: as their program reports them, else since their coordinator saw them begin."""

    def __init__(self) -> None:
        self._own: dict[Writer, CoordinatorTransaction] = {}
        self._began_ms: OrderedDict[Writer, int] = OrderedDict()
        self._took_s: OrderedDict[tuple[str, int, int], float] = OrderedDict()

    def add(self, flow: InputSnapshot) -> None:
        open_now = [snapshot.own for snapshot in flow.snapshots if snapshot.own is not None and snapshot.own.open]
        self._own = {(own.producer_id, own.producer_epoch): own for own in open_now}
        self._began_ms |= {writer: own.began_ms for writer, own in self._own.items() if own.began_ms is not None}
        _drop_oldest(self._began_ms)

    def with_duration(self, transaction: Transaction, topic: str, now_ms: int) -> Transaction:
        """Add its duration; for an open transaction also what its coordinator reports."""
        known = replace(transaction, seconds=self.seconds(transaction, topic, now_ms))
        own = self._own.get((transaction.producer_id, transaction.epoch)) if transaction.outcome == "open" else None
        return known if own is None else replace(known, state=own.state, timeout_s=own.timeout_ms / 1000)

    def add_reported(self, status: Status) -> None:
        """Note the durations of commits; a program knows no producer ids, so the committed position identifies them."""
        for reported in status.partitions:
            last = reported.last_transaction
            if last is not None and last.seconds is not None and last.until is not None:
                self._took_s[reported.topic, reported.partition, last.until] = last.seconds
        _drop_oldest(self._took_s)

    def seconds(self, transaction: Transaction, topic: str, now_ms: int) -> float | None:
        """Return the duration that the program reported, else until the marker by the brokers' clocks, or until now."""
        if transaction.outcome == "committed" and transaction.source is not None and transaction.last is not None:
            said = self._took_s.get((topic, transaction.source, transaction.last + 1))
            if said is not None:
                return said
        began_ms = self._began_ms.get((transaction.producer_id, transaction.epoch))
        until_ms = now_ms if transaction.outcome == "open" else transaction.ended_ms
        if began_ms is None or until_ms is None or until_ms < began_ms:
            return None
        return (until_ms - began_ms) / 1000


def _drop_oldest(known: OrderedDict[Any, Any]) -> None:
    while len(known) > _KEPT:
        known.popitem(last=False)


def transactions(strips: Iterable[Strip], group: str, topic: str) -> list[Transaction]:
    """Return all transactions of the tails: open ones first, then by the time of their marker, latest first."""
    found = [transaction for strip in strips for transaction in _of(strip, group, topic)]
    return sorted(found, key=lambda one: (one.ended_ms is not None, -(one.ended_ms or 0), one.partition))


def _of(strip: Strip, group: str, topic: str) -> Iterator[Transaction]:
    ended: defaultdict[int, list[Run]] = defaultdict(list)
    still_open: defaultdict[int, list[Run]] = defaultdict(list)
    for run in strip.runs:
        if run.marker is not None:
            ended[run.marker].append(run)
        elif run.kind is Kind.OPEN:
            still_open[run.producer_id].append(run)
    for run in strip.runs:
        if run.kind.marker:
            known = Transaction(strip.partition, _OUTCOMES[run.kind], run.producer_id, run.epoch, topic=strip.topic)
            known = replace(known, ended_ms=run.written_ms, marker=run.start)
            yield _read(known, ended[run.start] or [run], group, topic)
    for producer_id, runs in still_open.items():
        known = Transaction(strip.partition, "open", producer_id, runs[0].epoch, topic=strip.topic)
        yield _read(known, runs, group, topic)


def _read(known: Transaction, runs: Sequence[Run], group: str, topic: str) -> Transaction:
    """Add the writer's epoch, records, id and input range, from its runs in the tail or its marker alone."""
    earlier = runs[0].earlier
    count = earlier.records + sum(run.records for run in runs if not run.kind.marker)
    records = count if count or earlier.whole else None
    transaction = replace(known, epoch=runs[0].epoch, records=records, exact=earlier.whole)
    sources = (source for run in runs for source in (run.earlier.first, run.first) if source is not None)
    first = next((source for source in sources if source.topic == topic), None)
    if first is None:
        return transaction
    last = next((run.last for run in reversed(runs) if run.last is not None and run.last.topic == topic), None)
    return replace(
        transaction,
        transactional_id=str(TransactionalId(group, topic, first.partition)),
        source=first.partition,
        first=first.offset if earlier.whole else None,
        last=None if last is None else last.offset,
    )


UNHEALTHY = ("unrecoverable", "stuck", "fenced", "blocked")
"""States that need attention, the worst first."""
STATES = (*UNHEALTHY, "working", "looking", "idle", "unknown")


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source: whether it answers, since when, and what it reported; ``stale`` is the reason if it is stale."""

    title: str
    said: str
    age_s: float | None = None
    stale: str | None = None
    off: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """
    One partition; ``rate`` in ``unit`` per second, ``trace`` in offsets, ``last``: the latest ended transaction.

    ``step`` and ``steps`` (seconds by step) come from a running program; without one, ``open_s`` is the age of its open
    transaction. ``strip``, ``also``: the tails of the output partitions of the same number.
    """

    partition: int
    state: str
    why: str
    position: int | None = None
    last_stable: int | None = None
    end: int | None = None
    left: int | None = None
    exact: bool = True
    rate: float | None = None
    unit: str = "offsets"
    trace: tuple[float, ...] = ()
    step: str | None = None
    steps: Mapping[str, float] = field(default_factory=dict)
    open_s: float | None = None
    last: Transaction | None = None
    strip: Strip | None = None
    lag_s: float | None = None
    also: tuple[Strip, ...] = ()


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all partitions; ``lag_s``: age of the oldest record, a lower bound unless ``lag_exact``."""

    rate: float | None
    unit: str
    trace: tuple[float, ...]
    left: int | None
    exact: bool
    states: Mapping[str, int]
    outcomes: Mapping[str, int]
    counted: str
    lag_s: float | None = None
    lag_exact: bool = True


@dataclass(frozen=True, slots=True)
class Names:
    group: str
    input: str
    output: str
    bootstrap: str
    also_output: tuple[str, ...] = ()

    @property
    def outputs(self) -> str:
        return ", ".join((self.output, *self.also_output))


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is shown at one moment; ``notes`` are sentences on what the sources could not report."""

    names: Names
    now_ms: int
    source_statuses: Mapping[str, SourceStatus]
    rows: tuple[Row, ...]
    totals: Totals
    transactions: tuple[Transaction, ...]
    proof: Proof | None
    findings: tuple[Finding, ...] | None
    notes: tuple[str, ...]
    tail: int

    def unhealthy(self) -> list[Row]:
        """Return the partitions that need attention, the worst first."""
        return sorted((row for row in self.rows if row.state in UNHEALTHY), key=lambda row: UNHEALTHY.index(row.state))
