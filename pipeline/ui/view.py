"""What page and terminal show, as values; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.preflight.finding import Finding
from pipeline.ui.told import Proof
from pipeline.ui.transactions import Transaction
from pipeline.xray.model import Strip

ILL = ("unrecoverable", "stuck", "fenced", "blocked")
"""States that want somebody to look, the worst first."""
STATES = (*ILL, "working", "looking", "idle", "unknown")


@dataclass(frozen=True, slots=True)
class Lamp:
    """A source: whether it tells, since when, and what it said; ``stale`` is there with a reason."""

    name: str
    title: str
    said: str
    age_s: float | None = None
    stale: str | None = None
    off: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """
    One partition.

    ``rate`` is in ``unit`` per second; ``trace`` is the rate over time in offsets. ``step`` and ``steps`` (seconds by
    step) come from a running program; without one ``open_s`` tells how long its transaction is open. ``last`` is the
    latest transaction that ended, ``strip`` the tail of the output's partition of the same number. ``lag_s`` is how old
    the oldest record is that is left to read.
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


@dataclass(frozen=True, slots=True)
class Totals:
    """
    All partitions together; counts by outcome are those of the tails, or of the programs where they tell them.

    ``lag_s`` is that of the oldest record of all.
    """

    rate: float | None
    unit: str
    trace: tuple[float, ...]
    left: int | None
    exact: bool
    states: Mapping[str, int]
    outcomes: Mapping[str, int]
    counted: str
    lag_s: float | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What is looked at."""

    group: str
    input: str
    output: str
    bootstrap: str


@dataclass(frozen=True, slots=True)
class View:
    """All that is shown at one moment; ``notes`` are what the sources could not tell, in sentences."""

    names: Names
    now_ms: int
    lamps: Mapping[str, Lamp]
    rows: tuple[Row, ...]
    totals: Totals
    transactions: tuple[Transaction, ...]
    proof: Proof | None
    findings: tuple[Finding, ...] | None
    notes: tuple[str, ...]
    tail: int

    def ill(self) -> list[Row]:
        """The partitions that want somebody to look, the worst first."""
        return sorted((row for row in self.rows if row.state in ILL), key=lambda row: ILL.index(row.state))

    @property
    def shape(self) -> tuple[int, ...]:
        """What a page that is open can't change by itself: which partitions there are."""
        return tuple(row.partition for row in self.rows)
