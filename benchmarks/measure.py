"""One measured run: a contender drains an input, watched from outside."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import psutil
from contenders import Contender, Place, Setup
from ground import PARTITIONS, Ground, patience, program
from tree import MemoryWatch, Tree
from watch import Ends, VisibilityWatch, first_record, open_records, pace

from protocol.deadline import Deadline
from protocol.errors import Refused

_START_S = 60.0
_LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Run:
    """What one run showed; seconds count from process start, memory is the peak sum of PSS in MiB."""

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
    unique: int
    duplicates: int
    verified: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Seconds from the start of a new pipeline after `kill -9` to the first new record, and to its end."""

    records: int
    round: int
    visible_at_kill: int
    uncommitted_at_kill: int
    first_record_s: float
    wall_s: float
    unique: int
    duplicates: int
    verified: str


def place_for(ground: Ground, contender: str, records: int, number: str) -> Place:
    """Fresh topics, group and directory for one run."""
    stem = f"bench.{contender}.{records}.{number}"
    source = ground.input_of(records)
    place = Place(ground.cluster.bootstrap, source, f"{stem}.out", f"{stem}.dlq", f"{stem}.group", ground.home / stem)
    ground.make_topics([place.output, place.dead_letter])
    return place


def machine_cpu_s() -> float:
    """CPU seconds that this machine has spent on anything since it was started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def measure(ground: Ground, contender: Contender, setup: Setup, records: int, number: int) -> Run:
    """Run a contender once over ``records`` orders, then count its output."""
    place = place_for(ground, contender.name, records, str(number))
    ends = Ends(ground.connection, place.output, PARTITIONS)
    broker, machine, own = ground.broker_cpu_s(), machine_cpu_s(), time.process_time()
    started = time.monotonic()
    with (
        Tree(contender.command(place, setup), place.home) as tree,
        VisibilityWatch(ends) as seen,
        MemoryWatch(tree) as memory,
    ):
        usage = tree.wait(patience(records))
    broker = ground.broker_cpu_s() - broker
    # Spark's Python daemon forgets its workers' times when it is killed, so the kernel's sum alone is too low.
    cpu = max(usage.cpu_s, memory.cpu_s)
    foreign = machine_cpu_s() - machine - (time.process_time() - own) - broker - cpu
    going = pace(seen.sights, started, records)
    if going is None:
        raise Refused(f"{contender.name}: it ended, and nothing is visible in {place.output}")
    found = ground.count(place.output, "source", records)
    verified = _verified(contender, place, records, found)
    ground.drop_topics([place.output, place.dead_letter])
    return Run(
        contender.name,
        records,
        number,
        going.records_per_s,
        going.overall_records_per_s,
        going.first_visible_s,
        going.last_visible_s,
        usage.wall_s,
        cpu,
        broker,
        max(0.0, foreign),
        memory.peak.total / 2**20,
        {name: size / 2**20 for name, size in memory.peak.parts.items()},
        found["unique"],
        found["duplicates"],
        verified,
    )


def _verified(contender: Contender, place: Place, records: int, found: dict[str, int]) -> str:
    """
    Check a run's output: as many different source positions as orders, and for ours the whole proof.

    Raises:
        Refused: records are missing, or the proof fails; a fast wrong run is no result.
    """
    if found["unique"] != records:
        raise Refused(f"{contender.name}: {found['unique']} of {records} source positions are in its output")
    if not contender.ours:
        return "count"
    names = ["--input", place.input, "--output", place.output, "--dead-letter", place.dead_letter]
    told = program(
        "proof", "verify", "--bootstrap", place.bootstrap, *names, "--group", place.group, "--json", records=3 * records
    )
    return str(json.loads(told)["verdict"])


def restart(ground: Ground, contender: Contender, setup: Setup, records: int, number: int) -> Restart:
    """Kill the whole pipeline in the middle of a transaction, start it again, and wait for the first new record."""
    place = place_for(ground, contender.name, records, f"restart-{number}")
    ends = Ends(ground.connection, place.output, PARTITIONS)
    command = contender.command(place, setup)
    with Tree(command, place.home) as tree:
        waiting = _await_open_transaction(tree, ends)
        tree.kill()
    stable = ends.ask()
    started = time.monotonic()
    with Tree(command, place.home) as tree:
        first = first_record(ground.connection, place.output, stable, f"{place.group}.reader", Deadline(_START_S))
        usage = tree.wait(patience(records))
    found = ground.count(place.output, "source", records)
    verified = _verified(contender, place, records, found)
    ground.drop_topics([place.output, place.dead_letter])
    return Restart(
        records,
        number,
        sum(stable.values()),
        waiting,
        first - started,
        usage.wall_s,
        found["unique"],
        found["duplicates"],
        verified,
    )


def _await_open_transaction(tree: Tree, ends: Ends) -> int:
    """
    Return while something is visible and more waits in an open transaction; how many offsets wait.

    Raises:
        Refused: the run ended before that; more orders would give more time.
    """
    deadline = Deadline(_START_S)
    while tree.running():
        if sum(ends.ask().values()) and (waiting := open_records(ends)) > 0:
            return waiting
        deadline.check("the transaction to kill in")
        time.sleep(_LOOK_S)
    raise Refused(f"the run ended before it could be killed inside a transaction; its last lines:\n{tree.tail()}")
