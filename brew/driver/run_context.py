"""What all parts of a run share, its counters and their views, and the protocols of what runs transactions."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, Self

import orjson
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from brew.attempt import Job
from brew.claims.heartbeater import ALL_PARTITIONS, Ownership
from brew.driver.limits import FirstRecordsCheck
from brew.fault_injection import CrashInjector
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.observability.status import Phase
from brew.offsets import OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.record import OTHER_REASONS
from brew.settings import Compilers, PipelineSettings, Reader
from brew.transformation import transformation

MAX_REASONS = 100
"""As many reasons of rejections are counted separately; further ones count as `OTHER_REASONS`."""
_REFRESH_PER_S = 4
_MEMBERS_S = 5.0
_RATE_SPAN_S = 1.0  # less between two commits says nothing about the rate


@dataclass(slots=True)
class Counters:
    """`Outcome` describes each of them."""

    transactions: int = 0
    enriched: int = 0
    rejected: int = 0
    fenced: int = 0
    failed: int = 0
    already_done: int = 0
    dropped: int = 0
    written: int = 0


@dataclass(slots=True)
class PartitionView(Counters):
    position: int = 0
    lag: int = 0


@dataclass(slots=True)
class Totals(Counters):
    @property
    def records(self) -> int:
        return self.enriched + self.rejected + self.dropped


@dataclass
class RunProgress:
    """Counters that lanes write and a view reads; every method may be called from any thread."""

    partitions: dict[int, PartitionView] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    note: str = ""
    started: float = field(default_factory=time.monotonic)
    first_commit_s: float | None = None
    last_commit_s: float | None = None
    _first_records: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def survey(self, facts: Iterable[PartitionFacts], owned: Container[int] = ALL_PARTITIONS) -> None:  # noqa: ARG002 - for observers
        with self._lock:
            for fact in facts:
                view = self.partitions.setdefault(fact.partition, PartitionView())
                view.position, view.lag = fact.position, fact.lag

    def outcome(self, outcome: Outcome) -> None:
        with self._lock:
            view = self.partitions.setdefault(outcome.partition, PartitionView())
            match outcome.status:
                case Status.COMMITTED:
                    view.lag = max(0, view.lag - (outcome.until - max(view.position, outcome.start)))
                    view.position = outcome.until
                    self._committed(view, outcome)
                case Status.FENCED:
                    view.fenced += 1
                    self.totals.fenced += 1
                case Status.ALREADY_DONE | Status.AHEAD:
                    self.totals.already_done += 1
                case _:
                    view.failed += 1
                    self.totals.failed += 1

    def _committed(self, view: PartitionView, outcome: Outcome) -> None:
        for counters in (view, self.totals):
            counters.transactions += 1
            counters.enriched += outcome.enriched
            counters.rejected += outcome.rejected
            counters.dropped += outcome.dropped
            counters.written += outcome.written
        for reason, records in outcome.reasons.items():  # a function may use a new one for each record
            known = reason in self.reasons or len(self.reasons) < MAX_REASONS
            self.reasons[reason if known else OTHER_REASONS] += records
        self.last_commit_s = time.monotonic() - self.started
        if self.first_commit_s is None:
            self.first_commit_s, self._first_records = self.last_commit_s, self.totals.records

    # Events for observed runs only (`brew.driver.telemetry`).

    watched = False
    """Whether workers report `begun`, which takes a message for each transaction."""

    @property
    def traced(self) -> bool:
        """Whether spans are exported: attempts then report the trace links of their records."""
        return False

    def begun(self, partition: int) -> None:
        """Record that a transaction of this partition may be open from now on, until its `outcome`."""

    def unanswered(self, reason: str) -> None:
        """Record that a survey failed because the brokers did not answer."""

    def missing(self, which: str) -> None:
        """Record which output topics do not exist any more, in words; nothing: all do."""

    def leaderless(self, partitions: Collection[int], looked_at: Collection[int]) -> None:
        """Record which of those that a lane has looked at have no leader, and are left out."""

    def phase(self, phase: Phase, detail: str = "") -> None:
        """Record that the run has entered this phase."""

    def fatal(self, reason: str) -> None:
        """Record that the run ends with this error."""

    def rate(self) -> float:
        """Return records per second from the first commit to the last, or from the start where that is no second."""
        if self.first_commit_s is None or self.last_commit_s is None:
            return 0.0
        if (span := self.last_commit_s - self.first_commit_s) >= _RATE_SPAN_S:
            return (self.totals.records - self._first_records) / span
        return self.totals.records / self.last_commit_s if self.last_commit_s else 0.0


class ProgressView:
    """A view that shows nothing; as a context manager, it is shown during the block."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def cycle(self, lane: int, outcomes: list[Outcome], seconds: float) -> None: ...
    def note(self, note: str) -> None: ...


class JsonLines(ProgressView):
    """One JSON object per line on what is stdout when it is made: `cycle`, `note` and `done` events."""

    def __init__(self) -> None:
        self._stdout = sys.stdout

    def cycle(self, lane: int, outcomes: list[Outcome], seconds: float) -> None:
        ranges = [
            {"partition": o.partition, "from": o.start, "until": o.until, "status": o.status.value}
            | {"enriched": o.enriched, "rejected": o.rejected}
            | ({"dropped": o.dropped} if o.dropped else {})
            | ({"written": o.written} if o.written != o.enriched else {})
            | ({"detail": o.detail} if o.detail else {})
            for o in outcomes
        ]
        self._write({"event": "cycle", "lane": lane, "seconds": round(seconds, 3), "ranges": ranges})

    def note(self, note: str) -> None:
        self._write({"event": "note", "text": note})

    def done(self, progress: RunProgress) -> None:
        self._write({"event": "done", **asdict(progress.totals), "rate": round(progress.rate(), 3)})

    def _write(self, line: dict[str, object]) -> None:
        self._stdout.write(orjson.dumps(line).decode() + "\n")
        self._stdout.flush()


class LiveTable(ProgressView):
    def __init__(self, progress: RunProgress) -> None:
        self._board = progress
        self._live = Live(get_renderable=self._table, console=Console(), refresh_per_second=_REFRESH_PER_S)

    def start(self) -> None:
        self._live.start()

    def stop(self) -> None:
        self._live.stop()

    def note(self, note: str) -> None:
        self._board.note = note

    def _table(self) -> Table:
        progress = self._board
        elapsed = time.monotonic() - progress.started
        table = Table(
            caption=Text(progress.note, "table.caption") if progress.note else None,
            title=f"{elapsed:,.0f} s, {progress.rate():,.0f} records/s",
        )
        table.add_column("partition", justify="right")
        for name in ("position", "lag", "enriched", "rejected", "transactions", "fenced", "failed"):
            table.add_column(name, justify="right")
        for number, view in sorted(progress.partitions.items()):
            counters = (view.enriched, view.rejected, view.transactions, view.fenced, view.failed)
            table.add_row(str(number), f"{view.position:,}", f"{view.lag:,}", *(f"{c:,}" for c in counters))
        return table


class Interval:
    """A periodic check, first due after ``seconds``."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._lock, self._next = threading.Lock(), clock() + seconds

    def due(self) -> bool:
        """Return True once per interval, to one caller only."""
        with self._lock:
            if self._clock() < self._next:
                return False
            self._next = self._clock() + self._seconds
            return True


_LONG_RUN = 1_500_000


@dataclass(frozen=True)
class PreflightResult:
    """
    What the checks found. ``topics``: input, output and dead-letter topic by name. ``goals``: partition -> offset where
    a draining run ends; None follows forever. ``notes``: unsafe settings allowed by name.
    """

    topics: Mapping[str, Topic]
    goals: Mapping[int, int] | None
    settings: PipelineSettings
    dead_letter_max_bytes: int
    transaction: TransactionSettings
    backlog: int
    notes: tuple[str, ...] = ()

    @property
    def compilers(self) -> Compilers:
        """The JIT compilers that pay off for this run (docs/decisions/0006); the direct reader hardly uses the JVM."""
        if self.settings.reader is Reader.DIRECT:
            return Compilers.FIRST
        if self.settings.follow:
            return Compilers.BOTH
        return Compilers.FIRST if self.backlog < _LONG_RUN else Compilers.SECOND_LATE


@dataclass
class RunContext:
    """
    Shared state of one run.

    ``running``: partition -> range that may have an open transaction now. ``busy_lanes``: lanes of the connector that
    have work, or have not looked for it yet. ``replaced``: another driver works now, and fences open transactions.
    ``lost``: ranges whose worker is gone; their transactions may be open until the next attempt fences them.
    ``member_check_due``: when to check the group for members.
    """

    preflight: PreflightResult
    stop: threading.Event
    progress: RunProgress
    view: ProgressView
    crashed: list[Outcome] = field(default_factory=list)
    running: dict[int, OffsetRange] = field(default_factory=dict)
    busy_lanes: set[int] = field(default_factory=set)
    lost: dict[int, OffsetRange] = field(default_factory=dict)
    replaced: threading.Event = field(default_factory=threading.Event)
    ownership: Ownership = field(default_factory=Ownership)
    crash_injector: CrashInjector = field(init=False)
    first: FirstRecordsCheck = field(init=False)
    member_check_due: Interval = field(default_factory=lambda: Interval(_MEMBERS_S))

    def __post_init__(self) -> None:
        settings = self.preflight.settings
        self.crash_injector = CrashInjector(settings.crash)
        advice = str if settings.transform is None else transformation(settings).advice
        self.first = FirstRecordsCheck(settings.max_rejected, advice, settings.dead_letter)


class Runner(Protocol):
    """Runs transactions outside the thread that plans them."""

    def interrupt(self) -> None:
        """Interrupt running transactions; the caller fences them."""

    def close(self) -> None:
        """Return once everything that was started has ended, or hangs."""


class Engine(Runner, Protocol):
    """Runs attempts; several lanes call it at the same time."""

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        """
        Attempt each range once; return partition -> outcome. A range is missing from the result if the engine saw no
        visible row in it; no transaction was attempted then. Raises `BrewError`: no retry can succeed.
        """
