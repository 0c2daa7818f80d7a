"""Summarize all results: counts, percentiles of times, acceptance criteria; pure."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from brew.names import CrashPoint, quantity
from proof.findings import Verdict
from proof.report.results import CLAIMS_RACES, STORE_KILLS, TITLES, UNKNOWN, Provenance, Result, Standing, worst

_KILL = "SIGKILL"
_STORES = ("ledger", "postgres", "redis-script", "redis")
_READERS = ("connector", "direct")
_LATE_TRIES = 1000
_WRITER_KILLS, _SPARK_KILLS, _POINT_KILLS, _TIMES, _STORE_KILLS = 200, 20, 100, 20, 200
_SINKS = {"tasks": "tasks write", "one": "one task writes"}
"""End of a sink cell's name, and how its rows are written."""
_SPARK_S = {"connector": 10.0, "direct": 6.0}
_TO_COMMIT, _RESTARTED = "Writer killed, until the first new commit, {} reader", "Spark killed and restarted, {} reader"
_HELD = {
    "Lease lost": "leases_lost",
    "Holder frozen past its lease": "holders_frozen",
    "Driver frozen past all leases": "drivers_frozen",
}
_COUNTED = {"Driver and executor killed together": "killed_together", "Two drivers on one group": "meetings"}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds in ascending order; ``never`` counts the recoveries that did not happen, which rank as longest."""

    seconds: tuple[float, ...]
    never: int = 0

    @classmethod
    def recoveries(cls, results: Sequence[Result]) -> Times:
        seconds = sorted(value for result in results for value in result.recovery_s)
        return cls(tuple(seconds), sum(result.never_recovered for result in results))

    @classmethod
    def stalls(cls, results: Iterable[Result]) -> Times:
        return cls(tuple(sorted(value for result in results for value in result.stall_s)))

    @property
    def count(self) -> int:
        return len(self.seconds) + self.never

    @property
    def longest(self) -> float:
        return self.quantile(1.0)

    def quantile(self, share: float) -> float:
        """Return the quantile by nearest rank, in seconds; infinite if it falls on one that did not happen."""
        if not self.count:
            raise ValueError("a quantile needs at least one value")
        rank = max(0, math.ceil(share * self.count) - 1)
        return self.seconds[rank] if rank < len(self.seconds) else math.inf


def seconds_text(value: float | None) -> str:
    """Format seconds for people: 0.25 s, 12.3 s, 4 min 10 s, never."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "never"
    if value < 119.5:  # noqa: PLR2004 - two minutes, after rounding
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"  # noqa: PLR2004 - three digits are enough
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


class CriterionResult(enum.StrEnum):
    """Whether a criterion was met; a sample that is too small shows nothing."""

    YES = "met"
    NO = "missed"
    SHORT = "not shown"
    OUTDATED = "of another kernel"
    UNKNOWN = "not measured"

    @property
    def mark(self) -> str:
        """The standing whose colour it shares."""
        marks = {"met": "proven", "missed": "violated", "not shown": "inconclusive", "not measured": "idle"}
        return marks.get(self, "outdated")

    @property
    def sign(self) -> str:
        return {"met": "✓", "missed": "✗", "not shown": "?", "not measured": "-"}.get(self, "◌")


@dataclass(frozen=True, slots=True)
class AcceptanceCriterion:
    title: str
    wanted: str
    measured: str
    met: CriterionResult


def acceptance_criteria(results: Sequence[Result]) -> list[AcceptanceCriterion]:
    """Evaluate each criterion by current results; by those of another kernel it is neither met nor missed."""
    now = _bars([result for result in results if result.current])
    ever = _bars(results)
    unknown = CriterionResult.UNKNOWN
    return [
        replace(old, met=CriterionResult.OUTDATED) if new.met is unknown and old.met is not unknown else new
        for new, old in zip(now, ever, strict=True)
    ]


def _bars(results: Sequence[Result]) -> list[AcceptanceCriterion]:
    mine = [result for result in results if not result.is_control]
    coordinator = [result for result in mine if result.fault == _KILL and "coordinator" in result.target]
    stalls = Times.stalls(result for reader in _READERS for result in _writer(mine, reader))
    return [
        *(_within(_TO_COMMIT.format(r), 2.0, Times.recoveries(_writer(mine, r)), _WRITER_KILLS) for r in _READERS),
        *(_within(_RESTARTED.format(r), _SPARK_S[r], _restarts(mine, r), _SPARK_KILLS) for r in _READERS),
        _within("Coordinator killed, until the first new commit", 15.0, Times.recoveries(coordinator), _TIMES),
        _within("Writer killed and restarted, readers held back", 3.0, stalls, _TIMES),
        _epoch_overflow(mine),
        _volume(mine),
        *(_each_point(f"Kills at each crash point, {reader} reader", _writer(mine, reader)) for reader in _READERS),
        *(_each_point(f"The same through Spark, {reader} reader", _spark(mine, reader)) for reader in _READERS),
        *(_each_point(f"The same of the sink's driver, {words}", _sink(mine, way)) for way, words in _SINKS.items()),
        _late_frames("Late EndTxn, producer reused (control)", results, control=True),
        _late_frames("Late EndTxn, a producer per transaction", results, control=False),
        *(_often(title, kind, _TIMES, mine) for title, kind in _HELD.items()),
        *(
            _often(f"{title}, {reader} reader", kind, _TIMES, _spark(mine, reader))
            for title, kind in _COUNTED.items()
            for reader in _READERS
        ),
        _often("Rounds of eight claimants racing", "rounds", 1000, _races(mine)),
        *(_often(f"Kills around the commit, {store}", "kills", _STORE_KILLS, _store(mine, store)) for store in _STORES),
    ]


def _on(path: str, results: Iterable[Result], reader: str) -> list[Result]:
    """Return the results of a path with this reader; older results of the connector do not name the reader."""
    paths = {f"{reader} {path}", *([path] if reader == "connector" else [])}
    return [result for result in results if result.path in paths]


_spark = partial(_on, "spark")


def _writer(results: Iterable[Result], reader: str) -> list[Result]:
    """Return the kills of writers without Spark that used this reader."""
    return [r for r in _on("writer", results, reader) if r.fault == _KILL and r.target == "writer"]


def _sink(results: Iterable[Result], way: str) -> list[Result]:
    return [result for result in results if result.path == "sink" and result.cell.endswith(f"-{way}")]


def _store(results: Iterable[Result], store: str) -> list[Result]:
    return [result for result in results if (result.path, result.target) == (STORE_KILLS, store)]


def _races(results: Iterable[Result]) -> list[Result]:
    return [result for result in results if result.path == CLAIMS_RACES and result.fault.startswith("8 claimants")]


def _restarts(results: Sequence[Result], reader: str) -> Times:
    return Times.recoveries([r for r in _spark(results, reader) if r.fault == _KILL and r.target.startswith("driver")])


def _late_frames(title: str, results: Iterable[Result], *, control: bool) -> AcceptanceCriterion:
    """Evaluate F11: the control must break in 95 % of its tries, our writer in none of a thousand."""
    wanted = "95 % broken at least" if control else f"0 of {_LATE_TRIES:,} broken"
    tried = [r for r in results if r.row == "F11" and "broken" in r.fired and r.is_control is control]
    tried = tried if control else _conclusive(tried)  # a control that does not break is inconclusive, and counts
    broken, tries = (sum(r.fired.get(kind, 0) for r in tried) for kind in ("broken", "late_frames"))
    if not tries:
        return _unknown(title, wanted)
    met = broken >= 0.95 * tries if control else not broken
    shown = control or bool(broken) or tries >= _LATE_TRIES
    return _judge(title, wanted, f"{broken:,} of {tries:,} broken", met=met, shown=shown)


def _judge(title: str, wanted: str, measured: str, *, met: bool, shown: bool) -> AcceptanceCriterion:
    result = CriterionResult.YES if met else CriterionResult.NO
    return AcceptanceCriterion(title, wanted, measured, result if shown else CriterionResult.SHORT)


def _unknown(title: str, wanted: str) -> AcceptanceCriterion:
    return AcceptanceCriterion(title, wanted, "-", CriterionResult.UNKNOWN)


def _within(title: str, limit_s: float, times: Times, least: int) -> AcceptanceCriterion:
    wanted = f"p95 within {limit_s:g} s of at least {least:,}"
    if not times.count:
        return _unknown(title, wanted)
    p95 = times.quantile(0.95)
    measured = f"p95 {seconds_text(p95)} of {times.count:,}"
    return _judge(title, wanted, measured, met=p95 <= limit_s, shown=times.count >= least)


def _without_anomaly(
    title: str, wanted: str, measured: str, results: Sequence[Result], *, enough: bool
) -> AcceptanceCriterion:
    """Evaluate a criterion that any anomaly fails; it is met only with a large enough sample."""
    wanted = f"{wanted}, 0 anomalies"
    if not results:
        return _unknown(title, wanted)
    anomalies = sum(result.violations for result in results)
    measured = f"{measured}, {anomalies:,} anomalies"
    return _judge(title, wanted, measured, met=not anomalies, shown=bool(anomalies) or enough)


def _often(title: str, kind: str, least: int, results: Iterable[Result]) -> AcceptanceCriterion:
    """Evaluate whether a fault fired at least ``least`` times in conclusive runs, without anomalies."""
    conclusive = [result for result in _conclusive(results) if kind in result.fired]
    times = sum(result.fired[kind] for result in conclusive)
    return _without_anomaly(title, f"{least:,}", f"{times:,}", conclusive, enough=times >= least)


def _conclusive(results: Iterable[Result]) -> list[Result]:
    """Return the results that show something: a fault that fired in another run was not survived."""
    return [result for result in results if result.standing is not Standing.INCONCLUSIVE]


def _epoch_overflow(results: Iterable[Result]) -> AcceptanceCriterion:
    title, least = "Transactions on one id, across the epoch overflow", 33_000
    runs = [result for result in results if result.row == "F28"]
    most = max(map(_ended, runs), default=0)
    enough = any(_ended(result) >= least and result.verdict is Verdict.PROVEN for result in runs)
    return _without_anomaly(title, f"{least:,}", f"{most:,}", runs, enough=enough)


def _ended(result: Result) -> int:
    return result.counts.get("committed_transactions", 0) + result.counts.get("aborted_transactions", 0)


def _volume(results: Sequence[Result]) -> AcceptanceCriterion:
    least = {"inputs": 1_000_000, "committed_transactions": 10_000, "aborted_transactions": 3_000}
    results = _conclusive(results)
    total = _totals(results)
    enough = all(total[kind] >= wanted for kind, wanted in least.items())
    counted = results if any(total[kind] for kind in least) else ()
    return _without_anomaly("All runs together", _volume_text(least), _volume_text(total), counted, enough=enough)


def _totals(results: Iterable[Result]) -> Counter[str]:
    total = Counter[str]()
    for result in results:
        total.update(result.counts)
    return total


def _volume_text(counts: dict[str, int]) -> str:
    transactions = f"{counts['committed_transactions']:,} committed, {counts['aborted_transactions']:,} aborted"
    return f"{counts['inputs']:,} records, {transactions}"


def _each_point(title: str, results: Iterable[Result]) -> AcceptanceCriterion:
    least = _POINT_KILLS
    killed = [result for result in _conclusive(results) if result.fault == _KILL and result.moment in tuple(CrashPoint)]
    kills: Counter[str] = Counter()
    for result in killed:
        kills[result.moment] += result.fired.get("kills", 0)
    fewest = min(CrashPoint, key=lambda point: kills[point])
    wanted = f"{least} at each of {len(CrashPoint)}"
    measured = f"fewest {kills[fewest]:,} ({fewest}), {kills.total():,} in all"
    return _without_anomaly(title, wanted, measured, killed, enough=kills[fewest] >= least)


@dataclass(frozen=True, slots=True)
class Cell:
    name: str
    row: str
    results: tuple[Result, ...]

    @property
    def standing(self) -> Standing:
        return worst([result.standing for result in self.results])

    @property
    def short_name(self) -> str:
        return self.name.removeprefix(f"{self.row}-") or self.name


@dataclass(frozen=True, slots=True)
class Strip:
    """Durations of one row of the matrix on one path; ``bounds`` are its limits in seconds."""

    row: str
    path: str
    times: Times
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """How often a fault had to fire in all runs, and did; ``short`` counts the runs in which it fired too rarely."""

    kind: str
    fired: int
    needed: int
    short: int


@dataclass(frozen=True, slots=True)
class Summary:
    provenance: tuple[Provenance, ...]
    results: tuple[Result, ...]
    cells: tuple[Cell, ...]
    bars: tuple[AcceptanceCriterion, ...]
    kernel: str

    @classmethod
    def of(cls, provenance: Sequence[Provenance], results: Sequence[Result], kernel: str = "") -> Summary:
        """Summarize results; repeated runs of a cell with the same seed are all kept."""
        by_cell: dict[tuple[str, str], list[Result]] = {}
        for result in results:
            by_cell.setdefault((result.row, result.cell), []).append(result)
        cells = tuple(
            Cell(name, row, tuple(sorted(some, key=lambda result: (result.seed, result.began))))
            for (row, name), some in sorted(by_cell.items())
        )
        return cls(tuple(provenance), tuple(results), cells, tuple(acceptance_criteria(results)), kernel)

    @property
    def verdict(self) -> Verdict:
        """Violated if any cell is; else inconclusive if any is, or is outdated, or if none is proven."""
        if (standing := worst([cell.standing for cell in self.cells])) is Standing.OUTDATED:
            return Verdict.INCONCLUSIVE
        if standing not in {Standing.CONTROL, Standing.NOT_APPLICABLE}:
            return Verdict(standing.value)
        return Verdict.PROVEN if self.cell_standings[Standing.PROVEN] else Verdict.INCONCLUSIVE

    @property
    def cell_standings(self) -> dict[Standing, int]:
        return _standings(self.cells)

    @property
    def run_standings(self) -> dict[Standing, int]:
        return _standings(self.results)

    @property
    def cells_by_row(self) -> dict[str, list[Cell]]:
        """All rows in order: those of the matrix, run or not, and any others that were run."""
        rows = sorted(TITLES.keys() | self.rows_run)
        return {row: [cell for cell in self.cells if cell.row == row] for row in rows}

    @property
    def rows_run(self) -> set[str]:
        return {cell.row for cell in self.cells}

    @property
    def rows_not_run(self) -> list[str]:
        return sorted(TITLES.keys() - self.rows_run)

    @property
    def seeds(self) -> list[int]:
        return sorted({result.seed for result in self.results})

    @property
    def seconds(self) -> float:
        """Total time of all runs; the time of parallel runs is added up."""
        return sum(result.seconds for result in self.results)

    @property
    def totals(self) -> dict[str, int]:
        """The counts of all runs except controls, added up."""
        return dict(_totals(result for result in self.results if not result.is_control))

    @property
    def anomalies(self) -> dict[str, tuple[int, int]]:
        """The number of anomalies by name, without and with those of controls."""
        real = Counter(anomaly.name for result in self.results if not result.is_control for anomaly in result.anomalies)
        every = Counter(anomaly.name for result in self.results for anomaly in result.anomalies)
        return {name: (real[name], every[name]) for name in sorted(every)}

    @property
    def demands(self) -> list[Demand]:
        fired, needed, short = Counter[str](), Counter[str](), Counter[str]()
        for result in self.results:
            fired.update(result.fired)
            needed.update(result.needed)
            short.update(kind for kind, wanted in result.needed.items() if result.fired.get(kind, 0) < wanted)
        return [Demand(kind, fired[kind], needed[kind], short[kind]) for kind in sorted(fired.keys() | needed.keys())]

    @property
    def recoveries(self) -> list[Strip]:
        return self._strips(Times.recoveries)

    @property
    def stalls(self) -> list[Strip]:
        return [replace(strip, bounds=()) for strip in self._strips(Times.stalls)]

    def _strips(self, measure: Callable[[Sequence[Result]], Times]) -> list[Strip]:
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in self.results:
            groups.setdefault((result.row, result.path), []).append(result)
        strips = [
            Strip(row, path, measure(some), tuple(sorted({r.bound_s for r in some if r.bound_s is not None})))
            for (row, path), some in sorted(groups.items())
        ]
        return [strip for strip in strips if strip.times.count]

    @property
    def headline(self) -> str:
        count = self.cell_standings
        violated, unclear, controls = (count[s] for s in (Standing.VIOLATED, Standing.INCONCLUSIVE, Standing.CONTROL))
        text = f"{count[Standing.PROVEN]:,} proven, {violated:,} violated, {unclear:,} inconclusive"
        if controls:
            text += f"; {quantity(controls, 'positive control', ',')} violated as expected"
        if senseless := count[Standing.NOT_APPLICABLE]:
            text += f"; {senseless:,} not applicable"
        if outdated := count[Standing.OUTDATED]:
            text += f"; {outdated:,} of another kernel than today's"
        return f"{self.verdict.capitalize()}: of {quantity(len(self.cells), 'cell', ',')}, {text}."

    @property
    def outdated(self) -> str:
        """A sentence about runs with another kernel than today's; empty if there are none."""
        if not (old := [result for result in self.results if not result.current]):
            return ""
        commits = ", ".join(sorted({result.commit or UNKNOWN for result in old}))
        return (
            f"{len(old):,} of {quantity(len(self.results), 'run', ',')} were made with another kernel than today's, "
            f"{self.kernel} (commit {commits}): they show nothing about the current code. Run these cells again."
        )


def _standings(judged: Iterable[Cell | Result]) -> dict[Standing, int]:
    counted = Counter(each.standing for each in judged)
    return {standing: counted[standing] for standing in Standing}
