"""Programs as an orchestrator sees them: started, ready, alive, blocked, stuck, and well again; on a real broker."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from harness.http_service import http_service
from harness.pipeline import Stage
from harness.probed import Probed
from harness.programs import until
from harness.servers import Broker

from brew.deadline import Deadline
from brew.kafka.clients import consumer, producer
from brew.kafka.kafka_python import raw_batches
from brew.kafka.offsets import committed_by, log_offsets
from brew.names import READ_UNCOMMITTED, STEPS, TransactionalId
from brew.observability.status import PartitionState, from_json
from proof.wire.codec import Api
from proof.wire.proxy import WireProxy
from proof.wire.rules import Rule

FOLLOW = ("--master", "none", "--follow", "--probe-port", "0")
ORDER = b'{"order_id":"1","customer_id":"gold-1","item":"x","quantity":1,"total_cents":5,"store":"s","created_at":"t"}'


@contextlib.contextmanager
def started(stage: Stage, *arguments: str) -> Iterator[Probed]:
    with stage.python(*arguments) as program:
        yield Probed(program)


@contextlib.contextmanager
def following(stage: Stage, *options: str) -> Iterator[Probed]:
    """`python -m pipeline run --follow` without Spark."""
    with started(stage, "pipeline", "run", *stage.options(), *FOLLOW, *options) as probed:
        yield probed


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_pipeline_tells_what_it_does_and_what_it_did(stage: Stage, reader: str) -> None:
    """All five pages over the life of a run; numbers are those of the brokers."""
    stage.create()
    stage.seed(40, "--bad-every", "4")
    with following(stage, "--reader", reader) as run:
        until(lambda: run.code("/startupz") == 200, "it has started")
        status = run.until(lambda s: s.totals.records == 40, "all are done")
        assert (status.application, status.reader, status.group) == ("pipeline", reader, stage.names.group)
        assert (status.totals.dead_letters, status.totals.fences) == (10, 0)
        assert {partition.partition: partition.position for partition in status.partitions} == stage.committed()
        with_records = [partition for partition in status.partitions if partition.records]
        for partition in with_records:
            assert partition.last_transaction is not None
            assert tuple(partition.last_transaction.steps) == STEPS
            assert partition.last_transaction.transactional_id == str(
                TransactionalId(stage.names.group, stage.names.input, partition.partition)
            )
            assert partition.transactions.committed >= 1
        run.until(lambda s: all(p.state is PartitionState.IDLE for p in s.partitions), "nothing is left")
        assert (run.code("/livez"), run.code("/readyz"), run.code("/nothing")) == (200, 200, 404)
        status_with_producers = from_json(run.ask("/status?producers")[1])
        producers = {
            partition.partition: (transaction.producer_id, transaction.epoch)
            for partition in status_with_producers.partitions
            if (transaction := partition.last_transaction)
        }
        assert len(producers) == 4
        assert _last_writers(stage).items() <= producers.items(), "but for the partition whose orders are all rejected"
        assert run.metric(r'brew_txn_total{.*outcome="committed"') == status.totals.transactions
        assert run.metric(r'brew_dlq_total{reason="no') + run.metric(r'brew_dlq_total{reason="[^n]') == 10
        assert run.metric(r"brew_consumer_lag{") == 0
        assert run.metric(r'brew_txn_phase_seconds_count{phase="commit"}') == status.totals.transactions
        run.ends()


def _last_writers(stage: Stage) -> dict[int, tuple[int, int]]:
    """Partition of the output -> producer id and epoch of its last batch; the input's partition of the same number."""
    deadline, writers = Deadline(20), {}
    for partition, log in log_offsets(stage.admin, stage.names.output, range(4), deadline).items():
        for batch in raw_batches(stage.connection, stage.names.output, partition, log.first, log.end, deadline):
            writers[partition] = (batch.producer_id, batch.producer_epoch)
    return writers


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_transaction_is_counted_as_open_from_its_begin_to_its_end(stage: Stage, reader: str) -> None:
    """A proxy holds one partition's commit: that one is open, and it alone, though another has nothing to read."""
    stage.create(2)
    transactional_id = str(TransactionalId(stage.names.group, stage.names.input, 1))
    with WireProxy(stage.broker.bootstrap) as proxy:
        held_commit = proxy.add(Rule(Api.EndTxn, transactional_id=transactional_id, committed=True))
        with following(Stage(Broker(proxy.bootstrap), stage.names), "--reader", reader) as run:
            run.until(lambda s: [p.lag for p in s.partitions] == [0, 0], "it has looked")
            assert run.metric("brew_txn_open ") == 0
            stage.produce(stage.names.input, (1, b"gold-1", ORDER))
            held_commit.caught(Deadline(20))
            status = run.until(lambda s: s.partitions[1].open_s is not None, "the commit is under way")
            assert (status.partitions[0].open_s, run.metric("brew_txn_open ")) == (None, 1)
            assert stage.open_transactions(), "so do the brokers say"
            held_commit.release()
            run.until(lambda s: s.totals.records == 1, "it is committed")
            assert (run.status().partitions[1].open_s, run.metric("brew_txn_open ")) == (None, 0)
            run.ends()
    stage.proven(inputs=1, outputs=1)


def test_an_open_transaction_of_the_totals_is_counted_too(stage: Stage) -> None:
    """Two topics' partitions, each with transactions of its own; the first one's commit is held."""
    stage.create(1, orders=5)
    stage.drain_locally()
    with WireProxy(stage.broker.bootstrap) as proxy:
        held_commit = proxy.add(Rule(Api.EndTxn, committed=True))
        options = ("--topic", stage.names.output, "--store", "memory", "--output", stage.names.topic("totals"))
        command = ("totals", "--bootstrap", proxy.bootstrap, *options, "--group", stage.names.topic("totals"))
        with started(stage, "downstream", *command, "--follow", "--probe-port", "0") as run:
            held_commit.caught(Deadline(20))
            assert run.metric("brew_txn_open ") == 1
            held_commit.release()
            done = PartitionState.IDLE, None
            run.until(lambda s: s.totals.records > 5 and {(p.state, p.open_s) for p in s.partitions} == {done}, "all")
            run.ends()


def test_what_stands_behind_an_upstreams_transaction_is_blocked_and_alive(stage: Stage) -> None:
    """A restart would change nothing, so none is asked for."""
    stage.create(2)
    upstream = producer(stage.connection, f"{stage.names.stem}-up", timeout_s=60, message_max_bytes=1_000_000)
    upstream.init_transactions(20)
    upstream.begin_transaction()
    upstream.produce(stage.names.input, ORDER, b"gold-1", 1)
    upstream.flush(20)
    with following(stage, "--reader", "direct") as run:
        states = [PartitionState.IDLE, PartitionState.BLOCKED]
        status = run.until(lambda s: [p.state for p in s.partitions] == states, "one is blocked")
        assert (status.partitions[1].held_back, status.partitions[1].lag) == (1, 0)
        assert (run.code("/livez"), run.code("/readyz")) == (200, 200)
        assert run.metric(r'brew_partition_state{partition="1",state="blocked"') == 1
        upstream.commit_transaction(20)
        run.until(lambda s: s.totals.records == 1, "it goes on by itself")
        run.ends()


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_partition_that_stands_still_with_work_turns_livez_red_until_it_moves(stage: Stage, reader: str) -> None:
    """Somebody's open transaction holds the group's offset of one partition: locate fails again and again."""
    stage.create(2)
    foreign = producer(stage.connection, f"{stage.names.stem}-foreign", timeout_s=60, message_max_bytes=1_000_000)
    foreign.init_transactions(20)
    foreign.begin_transaction()
    member = consumer(stage.connection, stage.names.group, READ_UNCOMMITTED)
    positions = [TopicPartition(stage.names.input, 1, 0)]
    # On a new broker, the next call would wait for the coordinator without end.
    committed_by(stage.connection, stage.names.group, stage.names.input, [1], READ_UNCOMMITTED, Deadline(20))
    foreign.send_offsets_to_transaction(positions, member.consumer_group_metadata(), 20)
    member.close()
    stage.produce(stage.names.input, (0, b"gold-1", ORDER), (1, b"gold-2", ORDER))
    short = ("--transaction-timeout", "1", "--consuming-ttl", "2", "--polling-ttl", "60")
    with following(stage, "--reader", reader, *short) as run:
        run.until(lambda s: [p.lag for p in s.partitions] == [0, 1], "the other partition is done")

        def stuck_report() -> Any:
            """What it says once an attempt came as far as that; in its second a fence may take all of it."""
            code, body = run.ask("/livez")
            return json.loads(body) if code == 503 and b"locate" in body else None

        report = until(stuck_report, "it is stuck")
        assert [(partition["partition"], partition["state"]) for partition in report["unhealthy"]] == [(1, "stuck")]
        assert "locate" in report["reason"]
        assert "--consuming-ttl 2" in report["reason"]
        assert (run.code("/readyz"), run.code("/startupz")) == (503, 200)
        foreign.abort_transaction(20)
        run.until(lambda s: [p.lag for p in s.partitions] == [0, 0] and s.live.ok, "it moves, and is well")
        assert (run.code("/livez"), run.code("/readyz")) == (200, 200)
        recovered = run.status().totals.recovery_s
        assert recovered is not None
        assert recovered > 2
        run.ends()
    stage.proven(inputs=2, outputs=2)


def test_drivers_that_share_tell_each_of_its_own(stage: Stage) -> None:
    """Sums over all of them are right: no partition is told twice."""
    stage.create()
    share = ("--share", "--claim-interval", "0.5", "--claims", stage.names.topic("claims"))
    with following(stage, *share) as first:
        first.until(lambda s: len(s.partitions) == 4, "the first one has all")
        with following(stage, *share) as second:
            runs = [first, second]

            def divided() -> bool:
                partitions = [p.partition for run in runs for p in run.status().partitions]
                return sorted(partitions) == [0, 1, 2, 3] and len(second.status().partitions) == 2

            until(divided, "each has two")
            assert [len(run.status().partitions) for run in runs] == [2, 2]
            second.ends()
        first.ends()


def test_a_driver_that_stands_by_is_alive_and_ready(stage: Stage) -> None:
    """It has no partition, and could work at once."""
    stage.create(2)
    options = ("--stand-by", "--claim-interval", "0.5", "--claims", stage.names.topic("claims"))
    with following(stage, *options, "--client-id", "first") as first:
        first.until(lambda s: len(s.partitions) == 2 and s.ready.ok, "the first one works")
        with following(stage, *options, "--client-id", "second") as second:
            status = second.until(lambda s: "first works" in s.ready.reason, "the second one stands by")
            assert (status.ready.ok, status.live.ok, status.started.ok) == (True, True, True)
            assert list(status.partitions) == []
            first.ends()
            second.until(lambda s: len(s.partitions) == 2, "the second one works")
            second.ends()


def test_downstream_programs_tell_the_same(stage: Stage) -> None:
    """One on the consume loop, one with rounds of its own; the ledger has the loop in common with the first."""
    stage.create(orders=20)
    stage.drain_locally()
    topic = stage.names.output
    options = ("--bootstrap", stage.broker.bootstrap, "--topic", topic, "--follow", "--probe-port", "0")
    with http_service(lambda *_: 204) as url, contextlib.ExitStack() as running:
        programs = {
            "call": ("--url", f"{url}/", "--dead-letter", stage.names.topic("calls")),
            "totals": ("--store", "memory", "--output", stage.names.topic("totals")),
        }
        runs = {
            name: running.enter_context(
                started(stage, "downstream", name, *options, "--group", stage.names.topic(name), *more)
            )
            for name, more in programs.items()
        }
        for name, run in runs.items():
            status = run.until(lambda s: sum(p.records for p in s.partitions if p.topic == topic) == 20, "read")
            assert (status.application, status.reader) == (f"downstream {name}", None)
            run.until(lambda s: all(p.state is PartitionState.IDLE for p in s.partitions), "all is done")
            assert (run.code("/livez"), run.code("/readyz"), run.code("/startupz")) == (200, 200, 200)
            assert run.metric(rf'brew_records_total{{.*topic="{re.escape(topic)}"') == 20
            run.ends()


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_transactions_span_links_to_the_spans_that_wrote_its_records(stage: Stage, reader: str) -> None:
    """From the headers of the input to the exporter, whoever reads."""
    stage.create(1)
    parents = [f"00-{number:032x}-{number:016x}-01" for number in (7, 9)]
    order = b'{"customer_id":"c-1"}'
    records = [(0, b"gold-1", order, [("traceparent", parent.encode())]) for parent in [*parents, *parents]]
    stage.produce(stage.names.input, *records, (0, b"gold-1", order))
    with stage.python(
        "pipeline", "run", *stage.options(), "--master", "none", "--reader", reader, "--spans", "console"
    ) as program:
        ran = program.wait(60)
    assert ran.code == 0, ran.text
    spans = [json.loads(span) for span in re.findall(r"^\{$.*?^\}$", ran.out, re.DOTALL | re.MULTILINE)]
    linked = [[link["context"]["span_id"] for link in span["links"]] for span in spans if span["links"]]
    assert linked == [[f"0x{number:016x}" for number in (7, 9)]]
    assert stage.outputs() == 5
