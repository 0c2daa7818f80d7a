"""Measurements of a contender: drain of a backlog, latency of paced orders, restart; every output is verified."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import TypeVar

import psutil
from contenders import Contender, RunTopics
from environment import PARTITIONS, BenchmarkCluster, make_topics, program, step_timeout_s, touch
from runs import Latency, Restart, Run, delays_ms, percentile
from watch import EndOffsets, MemoryWatch, Tree, Usage, VisibilityWatch, open_records, throughput

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import cluster_admin, offsets
from brew.kafka.clients import TopicPartition, consumer, mapped, producer
from brew.names import READ_COMMITTED, READ_UNCOMMITTED, ExitCode
from proof.campaign.programs import Background
from proof.checking.checker import MISPLACED
from proof.findings import Name, Verdict
from proof.seed import orders

_T = TypeVar("_T")
_LOOK_S, _DRAINED_S = 0.005, 0.05
_IN_LATENCY = "during the latency measurement"
_ASK_S, _SHUTDOWN_TIMEOUT_S = 30.0, 30.0


def create_run_topics(cluster: BenchmarkCluster, contender: Contender, source: str, stem: str) -> RunTopics:
    """Create topics, a group and a directory for one run over the topic ``source``."""
    stem = f"bench.{contender.name}.{stem}"
    topics = RunTopics(
        cluster.cluster.bootstrap, source, f"{stem}.out", f"{stem}.dlq", f"{stem}.group", cluster.home / stem
    )
    # Spark's sink cannot keep timestamps, which the proof requires unless the broker sets them.
    timed = {} if contender.exactly_once else {"message.timestamp.type": "LogAppendTime"}
    make_topics(cluster.connection, [topics.output, topics.dead_letter], config=timed)
    return topics


def finish(cluster: BenchmarkCluster, contender: Contender, topics: RunTopics, tree: Tree, deadline: Deadline) -> Usage:
    """Wait for the end of a drain; an endless contender is stopped when the backlog is done."""
    if not contender.endless:
        return tree.wait(deadline)
    _await_drained(cluster, topics, tree, deadline)
    return stop(tree)


def stop(tree: Tree) -> Usage:
    """Send SIGTERM and wait for the end."""
    tree.terminate()
    return tree.wait(Deadline(_SHUTDOWN_TIMEOUT_S), stopped=True)


def _await_drained(cluster: BenchmarkCluster, topics: RunTopics, tree: Tree, deadline: Deadline) -> None:
    """Wait until the group is at the input's end, where no markers are, and no transaction is open on the output."""
    ends = EndOffsets(cluster.connection, topics.input, PARTITIONS).ask()
    downstream = [EndOffsets(cluster.connection, topic, PARTITIONS) for topic in (topics.output, topics.dead_letter)]
    reader = consumer(cluster.connection, topics.group, READ_UNCOMMITTED)

    def drained() -> bool:
        committed = offsets.committed(reader, topics.input, range(PARTITIONS), Deadline(_ASK_S))
        at_end = all((position := committed[p]) is not None and position.offset >= end for p, end in ends.items())
        return at_end and not any(open_records(topic) for topic in downstream)

    try:
        what, ended = f"draining {topics.input}", "before the backlog was drained"
        _await(drained, deadline, what, tree, ended=ended, pause_s=_DRAINED_S)
    finally:
        reader.close()


def verified(cluster: BenchmarkCluster, contender: Contender, topics: RunTopics, records: int) -> str:
    """
    Return the proof's verdict on an output; it may find violations only of what the contender does not promise. A sink
    without transactions has no position in Kafka: the input's end is what it claims.
    """
    if not contender.exactly_once:
        ends = EndOffsets(cluster.connection, topics.input, PARTITIONS).ask()
        cluster_admin.set_offsets(cluster.connection, topics.group, topics.input, ends, Deadline(_ASK_S))
    names = ["--input", topics.input, "--output", topics.output, "--dead-letter", topics.dead_letter]
    # Only ours has a producer per transaction; reusing one is no violation in a run without late frames.
    rules = ["--strict" if contender.ours else "--no-strict", "--settled", "--need", f"outputs={records}", "--json"]
    good = (ExitCode.DONE, ExitCode.VIOLATION) if contender.without else (ExitCode.DONE,)
    verify = ("proof", "verify", "--bootstrap", topics.bootstrap, *names, "--group", topics.group, *rules)
    report = json.loads(program(*verify, records=3 * records, good=good))
    if report["verdict"] == Verdict.VIOLATED:
        # A query that shuffles its rows by key leaves the partition to the key.
        doubts = [one for one in report["doubts"] if not (MISPLACED in one and Name.NONMONOTONIC in contender.without)]
        if not set(report["totals"]) <= contender.without.keys() or doubts:
            raise Refused(f"{contender.name}: {report['totals']}, {doubts}; {report['findings'][:3]}")
        return f"{Verdict.PROVEN} but for {' and '.join(contender.without[name] for name in sorted(report['totals']))}"
    return str(report["verdict"])


def verified_after_kill(
    cluster: BenchmarkCluster, contender: Contender, topics: RunTopics, records: int
) -> tuple[str, int]:
    """Verify as `verified` does, and return the number of duplicates; only a sink without transactions may have any."""
    if contender.exactly_once:
        return verified(cluster, contender, topics, records), 0
    counts = cluster.count(topics.output, "source", records)
    if counts["unique"] != records:
        raise Refused(f"{contender.name}: its output has {counts['unique']} of {records} source positions")
    return "count", counts["duplicates"]


def machine_cpu_s() -> float:
    """Return the CPU seconds used on this machine since its boot."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def measure(cluster: BenchmarkCluster, contender: Contender, master: str, records: int, number: int) -> Run:
    """Run a contender once over ``records`` orders, then verify its output."""
    source = cluster.input_of(records)
    if cluster.kind == "default-young":
        cluster.cluster.restart()
    topics = create_run_topics(cluster, contender, source, f"{records}.{number}")
    ends = EndOffsets(cluster.connection, topics.output, PARTITIONS)
    touch()
    broker, machine, own = cluster.broker_cpu_s(), machine_cpu_s(), time.process_time()
    started = time.monotonic()
    with (
        Tree(contender.command(topics, master, False), topics.home) as tree,
        VisibilityWatch(ends) as seen,
        MemoryWatch(tree) as memory,
    ):
        usage = finish(cluster, contender, topics, tree, step_timeout_s(records))
    broker = cluster.broker_cpu_s() - broker
    # Spark's Python daemon loses its workers' times when it is killed, so the kernel's sum alone is too low.
    cpu = max(usage.cpu_s, memory.cpu_s)
    foreign = machine_cpu_s() - machine - (time.process_time() - own) - broker - cpu
    if (going := throughput(seen.sights, started, records)) is None:
        raise Refused(f"{contender.name}: it ended, but nothing is visible in {topics.output}")
    verdict = verified(cluster, contender, topics, records)
    cluster.drop_topics([topics.output, topics.dead_letter])
    return Run(
        contender=contender.name,
        records=records,
        round=number,
        **asdict(going),
        wall_s=usage.wall_s,
        cpu_s=cpu,
        broker_cpu_s=broker,
        foreign_cpu_s=max(0.0, foreign),
        memory_mib=memory.peak.total() / 2**20,
        memory_parts_mib={name: size / 2**20 for name, size in memory.peak.items()},
        verified=verdict,
        broker=cluster.kind,
        resident_mib=memory.resident_peak / 2**20,
    )


_WAITING, _START_S, _ARRIVE_S, _POLL_S = 1_000, 120.0, 60.0, 0.1


class Pacer(Background):
    """Sends orders at a steady rate; ``sent`` maps each key to the time of `produce()`."""

    def __init__(self, connection: Connection, topic: str, per_s: int, first: int) -> None:
        super().__init__("pacer")
        self._client = producer(
            connection, None, timeout_s=_ARRIVE_S, message_max_bytes=1_000_000, **{"linger.ms": 0, "acks": "all"}
        )
        self._topic, self._per_s, self._first = topic, per_s, first
        self.sent: dict[bytes, float] = {}

    def __exit__(self, *raised: object) -> None:
        """Wait until everything sent is in the log."""
        super().__exit__(*raised)
        with mapped("flush"):
            self._client.flush(_ARRIVE_S)

    def run(self) -> None:
        order, began = orders(0), time.monotonic()
        for number in itertools.count():
            due = began + number / self._per_s - time.monotonic()
            if due > 0:
                self._client.poll(0)
                if self.over.wait(due):
                    return
            key, value = order(self._first + number)
            self.sent[key] = time.monotonic()
            self._client.produce(self._topic, value, key, partition=number % PARTITIONS)


class Receiver(Background):
    """Reads a topic from ``positions`` on with `read_committed`; ``received`` maps each key to its time."""

    def __init__(self, connection: Connection, topic: str, group: str, positions: Mapping[int, int]) -> None:
        super().__init__("receiver")
        self._client = consumer(connection, group, READ_COMMITTED, **{"fetch.wait.max.ms": 20})
        self._client.assign([TopicPartition(topic, p, offset) for p, offset in positions.items()])
        self.received: dict[bytes, float] = {}
        self.duplicates = 0

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._client.close()

    def run(self) -> None:
        while not self.over.is_set():
            message = self._client.poll(_POLL_S)  # one at a time, because `consume` would wait for a full batch
            if message is None or message.error() is not None:
                continue
            now, key = time.monotonic(), message.key() or b""
            if key in self.received:
                self.duplicates += 1
            else:
                self.received[key] = now

    def first(self, deadline: Deadline, what: str, *trees: Tree) -> float:
        """Return when the first record came."""
        _await(lambda: self.received, deadline, what, *trees, ended=_IN_LATENCY)
        return min(self.received.values())


def follow(
    cluster: BenchmarkCluster,
    contender: Contender,
    master: str,
    number: int,
    *,
    per_s: int,
    warm_s: float,
    seconds: float,
) -> Latency:
    """Start a contender on a few waiting orders, then send it ``per_s`` a second; the first ``warm_s`` do not count."""
    source = f"bench.follow.{contender.name}.{number}.in"
    cluster.seed(source, _WAITING)
    topics = create_run_topics(cluster, contender, source, f"follow-{number}")
    touch()
    starts = dict.fromkeys(range(PARTITIONS), 0)
    with Receiver(cluster.connection, topics.output, f"{topics.group}.reader", starts) as reader:
        started = time.monotonic()
        with Tree(contender.command(topics, master, True), topics.home) as tree, MemoryWatch(tree) as memory:
            first = reader.first(Deadline(_START_S), "the first record", tree) - started
            memory.sparing = True
            with Pacer(cluster.connection, source, per_s, _WAITING) as pacer:
                _pause(tree, warm_s)
                since, cpu = time.monotonic(), memory.cpu_s
                _pause(tree, seconds)
                measured_s, cpu = time.monotonic() - since, memory.cpu_s - cpu
            memory.weigh()
            total = _WAITING + len(pacer.sent)
            arrived = f"all of {total} records"
            _await(lambda: len(reader.received) >= total, Deadline(_ARRIVE_S), arrived, tree, ended=_IN_LATENCY)
            stop(tree)
    if reader.duplicates:
        raise Refused(f"{contender.name}: {reader.duplicates} records were received twice")
    verdict = verified(cluster, contender, topics, total)
    cluster.drop_topics([source, topics.output, topics.dead_letter])
    delays = delays_ms(pacer.sent, reader.received, since)
    spread = (percentile(delays, 0.5), percentile(delays, 0.99), max(delays))
    pace = (per_s, len(delays) / measured_s, measured_s, first, *spread, cpu / measured_s)
    return Latency(contender.name, number, *pace, memory.peak.total() / 2**20, verdict)


def _await(
    condition: Callable[[], _T], deadline: Deadline, what: str, *trees: Tree, ended: str, pause_s: float = _LOOK_S
) -> _T:
    """Return what ``condition`` returns once it is true; refused if one of ``trees`` ends before."""
    while not (found := condition()):
        for tree in trees:
            if not tree.running():
                raise tree.refused(f"it ended {ended}")
        deadline.check(what)
        time.sleep(pause_s)
    return found


def _pause(tree: Tree, seconds: float) -> None:
    """Sleep while checking that the contender is alive."""
    over = Deadline(seconds)
    while not over.expired():
        if not tree.running():
            raise tree.refused(f"it ended {_IN_LATENCY}")
        time.sleep(min(0.1, over.remaining_s()))


_MOMENT_S = 60.0
_FIRST_S = 150.0  # a dead dynamic member's session lasts 45 s, and its transaction up to 60 s
_WARM_S = 60.0
_STANDS_BY, _IS_WARM = " stands by, ", " is warm"


def restart(cluster: BenchmarkCluster, contender: Contender, master: str, records: int, number: int) -> Restart:
    """Kill the contender inside a transaction, and start it again; a standby takes over instead."""
    topics = create_run_topics(cluster, contender, cluster.input_of(records), f"restart-{number}")
    ends = EndOffsets(cluster.connection, topics.output, PARTITIONS)
    command = contender.command(topics, master, False)
    touch()
    with ExitStack() as ended:
        tree = ended.enter_context(Tree(command, topics.home))
        if contender.stands_by:
            tree, other = roles(tree, ended.enter_context(Tree(command, topics.home / "second")))
        waiting = _await_moment(tree, ends, transactions=contender.exactly_once)
        started = time.monotonic()
        tree.kill()
        stable = ends.ask()
        if not contender.stands_by:
            started = time.monotonic()
            other = ended.enter_context(Tree(command, topics.home))
        # A record, because a fence moves the last stable offset past aborted ones.
        with Receiver(cluster.connection, topics.output, f"{topics.group}.reader", stable) as reader:
            first = reader.first(Deadline(_FIRST_S), "the first record after a restart")
        usage = finish(cluster, contender, topics, other, step_timeout_s(records))
    verdict, duplicates = verified_after_kill(cluster, contender, topics, records)
    cluster.drop_topics([topics.output, topics.dead_letter])
    seen = (sum(stable.values()), waiting, first - started, usage.wall_s)
    return Restart(contender.name, records, number, *seen, duplicates, verdict)


def roles(first: Tree, other: Tree) -> tuple[Tree, Tree]:
    """Return (active, standby) of two instances started together, once one of them is a warm standby."""

    def await_note(note: str, what: str, *trees: Tree) -> Tree:
        ended = f"before there was {what}; give more --orders"
        noted = _await(
            lambda: [tree for tree in trees if note in tree.tail()], Deadline(_WARM_S), what, first, other, ended=ended
        )
        return noted[0]

    stands_by = await_note(_STANDS_BY, "a standby", first, other)
    await_note(_IS_WARM, "a warm standby", stands_by)
    return first if stands_by is other else other, stands_by


def _await_moment(tree: Tree, ends: EndOffsets, *, transactions: bool) -> int:
    """Wait until records are visible and, with ``transactions``, more are in an open one; return their number."""

    def counts() -> list[int]:
        waiting = open_records(ends) if sum(ends.ask().values()) else -1
        return [waiting] if waiting > 0 or (waiting == 0 and not transactions) else []

    ended = "before it could be killed inside a transaction; give more --orders"
    return _await(counts, Deadline(_MOMENT_S), "waiting for the moment to kill the run", tree, ended=ended)[0]
