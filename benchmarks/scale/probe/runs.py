"""Real runs of the pipeline as programs: when they begin to commit, what they use, how fast they drain."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contenders import JVM_DIR
from ground import patience, program
from psutil import Process
from tree import MemoryWatch, Tree, memory_parts
from watch import Ends, Pace, VisibilityWatch, pace

from pipeline.direct.tenure import IDLE_FOLLOWING_MS
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka.introspect import raw_batches
from scale.numbers import Connector, Idle, Memory
from scale.probe.place import Sandbox
from scale.probe.sockets import connections

_FEW = 40
_STAND_S = 3.0
_IDLE_S, _STRETCHES = 5.0, 4
_LOOK_S = 0.1
# Looking at 64 partitions every 20 ms made a run about a fifth slower; the last look comes late by this at most.
_WATCH_S = 0.1
_ASK_S = 30.0
_GOODBYE_S = 30.0
_CYCLE = ('{"event":"cycle"', '{"event": "cycle"')
WITHOUT_SPARK = ("--reader", "direct", "--master", "none")
WITH_SPARK = ("--reader", "direct", "--master", "local[2]")
CONNECTOR = ("--reader", "connector", "--master", "local[2]")


@dataclass(frozen=True, slots=True)
class Drain:
    """
    A run over a backlog: its pace as a reader saw it, CPU seconds of its tree, and where its output went.

    ``committed_s``: from process start to the earliest and to the latest of the partitions' last commit markers.
    """

    pace: Pace
    committed_s: tuple[float, float]
    cpu_s: float
    peak_mib: float
    folder: Path


@dataclass(frozen=True, slots=True)
class Names:
    """Topics and group of one run."""

    input: str
    output: str
    dead_letter: str
    group: str


def seeded(here: Sandbox, partitions: int, orders: int) -> str:
    """A topic with the benchmark's own orders."""
    topic = here.topic(partitions)
    options = ["--topic", topic, "--count", str(orders), "--start", "0"]
    program("proof", "seed", "--bootstrap", here.cluster.bootstrap, *options, records=orders)
    return topic


def names(here: Sandbox, source: str, partitions: int) -> Names:
    output = here.topic(partitions)
    return Names(source, output, here.topic(partitions), f"{output}.group")


def _command(here: Sandbox, place: Names, options: Sequence[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "pipeline", "run", "--bootstrap", here.cluster.bootstrap, "--progress", "json"),
        *("--input", place.input, "--output", place.output, "--dead-letter", place.dead_letter),
        *("--group", place.group, "--jvm-dir", str(JVM_DIR), *options),
    ]


def drain(here: Sandbox, place: Names, partitions: int, orders: int, options: Sequence[str]) -> Drain:
    """
    Run to the end of the backlog.

    Raises:
        Refused: it failed, or nothing became visible.
    """
    ends, folder = Ends(here.connection, place.output, partitions), here.home / place.output
    ends.ask()
    started, began_ms = time.monotonic(), 1000 * time.time()
    with (
        Tree(_command(here, place, options), folder) as tree,
        VisibilityWatch(ends, _WATCH_S) as seen,
        MemoryWatch(tree) as memory,
    ):
        try:
            usage = tree.wait(patience(orders))
        except Refused as error:
            raise Refused(f"{error}\nall that it said: {_kept(folder)}") from error
    going = pace(seen.sights, started, orders)
    if going is None:
        raise Refused(f"a run ended, and nothing is visible in {place.output}")
    marked = [(one - began_ms) / 1000 for one in _last_markers_ms(here, place.output, ends.ask())]
    return Drain(going, (min(marked), max(marked)), max(usage.cpu_s, memory.cpu_s), memory.peak.total / 2**20, folder)


def _last_markers_ms(here: Sandbox, topic: str, ends: Mapping[int, int]) -> list[float]:
    """When the last transaction of each partition ended, by its marker: nobody has to look on for that."""
    found, deadline = [], Deadline(_ASK_S)
    for partition, end in ends.items():
        *_, last = raw_batches(here.connection, topic, partition, end - 1, end, deadline)
        found.append(float(last.max_timestamp))
    return found


def _kept(folder: Path) -> Path:
    """A failed run's output, where it outlives the sandbox."""
    handle, name = tempfile.mkstemp(prefix="brew-scale-failed-", suffix=".log")
    os.close(handle)
    return Path(shutil.copyfile(folder / "output.log", name))


def first_commit_s(here: Sandbox, options: Sequence[str], times: int) -> float:
    """Process start to the first visible record, of a few that wait; the shortest of some runs."""
    source = seeded(here, 4, _FEW)
    return min(drain(here, names(here, source, 4), 4, _FEW, options).pace.first_visible_s for _ in range(times))


def connector(here: Sandbox, orders: int, transaction_s: float) -> Connector:
    """Small and large drains through Spark: what a cycle takes without its transactions, and CPU per record."""
    few = names(here, seeded(here, 4, _FEW), 4)
    small = drain(here, few, 4, _FEW, CONNECTOR)
    large = drain(here, names(here, seeded(here, 4, orders), 4), 4, orders, CONNECTOR)
    took = [cycle for cycle in _cycles(large.folder) if cycle > transaction_s]
    if not took:
        raise Refused(f"the connector told no cycle; its output is in {large.folder}")
    cpu = (large.cpu_s - small.cpu_s) / (orders - _FEW)
    return Connector(max(0.0, min(took) - transaction_s), 1e6 * max(0.0, cpu), small.pace.first_visible_s)


def _cycles(folder: Path) -> list[float]:
    """Seconds of each cycle that a run told."""
    told = (folder / "output.log").read_text("utf-8", "replace").splitlines()
    return [float(json.loads(line)["seconds"]) for line in told if line.startswith(_CYCLE)]


@dataclass(frozen=True, slots=True)
class Standing:
    """A following run that has nothing to do; CPU microseconds per second of it, and of the brokers."""

    mib: float
    threads: int
    connections: int
    client_us: float
    broker_us: float


def standing(here: Sandbox, partitions: int) -> Standing:
    """Follow a topic with a few orders, and look once all are out."""
    place = names(here, seeded(here, partitions, 4 * partitions), partitions)
    ends, deadline = Ends(here.connection, place.output, partitions), patience(4 * partitions)
    with Tree(_command(here, place, [*WITHOUT_SPARK, "--follow"]), here.home / place.output) as tree:
        while sum(ends.ask().values()) < 4 * partitions:
            deadline.check("a following run's first commits")
            time.sleep(_LOOK_S)
        time.sleep(_STAND_S)  # until the last transactions' clients are gone
        found = tree.processes()
        mib = sum(memory_parts(found).values()) / 2**20
        spent = _idle_us(here, found)
        threads = sum(one.num_threads() for one in found)
        told = Standing(mib, threads, connections(here, {one.pid for one in found}), *spent)
        tree.terminate()
        tree.wait(Deadline(_GOODBYE_S), stopped=True)
    return told


def _idle_us(here: Sandbox, found: Sequence[Process]) -> tuple[float, float]:
    """CPU microseconds per second, of the processes and of the brokers: the calmest of some stretches."""
    spent = []
    for _ in range(_STRETCHES):
        began, client, broker = time.monotonic(), _cpu_s(found), here.broker_cpu_s()
        time.sleep(_IDLE_S)
        seconds = time.monotonic() - began
        spent.append((1e6 * (_cpu_s(found) - client) / seconds, 1e6 * (here.broker_cpu_s() - broker) / seconds))
    return min(spent, key=sum)


def _cpu_s(found: Sequence[Process]) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in found)


def idle(few: tuple[int, Standing], many: tuple[int, Standing]) -> Idle:
    """From two runs, each (partitions, what stood there): what each further partition's fetches take."""
    fetches = (many[0] - few[0]) * 1000 / IDLE_FOLLOWING_MS
    client, broker = many[1].client_us - few[1].client_us, many[1].broker_us - few[1].broker_us
    return Idle(max(0.0, client) / fetches, max(0.0, broker) / fetches)


def memory(few: tuple[int, Standing], many: tuple[int, Standing]) -> Memory:
    """From two runs, each (partitions, what stood there)."""
    more = many[0] - few[0]
    each = (many[1].mib - few[1].mib) / more
    return Memory(few[1].mib - few[0] * each, each, (many[1].threads - few[1].threads) / more)
