"""Measured values, what is computed from them, and their JSON file; pure except for the file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from brew.errors import Refused

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of several rounds, with the minimum and maximum."""

    middle: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Return None if there are no values."""
        known = list(values)
        return cls(median(known), min(known), max(known), len(known)) if known else None

    def text(self, form: str) -> str:
        """Format as `1.62 (1.55-1.71)`, or a single value alone."""
        middle = format(self.middle, form)
        if self.rounds == 1:
            return middle
        return f"{middle} ({format(self.low, form)}-{format(self.high, form)})"


def rounds(names: Sequence[str], repeat: int, *, paired: bool) -> list[tuple[int, list[str]]]:
    """Return (number, contenders in order) per round, reversed each time; ``paired``: the first and one other each."""
    groups = [[names[0], other] for other in names[1:]] if paired else [list(names)]
    planned = [group[::-1] if number % 2 else group for number in range(repeat) for group in groups]
    return list(enumerate(planned, 1))


def ratio(mine: Mapping[int, float], others: Mapping[int, float]) -> Spread | None:
    """Return mine over the other's for each round where both ran (round -> value); a peer's 0 has no ratio."""
    return Spread.of(mine[number] / others[number] for number in sorted(mine.keys() & others.keys()) if others[number])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile: the smallest value not exceeded by at least ``share`` (above 0) of all."""
    if not values or not 0 < share <= 1:
        raise ValueError(f"a percentile needs values and a share above 0 up to 1, got {len(values)} and {share}")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def delays_ms(sent: Mapping[bytes, float], received: Mapping[bytes, float], since: float) -> list[float]:
    """Return the ms from sending to receipt, for all sent since ``since``; `ValueError` if a record was lost."""
    if lost := sent.keys() - received.keys():
        raise ValueError(f"{len(lost)} of {len(sent)} records were sent and not received")
    return [1000 * (received[key] - sent_at) for key, sent_at in sent.items() if sent_at >= since]


@dataclass(frozen=True, slots=True)
class Run:
    """One drain of a backlog; seconds from process start, peak sums of PSS and of resident sizes (0: not measured)."""

    contender: str
    records: int
    round: int
    records_per_s: float
    overall_records_per_s: float
    first_visible_s: float
    last_visible_s: float
    wall_s: float
    cpu_s: float
    broker_cpu_s: float
    foreign_cpu_s: float
    memory_mib: float
    memory_parts_mib: dict[str, float]
    verified: str
    broker: str = "tuned"
    resident_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds from a restart after `kill -9`; ``duplicates``: records written twice, by a sink without transactions."""

    contender: str
    records: int
    round: int
    visible_at_kill: int
    uncommitted_at_kill: int
    first_record_s: float
    wall_s: float
    duplicates: int
    verified: str


@dataclass(frozen=True, slots=True)
class Latency:
    """A run on paced orders, from `produce()` to a `read_committed` reader; ``cores``: CPU time by measured time."""

    contender: str
    round: int
    wanted_per_s: int
    records_per_s: float
    seconds: float
    first_commit_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    cores: float
    memory_mib: float
    verified: str


@dataclass(frozen=True, slots=True)
class Results:
    """All measurements of one command; ``contenders`` maps names to descriptions, ``ours`` names our own."""

    command: str
    machine: Mapping[str, str]
    contenders: Mapping[str, str]
    ours: Sequence[str]
    runs: Sequence[Run] = ()
    restarts: Sequence[Restart] = ()
    latencies: Sequence[Latency] = ()

    def by_broker(self) -> list[Results]:
        """Return the drains separately by kind of broker."""
        kinds = dict.fromkeys(run.broker for run in self.runs)
        return [replace(self, runs=[run for run in self.runs if run.broker == kind]) for kind in kinds]

    def counts(self) -> list[int]:
        return sorted({run.records for run in self.runs})

    def names(self, records: int) -> list[str]:
        """Return the contenders with runs over ``records`` records; the others are compared with the first."""
        ran = {run.contender for run in self.runs if run.records == records}
        return [name for name in self.contenders if name in ran]

    def by_round(self, name: str, records: int, value: Callable[[Run], float]) -> dict[int, float]:
        return {r.round: value(r) for r in self.runs if r.contender == name and r.records == records}

    def spread(self, name: str, records: int, value: Callable[[Run], float]) -> Spread | None:
        return Spread.of(self.by_round(name, records, value).values())

    def ratio(self, mine: str, other: str, records: int, value: Callable[[Run], float]) -> Spread | None:
        return ratio(self.by_round(mine, records, value), self.by_round(other, records, value))

    def cpu_us(self, name: str) -> float | None:
        """
        Return the CPU microseconds of one more record; None for one size.

        From the medians of the largest and the smallest backlog: the start-up cost cancels out.
        """
        spreads = {records: self.spread(name, records, lambda run: run.cpu_s) for records in self.counts()}
        costs = [(records, spread.middle) for records, spread in spreads.items() if spread]
        if len(costs) < 2:
            return None
        (small, least_s), (large, most_s) = costs[0], costs[-1]
        return 1e6 * (most_s - least_s) / (large - small)


def save(results: Results, path: Path) -> None:
    path.write_text(json.dumps({"format": FORMAT, **asdict(results)}, indent=2, ensure_ascii=False) + "\n")


def load(paths: Iterable[Path]) -> Results:
    """Merge the results of several files, with all commands; rounds of later files follow those of earlier ones."""
    if not (documents := [_document(path) for path in paths]):
        raise Refused("there are no results to read; give at least one file that the benchmark wrote")
    whole = Results("", documents[0]["machine"], {}, [])
    for document in documents:
        whole = _merged(whole, document)
    return whole


def _document(path: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: not a results file ({error}); give one that the benchmark wrote") from error
    version = document.get("format") if isinstance(document, dict) else None
    if not isinstance(document, dict) or version != FORMAT:
        raise Refused(f"{path}: its format is {version} instead of {FORMAT}; measure again with `make bench`")
    return document


def _merged(whole: Results, document: Mapping[str, Any]) -> Results:
    known: list[Run | Restart | Latency] = [*whole.runs, *whole.restarts, *whole.latencies]
    before = max((measured.round for measured in known), default=0)

    def later(name: str) -> list[dict[str, Any]]:
        return [{**fields, "round": fields["round"] + before} for fields in document[name]]

    return Results(
        "\n".join(dict.fromkeys([*whole.command.splitlines(), document["command"]])),
        whole.machine,
        {**whole.contenders, **document["contenders"]},
        list(dict.fromkeys([*whole.ours, *document["ours"]])),
        [*whole.runs, *(Run(**fields) for fields in later("runs"))],
        [*whole.restarts, *(Restart(**fields) for fields in later("restarts"))],
        [*whole.latencies, *(Latency(**fields) for fields in later("latencies"))],
    )
