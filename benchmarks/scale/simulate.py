"""Run a scenario to its end and say how it went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.settings import Reader
from protocol.errors import Refused
from scale.connector import Lanes
from scale.direct import Holders
from scale.log import Log
from scale.numbers import Numbers
from scale.scenario import Scenario
from scale.world import World

_LONGEST_DRAIN_S = 3600.0
_GRAIN_S = 1.0
_HEAL_S = 180.0


@dataclass(frozen=True, slots=True)
class Report:
    """
    How a simulated run went; rates, latency and shares count behind the warm-up (a drain: from its first grant on).

    ``records_in`` arrived (0: there was always more), ``records_out`` are committed. ``shares``: resource -> share of
    it in use, the busiest one of its kind. ``recovered_ms``: from the loss of an executor to the next commit of its
    partitions: median and last. ``cpu_s``: of all executors and brokers. ``simulated_s``: until the end, or a drain's
    last commit.
    """

    records_in: int
    records_out: int
    records_per_s: float
    transactions_per_s: float
    records_per_transaction: float
    first_commit_s: float
    all_committed_s: float
    p50_ms: float | None
    p99_ms: float | None
    shares: dict[str, float]
    recovered_ms: tuple[float, float] | None
    simulated_s: float
    cpu_s: float

    @property
    def bottleneck(self) -> str:
        """What is busiest, or `waiting` when nothing is in use for more than four fifths of the time."""
        name = max(self.shares, key=lambda one: self.shares[one])
        return name if self.shares[name] > 0.8 else "waiting"


def simulate(scenario: Scenario, numbers: Numbers) -> Report:
    """
    The same report for the same scenario and numbers, always.

    Raises:
        Refused: nothing was committed in the time that is counted.
    """
    world = World(scenario, numbers)
    reader = Lanes(world) if scenario.reader is Reader.CONNECTOR else Holders(world)
    reader.start()
    since = scenario.warm_up_s
    before: dict[str, float] = {}
    drain = scenario.backlog > 0 and not scenario.rate
    if drain:
        since = 0.0
        before = _busy(world)
        while not world.drained() and world.env.now < _LONGEST_DRAIN_S:
            world.env.run(until=world.env.now + _GRAIN_S)
        until = max((log.commits[-1][0] for log in world.logs if log.commits), default=0.0)
    else:
        until = scenario.warm_up_s + scenario.seconds
        if since:
            world.env.run(until=since)
        for log in world.logs:
            log.waits.clear()
        before = _busy(world)
        world.env.run(until=until)
    after = _busy(world)
    window = max(1e-9, min(world.env.now, until) - since)
    shares = {name: (after[name] - before[name]) / window for name in after}
    waits = sorted(wait for log in world.logs for wait in log.waits)
    _heal(world, reader.lost)
    endless = not scenario.backlog and not scenario.rate
    arrived = 0 if endless else sum(log.arrived(world.env.now) for log in world.logs)
    counted = [[commit for commit in log.commits if since <= commit[0] <= until] for log in world.logs]
    commits = [commit for some in counted for commit in some]
    records = sum(count for _, count in commits)
    if not commits:
        raise Refused(f"nothing was committed between {since:g} and {until:g} s of simulated time; raise --seconds")
    start = _start_s(scenario, numbers)
    return Report(
        arrived,
        sum(log.committed for log in world.logs),
        records / window if drain else sum(_rate(some, window) for some in counted),
        len(commits) / window,
        records / len(commits),
        start + min(log.commits[0][0] for log in world.logs if log.commits),
        start + max(log.commits[0][0] for log in world.logs if log.commits),
        _quantile(waits, 0.5),
        _quantile(waits, 0.99),
        {name: min(1.0, share) for name, share in shares.items()},
        _recovered(world.logs, reader.lost),
        until,
        sum(cores.busy_s() for cores in {id(one): one for one in (*world.hosts, *world.brokers)}.values()),
    )


def _start_s(scenario: Scenario, numbers: Numbers) -> float:
    """From process start to the first grant, or to the first cycle."""
    if scenario.reader is Reader.CONNECTOR:
        return max(0.0, numbers.connector.start_s - numbers.connector.cycle_s)
    return numbers.start_s + (0.0 if scenario.without_spark else numbers.spark_start_s)


def _busy(world: World) -> dict[str, float]:
    """Resource -> seconds that the busiest one of its kind has worked, per unit of it."""
    found = {
        "interpreter": max(slot.interpreter.held_s for slot in world.slots),
        "executor": max(host.busy_s() / host.cores for host in world.hosts),
        "driver": world.driver.interpreter.held_s,
        "group coordinator": max(queue.busy_s for queue in world.groups),
    }
    if not world.scenario.one_machine:
        found["broker"] = max(broker.busy_s() / broker.cores for broker in world.brokers)
    return found


def _rate(commits: Sequence[tuple[float, int]], window: float) -> float:
    """Records per second of one partition: between its commits where it has some, so that none counts in part."""
    if len(commits) < 4:  # some partitions have one more than others, and all together are right
        return sum(count for _, count in commits) / window
    first, last = commits[0][0], commits[-1][0]
    return sum(count for at, count in commits if at > first) / (last - first)


def _quantile(waits: Sequence[tuple[float, float]], share: float) -> float | None:
    """In milliseconds: the shortest wait that this share of the records does not exceed."""
    left = share * sum(weight for _, weight in waits)
    for wait, weight in waits:
        left -= weight
        if left <= 0:
            return 1000 * wait
    return None


def _heal(world: World, lost: dict[int, float]) -> None:
    """Go on until every partition of a lost executor has committed again."""
    end = world.env.now + _HEAL_S
    while world.env.now < end and any(not _next(world.logs[p], at) for p, at in lost.items()):
        world.env.run(until=world.env.now + _GRAIN_S)


def _next(log: Log, at: float) -> float:
    return next((commit for commit, _ in log.commits if commit > at), 0.0)


def _recovered(logs: Sequence[Log], lost: dict[int, float]) -> tuple[float, float] | None:
    took = sorted(1000 * (_next(logs[p], at) - at) for p, at in lost.items() if _next(logs[p], at))
    return (took[len(took) // 2], took[-1]) if took else None
