"""All results of a campaign counted once; page, JSON and Markdown show these numbers and work out none of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from proof.findings import Verdict
from proof.report.bars import Bar, bars
from proof.report.results import UNKNOWN, Provenance, Result, Standing, worst
from proof.report.rows import TITLES
from proof.report.times import Times


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell with all its results, by seed."""

    name: str
    row: str
    results: tuple[Result, ...]

    @property
    def standing(self) -> Standing:
        return worst([result.standing for result in self.results])

    @property
    def is_control(self) -> bool:
        return any(result.is_control for result in self.results)


@dataclass(frozen=True, slots=True)
class Strip:
    """Durations of one row of the matrix on one path; ``bounds`` are the limits that hold there."""

    row: str
    path: str
    times: Times
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """What was to fire in all runs together, and did; ``short`` counts the runs in which too little fired."""

    kind: str
    fired: int
    needed: int
    short: int


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole campaign."""

    provenance: tuple[Provenance, ...]
    results: tuple[Result, ...]
    cells: tuple[Cell, ...]
    bars: tuple[Bar, ...]
    kernel: str

    @classmethod
    def of(cls, provenance: Sequence[Provenance], results: Sequence[Result], kernel: str = "") -> Summary:
        """Results of one cell with one seed may come twice (run again): all of them are kept, none replaces another."""
        by_cell: dict[tuple[str, str], list[Result]] = {}
        for result in results:
            by_cell.setdefault((result.row, result.cell), []).append(result)
        cells = tuple(
            Cell(name, row, tuple(sorted(some, key=lambda result: (result.seed, result.began))))
            for (row, name), some in sorted(by_cell.items())
        )
        return cls(tuple(provenance), tuple(results), cells, tuple(bars(results)), kernel)

    @property
    def verdict(self) -> Verdict:
        """Violated if one cell is; else inconclusive if one is or is outdated, or none but controls were run."""
        standing = worst([cell.standing for cell in self.cells])
        if standing is Standing.OUTDATED:
            return Verdict.INCONCLUSIVE
        if standing not in {Standing.CONTROL, Standing.NOT_APPLICABLE}:
            return Verdict(standing.value)
        return Verdict.PROVEN if self.cell_standings[Standing.PROVEN] else Verdict.INCONCLUSIVE

    @property
    def cell_standings(self) -> dict[Standing, int]:
        counted = Counter(cell.standing for cell in self.cells)
        return {standing: counted[standing] for standing in Standing}

    @property
    def run_standings(self) -> dict[Standing, int]:
        counted = Counter(result.standing for result in self.results)
        return {standing: counted[standing] for standing in Standing}

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
        """Time spent in runs; what ran side by side counts twice."""
        return sum(result.seconds for result in self.results)

    @property
    def totals(self) -> dict[str, int]:
        """What all runs counted together, controls left out."""
        total: Counter[str] = Counter()
        for result in self.results:
            if not result.is_control:
                total.update(result.counts)
        return dict(total)

    @property
    def anomalies(self) -> dict[str, tuple[int, int]]:
        """Per name: how many, without and with the controls' expected ones."""
        real = Counter(one.name for result in self.results if not result.is_control for one in result.anomalies)
        every = Counter(one.name for result in self.results for one in result.anomalies)
        return {name: (real[name], every[name]) for name in sorted(every)}

    @property
    def demands(self) -> list[Demand]:
        fired: Counter[str] = Counter()
        needed: Counter[str] = Counter()
        short: Counter[str] = Counter()
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

    def _strips(self, measure: Callable[[Iterable[Result]], Times]) -> list[Strip]:
        groups: dict[tuple[str, str], list[Result]] = {}
        for result in self.results:
            groups.setdefault((result.row, result.path), []).append(result)
        strips = [
            Strip(row, path, measure(some), tuple(sorted({one.bound_s for one in some if one.bound_s is not None})))
            for (row, path), some in sorted(groups.items())
        ]
        return [strip for strip in strips if strip.times.count]

    @property
    def headline(self) -> str:
        """The whole campaign in one sentence."""
        count = self.cell_standings
        violated, unclear, controls = (count[s] for s in (Standing.VIOLATED, Standing.INCONCLUSIVE, Standing.CONTROL))
        told = f"{count[Standing.PROVEN]:,} proven, {violated:,} violated, {unclear:,} inconclusive"
        if controls:
            told += f"; {_things(controls, 'positive control')} violated as expected"
        if senseless := count[Standing.NOT_APPLICABLE]:
            told += f"; {senseless:,} not applicable"
        if outdated := count[Standing.OUTDATED]:
            told += f"; {outdated:,} of another kernel than today's"
        return f"{self.verdict.capitalize()}: of {_things(len(self.cells), 'cell')}, {told}."

    @property
    def outdated(self) -> str:
        """A sentence about runs of another kernel than today's; empty without any."""
        old = [result for result in self.results if not result.current]
        if not old:
            return ""
        commits = ", ".join(sorted({result.commit or UNKNOWN for result in old}))
        return (
            f"{len(old):,} of {_things(len(self.results), 'run')} were made with another kernel than today's, "
            f"{self.kernel} (commit {commits}): they show nothing of the code as it is. Run these cells again."
        )


def _things(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
