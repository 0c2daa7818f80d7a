"""Changes of topics and groups by an operator or by Kafka; the pipeline must refuse most of them rather than guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from brew.deadline import Deadline
from brew.kafka import cluster_admin, offsets, topics
from brew.kafka.clients import Consumer, consumer, mapped, producer
from brew.names import READ_COMMITTED, ExitCode
from brew.offsets import LogOffsets
from proof.campaign.cell import CellTable
from proof.campaign.stage import CellEnvironment, StalledError

CELLS = CellTable(moment="between runs")
unjudged = partial(CELLS, judged=False)
_ASK_S, _REFUSED_S, _HIJACKS, _FENCED_FAST = 30.0, 60.0, 10, 33_000
# An epoch has 15 bits; the last value is never assigned.
_EPOCHS = 32_766
under_load = partial(CELLS, moment="under load", bound_s=15.0)
overflow = partial(CELLS, moment="overflow", partitions=1, properties={})


def refused(stage: CellEnvironment, word: str, *options: str, only: int | None = None) -> None:
    """Run the writer: it must end with 3, print ``word``, and write nothing (to partition ``only``)."""
    before = _ends(stage)
    program = stage.writer(*options, "--patience", "30")
    code = program.wait(Deadline(_REFUSED_S))
    text = program.last_output() + program.printed()
    if code != ExitCode.REFUSED or word not in text:
        raise StalledError(f"the writer should have refused with {word!r}; it ended with {code}: {text[-500:]}")
    if _visible(before, only) != _visible(_ends(stage), only):
        raise StalledError(f"the writer refused with {word!r}, but wrote records")
    stage.fire("refusals")
    stage.notes.append(f"refused with {word}")


def _ends(stage: CellEnvironment) -> dict[str, dict[int, LogOffsets]]:
    client, partitions = stage.cluster.admin, range(stage.cell.partitions)
    names = (stage.names.output, stage.names.dead_letter)
    return {name: offsets.log_offsets(client, name, partitions, Deadline(_ASK_S)) for name in names}


def _visible(logs: dict[str, dict[int, LogOffsets]], only: int | None) -> list[int]:
    return [log.last_stable for by_partition in logs.values() for p, log in by_partition.items() if only in {None, p}]


def _position(stage: CellEnvironment) -> dict[int, int]:
    """Return the group's committed offsets; partitions without one are left out."""
    whose = (stage.cluster.connection, stage.names.group, stage.names.input)
    committed = offsets.committed_by(*whose, range(stage.cell.partitions), READ_COMMITTED, Deadline(_ASK_S))
    return {p: position.offset for p, position in committed.items() if position is not None}


def _delete_group(stage: CellEnvironment) -> None:
    cluster_admin.delete_group(stage.cluster.connection, stage.names.group, Deadline(_ASK_S))


def _await_expiry(stage: CellEnvironment) -> None:
    """Wait until Kafka itself forgets the offsets of a group that nobody used for a minute."""
    stage.until(lambda: not _position(stage), "the group's offsets expiring", 150.0)


@CELLS(
    *("F23-offsets-expired", "the group's offsets expired", "group", _await_expiry),
    needed=("offsets_lost", "refusals"),
    limit_s=240.0,
    properties={"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "3000"},
)
@CELLS(
    *("F23-offsets-deleted", "the group's offsets deleted", "group", _delete_group),
    needed=("offsets_lost", "refusals"),
    marks="prove",
)
def offsets_lost(lose: Callable[[CellEnvironment], None], stage: CellEnvironment) -> None:
    """The group is gone, the output is not: refuse, then restore the position from the output and go on."""
    stage.orders(500, "--transactional")
    stage.drain()
    lose(stage)
    stage.fire("offsets_lost")
    stage.orders(500)
    refused(stage, "offsets-vanished")
    stage.drain("--on-missing-position", "restore")


@unjudged("F24-retention", "retention passes the committed offset", "input", needed=("records_lost", "refusals"))
def retention(stage: CellEnvironment) -> None:
    """Retention deletes unprocessed records: stop and name them; whether to continue is the operator's decision."""
    stage.orders(500, "--transactional")
    stage.drain()
    stage.proven()
    stage.orders(500)
    lost_to = _position(stage)[stage.partition] + 50
    cluster_admin.delete_records(stage.cluster.admin, stage.names.input, {stage.partition: lost_to}, Deadline(_ASK_S))
    stage.fire("records_lost")
    refused(stage, "input-lost", only=stage.partition)
    where = {stage.partition: lost_to}
    cluster_admin.set_offsets(stage.cluster.connection, stage.names.group, stage.names.input, where, Deadline(_ASK_S))
    stage.drain()


@unjudged("F25-recreated", "input deleted and made again", "input", needed={"recreations": 1, "refusals": 2})
def recreated(stage: CellEnvironment) -> None:
    """The input is a new topic of the same name: no position of the old one may be used for it."""
    stage.orders(500)
    stage.drain()
    stage.proven()
    client, deadline = stage.cluster.admin, Deadline(_ASK_S)
    cluster_admin.delete_topics(client, [stage.names.input], deadline)
    name = stage.names.input
    stage.until(lambda: name not in topics.names(client, Deadline(_ASK_S)), "the deletion of the input", 30.0)
    topics.create(client, [topics.TopicSpec(stage.names.input, stage.cell.partitions, {})], deadline)
    topics.describe_all(client, [stage.names.input], deadline)
    stage.fire("recreations")
    stage.orders(700, "--start", "5000000")
    refused(stage, "offsets-vanished")
    refused(stage, "topic-recreated", "--on-missing-position", "restore")


@under_load("F26-more-partitions", "partitions added", "input", needed={"partitions_added": 2}, bound_s=30.0)
def more_partitions(stage: CellEnvironment) -> None:
    """Partitions are added under load: the new ones are read from their start."""
    with stage.feeding() as feeder:
        stage.start_writer("--max-records-per-transaction", "100", commits=10)
        old = stage.cell.partitions
        cluster_admin.add_partitions(stage.cluster.admin, stage.names.input, old + 2, Deadline(_ASK_S))
        added = time.time()
        stage.fire("partitions_added", 2)
        feeder.partitions = old + 2
        stage.recovered(added, [old])
        stage.recovered(added, [old + 1])


@under_load(
    *("F27-hijacked-id", "somebody else inits our transactional id", "transactional id"),
    needed={"hijacks": _HIJACKS, "fences": 1},
    marks="prove",
)
def hijacked_id(stage: CellEnvironment) -> None:
    """Another client takes our transactional id, ten times: the writer is fenced, and takes it back."""
    with stage.at_work("--max-records-per-transaction", "200", commits=10):
        for _ in range(_HIJACKS):
            taken = time.time()
            take_id(stage, stage.transactional_id)
            stage.fire("hijacks")
            stage.recovered(taken, [stage.partition])
            stage.pause(stage.random.uniform(0.05, 0.4))


def take_id(stage: CellEnvironment, name: str, times: int = 1) -> None:
    """Initialize a transactional id, which fences its current owner; repeat ``times`` times."""
    for _ in range(times):
        other = producer(stage.cluster.connection, name, timeout_s=_ASK_S, message_max_bytes=1_000_000)
        with mapped("fence"):
            other.init_transactions(_ASK_S)


@under_load("F27-foreign-member", "somebody else subscribes with our group", "group", needed=("strangers",))
def foreign_member(stage: CellEnvironment) -> None:
    """Another client subscribes with our group, which is allowed by name: the writer's positions stay its own."""
    foreign = consumer(stage.cluster.connection, stage.names.group, READ_COMMITTED)
    try:
        with stage.at_work("--max-records-per-transaction", "200", "--allow", "group-members", feed=300, commits=10):
            foreign.subscribe([stage.names.input])
            joined = time.time()
            stage.until(lambda: _joined(foreign), "a foreign member joining the group", 30.0)
            stage.fire("strangers")
            stage.recovered(joined, [stage.partition])
            stage.pause(3.0)
            stage.await_commits(10)
    finally:
        foreign.close()


def _joined(foreign: Consumer) -> bool:
    foreign.poll(0.1)
    return bool(foreign.assignment())


@overflow(
    *("F28-overflow-short", "32,000 fences and 600 transactions on one id", "producer epoch", _EPOCHS - 300, 600),
    needed={"transactions": 600},
    limit_s=300.0,
)
@overflow(
    *("F28-33000-transactions", "33,000 transactions on one id", "producer epoch", 0, _FENCED_FAST),
    needed={"transactions": _FENCED_FAST},
    limit_s=1800.0,
)
def epochs(fences: int, transactions: int, stage: CellEnvironment) -> None:
    """An id's epoch overflows, by 33,000 transactions, or by a few once ``fences`` have used up most epochs."""
    if fences:
        stage.orders(1)
        stage.drain()
        take_id(stage, stage.names.transactional_id(0), fences)
    stage.orders(transactions)
    stage.drain("--max-records-per-transaction", "1")
    stage.fire("transactions", stage.commits())
