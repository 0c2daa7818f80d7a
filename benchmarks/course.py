"""What every kind of measurement needs: a place to run in, an end to wait for, and a verdict on the output."""

from __future__ import annotations

import json
import time

from contenders import Contender, RunTopics
from ground import PARTITIONS, BenchmarkCluster, program
from tree import Tree, Usage
from watch import EndOffsets, open_records

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import cluster_admin, offsets
from brew.kafka.clients import consumer
from brew.names import READ_UNCOMMITTED, ExitCode
from proof.findings import Name, Verdict

_LOOK_S = 0.05
_ASK_S = 30.0
_SHUTDOWN_TIMEOUT_S = 30.0


def create_run_topics(ground: BenchmarkCluster, contender: Contender, source: str, stem: str) -> RunTopics:
    """Fresh topics, group and directory for one run over the topic ``source``."""
    stem = f"bench.{contender.name}.{stem}"
    place = RunTopics(
        ground.cluster.bootstrap, source, f"{stem}.out", f"{stem}.dlq", f"{stem}.group", ground.home / stem
    )
    # Spark's sink can't keep timestamps, which the proof asks for unless the broker sets them.
    timed = {} if contender.exactly_once else {"message.timestamp.type": "LogAppendTime"}
    ground.make_topics([place.output, place.dead_letter], timed)
    return place


def finish(ground: BenchmarkCluster, contender: Contender, place: RunTopics, tree: Tree, deadline: Deadline) -> Usage:
    """Wait for a drain's end: its own, or that of the backlog, at which an endless contender is told to stop."""
    if not contender.endless:
        return tree.wait(deadline)
    _await_drained(ground, place, tree, deadline)
    return stop(tree)


def stop(tree: Tree) -> Usage:
    """SIGTERM, and the end that follows."""
    tree.terminate()
    return tree.wait(Deadline(_SHUTDOWN_TIMEOUT_S), stopped=True)


def _await_drained(ground: BenchmarkCluster, place: RunTopics, tree: Tree, deadline: Deadline) -> None:
    """
    Return once the group stands at the input's end and no transaction is open downstream.

    The input is written without transactions: some contenders never step over the markers at a log's end.

    Raises:
        Refused: the contender ended before that.
    """
    ends = EndOffsets(ground.connection, place.input, PARTITIONS).ask()
    downstream = [EndOffsets(ground.connection, topic, PARTITIONS) for topic in (place.output, place.dead_letter)]
    reader = consumer(ground.connection, place.group, READ_UNCOMMITTED)
    try:
        while tree.running():
            found = offsets.committed(reader, place.input, range(PARTITIONS), Deadline(_ASK_S))
            at_end = all((one := found[p]) is not None and one.offset >= end for p, end in ends.items())
            if at_end and not any(open_records(topic) for topic in downstream):
                return
            deadline.check(f"draining {place.input}")
            time.sleep(_LOOK_S)
    finally:
        reader.close()
    raise Refused(f"it ended by itself before the backlog did; its last lines:\n{tree.tail()}")


def verified(ground: BenchmarkCluster, contender: Contender, place: RunTopics, records: int) -> str:
    """
    The proof's verdict on a run's output; a fast wrong run is no result.

    A sink without transactions keeps no position in Kafka, so it is given the input's end: that is what it claims.
    Where positions lie outside of the transactions, the proof finds no pair of both, and may find nothing else.

    Raises:
        Refused: records are missing, or the proof finds something.
    """
    if not contender.exactly_once:
        ends = EndOffsets(ground.connection, place.input, PARTITIONS).ask()
        cluster_admin.set_offsets(ground.connection, place.group, place.input, ends, Deadline(_ASK_S))
    names = ["--input", place.input, "--output", place.output, "--dead-letter", place.dead_letter]
    # Only ours has a producer per transaction; to reuse one is no fault of a run without late frames.
    rules = ["--strict" if contender.ours else "--no-strict", "--settled", "--need", f"outputs={records}", "--json"]
    good = (ExitCode.DONE, ExitCode.VIOLATION) if contender.position_outside else (ExitCode.DONE,)
    verify = ("proof", "verify", "--bootstrap", place.bootstrap, *names, "--group", place.group, *rules)
    told = json.loads(program(*verify, records=3 * records, good=good))
    if told["verdict"] == Verdict.VIOLATED:
        if set(told["totals"]) != {Name.TORN} or told["doubts"]:
            raise Refused(f"{contender.name}: {told['totals']}, {told['doubts']}; {told['findings'][:3]}")
        return f"{Verdict.PROVEN} but for positions"
    return str(told["verdict"])


def verified_after_kill(
    ground: BenchmarkCluster, contender: Contender, place: RunTopics, records: int
) -> tuple[str, int]:
    """
    As `verified`, and how many records there are twice: any at all are a sink's that writes without transactions.

    Raises:
        Refused: records are missing, or the proof finds something.
    """
    if contender.exactly_once:
        return verified(ground, contender, place, records), 0
    found = ground.count(place.output, "source", records)
    if found["unique"] != records:
        raise Refused(f"{contender.name}: {found['unique']} of {records} source positions are in its output")
    return "count", found["duplicates"]
