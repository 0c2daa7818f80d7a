"""What was measured, as values, what is computed from it, and the JSON file that keeps it; pure but for the file."""

from __future__ import annotations

import itertools
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
    """The median of some rounds, with the lowest and the highest."""

    middle: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None of no values."""
        known = list(values)
        return cls(median(known), min(known), max(known), len(known)) if known else None

    def text(self, form: str) -> str:
        """`1.62 (1.55-1.71)`, or the one value alone."""
        middle = format(self.middle, form)
        if self.rounds == 1:
            return middle
        return f"{middle} ({format(self.low, form)}-{format(self.high, form)})"


def rounds(names: Sequence[str], repeat: int, *, paired: bool) -> list[tuple[int, list[str]]]:
    """
    (number, who runs in which order) of every round.

    All run in each round, and the order turns round with each, so that nobody is always first. ``paired``: the first
    name runs right beside each of the others in rounds of two, which keeps what drifts out of the ratio.
    """
    groups = [[names[0], other] for other in names[1:]] if paired else [list(names)]
    planned = [group[::-1] if number % 2 else group for number in range(repeat) for group in groups]
    return list(enumerate(planned, 1))


def ratio(mine: Mapping[int, float], others: Mapping[int, float]) -> Spread | None:
    """Mine over the other's, round by round (round -> value) where both ran; a peer's 0 has no ratio."""
    return Spread.of(mine[number] / others[number] for number in sorted(mine.keys() & others.keys()) if others[number])


def marginal(small: tuple[int, float], large: tuple[int, float]) -> float:
    """
    What one more record costs, of two (records, cost): the start, the same in both, falls out.

    Raises:
        ValueError: the second is not larger.
    """
    if large[0] <= small[0]:
        raise ValueError(f"a difference needs more records than {small[0]}, got {large[0]}")
    return (large[1] - small[1]) / (large[0] - small[0])


def percentile(values: Sequence[float], share: float) -> float:
    """
    The smallest value that at least ``share`` (above 0, at most 1) of the values don't exceed: nearest rank.

    Raises:
        ValueError: there are no values, or no such share.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"a percentile needs values and a share above 0 up to 1, got {len(values)} and {share}")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def delays_ms(sent: Mapping[bytes, float], received: Mapping[bytes, float], since: float) -> list[float]:
    """
    Milliseconds between sending and receiving, of what was sent at ``since`` (monotonic seconds) or later.

    Raises:
        ValueError: something that was sent was not received; leaving it out would flatter.
    """
    lost = sent.keys() - received.keys()
    if lost:
        raise ValueError(f"{len(lost)} of {len(sent)} records were sent and not received")
    return [1000 * (received[key] - sent_at) for key, sent_at in sent.items() if sent_at >= since]


@dataclass(frozen=True, slots=True)
class Run:
    """
    One drain of a backlog; seconds count from process start, memory is the peak sum of PSS in MiB.

    ``broker``: what it was like, a key of `environment.BROKERS`.
    """

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


@dataclass(frozen=True, slots=True)
class Restart:
    """
    Seconds from a new start after `kill -9` to the first new record, and to the end of the backlog.

    ``duplicates`` is what the kill made a sink without transactions write twice.
    """

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
    """
    Paced orders followed through; delays from `produce()` to a `read_committed` reader's hands.

    ``first_commit_s`` is the time from process start to the first record of a few that waited already.
    ``cores`` is the CPU time of the whole tree over the measured time.
    """

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
    """Everything measured by one command; ``contenders`` is name -> what it is, ``ours`` names those that are ours."""

    command: str
    machine: Mapping[str, str]
    contenders: Mapping[str, str]
    ours: Sequence[str]
    runs: Sequence[Run] = ()
    restarts: Sequence[Restart] = ()
    latencies: Sequence[Latency] = ()

    def by_broker(self) -> list[Results]:
        """The drains apart, by what their broker was like."""
        kinds = dict.fromkeys(run.broker for run in self.runs)
        return [replace(self, runs=[run for run in self.runs if run.broker == kind]) for kind in kinds]

    def counts(self) -> list[int]:
        return sorted({run.records for run in self.runs})

    def names(self, records: int) -> list[str]:
        """Who has runs over so many records; the first is the one that others are compared with."""
        ran = {run.contender for run in self.runs if run.records == records}
        return [name for name in self.contenders if name in ran]

    def by_round(self, name: str, records: int, value: Callable[[Run], float]) -> dict[int, float]:
        """Round -> a measure."""
        return {r.round: value(r) for r in self.runs if r.contender == name and r.records == records}

    def spread(self, name: str, records: int, value: Callable[[Run], float]) -> Spread | None:
        return Spread.of(self.by_round(name, records, value).values())

    def ratio(self, mine: str, other: str, records: int, value: Callable[[Run], float]) -> Spread | None:
        """Mine over the other's, round by round."""
        return ratio(self.by_round(mine, records, value), self.by_round(other, records, value))

    def cpu_us(self, name: str) -> float | None:
        """CPU microseconds of the tree per record: largest backlog less smallest, of medians; None with one size."""
        counts = [records for records in self.counts() if name in self.names(records)]
        ends = [self.spread(name, records, lambda run: run.cpu_s) for records in (counts[:1] + counts[-1:])]
        if len(counts) < 2 or ends[0] is None or ends[1] is None:
            return None
        return 1e6 * marginal((counts[0], ends[0].middle), (counts[-1], ends[1].middle))

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"format": FORMAT, **asdict(self)}


def save(results: Results, path: Path) -> None:
    path.write_text(json.dumps(results.document(), indent=2, ensure_ascii=False) + "\n")


def load(paths: Iterable[Path]) -> Results:
    """
    The results of some files taken together, all commands named; rounds of later files follow those of earlier ones.

    Raises:
        Refused: a file holds something else, or was written by an older benchmark.
    """
    documents = [_document(path) for path in paths]
    if not documents:
        raise Refused("there are no results to read; give at least one file that the benchmark wrote")
    whole = _results(documents[0], 0)
    for document in documents[1:]:
        so_far = itertools.chain(whole.runs, whole.restarts, whole.latencies)
        more = _results(document, max((measured.round for measured in so_far), default=0))
        whole = Results(
            "\n".join(dict.fromkeys([*whole.command.splitlines(), more.command])),
            whole.machine,
            {**whole.contenders, **more.contenders},
            [*whole.ours, *(name for name in more.ours if name not in whole.ours)],
            [*whole.runs, *more.runs],
            [*whole.restarts, *more.restarts],
            [*whole.latencies, *more.latencies],
        )
    return whole


def _document(path: Path) -> dict[str, Any]:
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: no results of the benchmark: {error}") from error
    version = document.get("format") if isinstance(document, dict) else None
    if not isinstance(document, dict) or version != FORMAT:
        raise Refused(f"{path}: its format is {version}, {FORMAT} is needed; measure again with `make bench`")
    return document


def _results(document: Mapping[str, Any], before: int) -> Results:
    def later(measured: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{**fields, "round": fields["round"] + before} for fields in measured]

    return Results(
        document["command"],
        document["machine"],
        document["contenders"],
        document["ours"],
        [Run(**fields) for fields in later(document["runs"])],
        [Restart(**fields) for fields in later(document["restarts"])],
        [Latency(**fields) for fields in later(document["latencies"])],
    )
