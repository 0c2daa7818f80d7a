"""The proxy between real clients and a real broker: nothing changes unless a rule says so; F11 and F12 in small."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from harness.programs import ROOT, until
from harness.servers import Broker, Names, make_topics
from harness.waiting import markers_written

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, Unreachable
from brew.kafka import topics
from brew.kafka import transaction as kafka_transaction
from brew.kafka.clients import admin
from brew.kafka.committed_offset import locator
from brew.kafka.kafka_python import open_transactions, raw_batches
from brew.kafka.log_reader import scan
from brew.kafka.offsets import log_offsets
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED
from brew.offsets import OffsetRange
from brew.outcome import Status
from brew.range_transaction import Rows, Targets, transact_range
from brew.settings import Limits
from pipeline.enrichment import enricher
from proof.campaign.cell import Cell, nothing
from proof.campaign.cells.wire import between, deliver_late
from proof.campaign.cluster import ExternalCluster
from proof.campaign.programs import Programs
from proof.campaign.stage import CellEnvironment
from proof.wire.codec import Api
from proof.wire.proxy import WireProxy
from proof.wire.rules import Action, NetworkConditions, Rule, Side
from proof.wire.torn import F11, experiment

CONCURRENT_TRANSACTIONS = 51
OF_AN_OLD_EPOCH = {47, 90}
"""INVALID_PRODUCER_EPOCH, PRODUCER_FENCED."""


@pytest.fixture
def proxy(broker: Broker, names: Names) -> Iterator[WireProxy]:
    """A proxy, and this test's input and output topic."""
    make_topics(Connection(broker.bootstrap), names.input, names.output)
    with WireProxy(broker.bootstrap) as proxy:
        yield proxy
        assert proxy.failures == []


def transaction(proxy: WireProxy, names: Names) -> KafkaTransaction:
    return KafkaTransaction(TransactionSettings(proxy.connection, names.group, 30), names.input, 0)


def write(kafka: KafkaTransaction, names: Names, until_offset: int) -> None:
    """Fence to send offsets: all but the commit."""
    deadline = Deadline(20)
    kafka.fence(deadline)
    kafka.locate(deadline)
    kafka.begin()
    kafka.produce(names.output, b"value", b"key", 0, None, None, 0, None)
    kafka.flush(deadline)
    kafka.send_offsets(until_offset, "", deadline)


def write_and_commit(kafka: KafkaTransaction, names: Names) -> None:
    write(kafka, names, 1)
    kafka.commit(Deadline(20))
    kafka.close()


def visible(connection: Connection, topic: str) -> int:
    """All that is decided counts, also where its marker is still on its way."""
    markers_written(connection, topic)
    ends = log_offsets(admin(connection), topic, [0], Deadline(20))[0]
    return sum(len(batch) for batch in scan(connection, topic, {0: (ends.first, ends.last_stable)}, READ_COMMITTED))


def test_producers_consumers_and_both_admin_clients_work_behind_it(proxy: WireProxy, names: Names) -> None:
    """Librdkafka and kafka-python: transactions, reads, raw batches, open transactions."""
    kafka = transaction(proxy, names)
    write(kafka, names, 1)
    (ongoing,) = open_transactions(proxy.connection, names.output, [0], Deadline(20))
    assert ongoing.transactional_id == f"{names.group}:{names.input}:0"
    kafka.commit(Deadline(20))
    kafka.close()
    assert visible(proxy.connection, names.output) == 1
    markers = [batch.marker for batch in raw_batches(proxy.connection, names.output, 0, 0, 2, Deadline(20))]
    assert markers == [None, "commit"]
    apis = {event.header.api for event in proxy.timeline.events()}
    assert apis == {
        Api.InitProducerId,
        Api.AddPartitionsToTxn,
        Api.Produce,
        Api.AddOffsetsToTxn,
        Api.TxnOffsetCommit,
        Api.EndTxn,
    }
    assert proxy.timeline.counts()["Fetch"] > 0


def test_every_reply_of_the_timeline_follows_its_request(proxy: WireProxy, names: Names) -> None:
    """Paired by connection and correlation id; all without an error but the retriable ones."""
    write_and_commit(transaction(proxy, names), names)
    unanswered: set[tuple[int, int]] = set()
    for event in proxy.timeline.events():
        key = (event.connection, event.header.correlation_id)
        if event.what == "request":
            unanswered.add(key)
        else:
            assert key in unanswered
            assert event.details.error is not None
            unanswered.remove(key)
    assert unanswered == set()


def test_a_held_frame_waits_until_it_is_released(proxy: WireProxy, names: Names, broker: Broker) -> None:
    """The commit's caller waits with it, and the records become visible only then."""
    kafka = transaction(proxy, names)
    write(kafka, names, 1)
    rule = proxy.add(Rule(Api.EndTxn, committed=True))
    committing = threading.Thread(target=kafka.commit, args=(Deadline(20),))
    committing.start()
    assert rule.caught(Deadline(20)).details.committed is True
    direct = Connection(broker.bootstrap)
    assert visible(direct, names.output) == 0
    assert committing.is_alive()
    rule.release()
    assert rule.answered(Deadline(20)).error == 0
    committing.join(20)
    assert not committing.is_alive()
    kafka.close()
    assert visible(direct, names.output) == 1


def test_a_cut_connection_is_made_again_and_the_held_frame_can_still_arrive(proxy: WireProxy, names: Names) -> None:
    """Librdkafka sends the commit once more by itself; the first one reaches the broker on its own, old connection."""
    kafka = transaction(proxy, names)
    write(kafka, names, 1)
    rule = proxy.add(Rule(Api.EndTxn, committed=True, cut=True))
    kafka.commit(Deadline(20))
    kafka.close()
    held_connection = rule.caught(Deadline(20)).connection
    rule.release()
    # The same epoch, the same end: the broker says yes once more, or that it is still busy with it.
    assert rule.answered(Deadline(20)).error in {0, CONCURRENT_TRANSACTIONS}
    ends = [(e.connection, e.what) for e in proxy.timeline.events() if e.header.api == Api.EndTxn]
    assert [connection == held_connection for connection, what in ends if what == "request"] == [True, False]


def test_offsets_whose_call_hangs_are_given_up_and_refused_when_they_come_late(
    proxy: WireProxy, names: Names, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client waits past its time-out (librdkafka 5456, 5511); what it still sends meets a newer epoch."""
    monkeypatch.setattr(kafka_transaction, "_SEND_OFFSETS_S", 1.0)
    rule = proxy.add(Rule(Api.TxnOffsetCommit))
    kafka = transaction(proxy, names)
    with pytest.raises(DeadlineExceeded, match="did not return within its time-out of 1 s"):
        write(kafka, names, 7)
    kafka.close()
    direct = Connection(broker.bootstrap)
    write_and_commit(KafkaTransaction(TransactionSettings(direct, names.group, 30), names.input, 0), names)
    rule.release()
    assert rule.answered(Deadline(20)).error in OF_AN_OLD_EPOCH
    position = locator(direct, names.group).committed(names.input, 0, Deadline(20))
    assert position is not None
    assert (position.offset, visible(direct, names.output)) == (1, 1)


@pytest.mark.parametrize("api", [Api.InitProducerId, Api.AddOffsetsToTxn, Api.EndTxn])
def test_a_reply_lost_with_its_connection_is_asked_for_again(proxy: WireProxy, names: Names, api: int) -> None:
    """F13 in small: same call, same arguments, one visible record."""
    rule = proxy.add(Rule(api, Action.CUT, Side.REPLY))
    write_and_commit(transaction(proxy, names), names)
    assert rule.fired == 1
    assert visible(proxy.connection, names.output) == 1


def test_a_dropped_request_never_reaches_the_broker(proxy: WireProxy, names: Names) -> None:
    """The client hears nothing and runs into its deadline; nothing is visible, nobody else is disturbed."""
    rule = proxy.add(Rule(Api.EndTxn, Action.DROP, times=0))
    kafka = transaction(proxy, names)
    write(kafka, names, 1)
    with pytest.raises(BrewError):
        kafka.commit(Deadline(0.5))
    rule.caught(Deadline(20))
    kafka.close()
    assert rule.fired >= 1
    proxy.remove(rule)
    assert visible(proxy.connection, names.output) == 0
    write_and_commit(transaction(proxy, names), names)
    assert visible(proxy.connection, names.output) == 1


def test_a_slow_network_slows_every_round_trip(proxy: WireProxy, names: Names) -> None:
    """50 ms each way: a transaction has at least five round trips."""
    proxy.shape = NetworkConditions(latency_s=0.05)
    kafka = transaction(proxy, names)
    began = time.monotonic()
    write(kafka, names, 1)
    kafka.commit(Deadline(20))
    assert time.monotonic() - began >= 0.5
    kafka.close()


def test_bytes_that_are_no_frames_end_their_connection_and_are_told(broker: Broker) -> None:
    """A TLS hello, for instance; the proxy lives on."""
    with WireProxy(broker.bootstrap) as proxy:
        host, _, port = proxy.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"\xff" * 64)
            assert client.recv(1) == b""
        until(lambda: bool(proxy.failures), "the failure is told", seconds=10)
        assert "encrypted" in proxy.failures[0]
        assert topics.brokers(admin(proxy.connection), Deadline(10)) >= 1


def test_no_broker_no_proxy() -> None:
    """One sentence, and no thread left."""
    before = set(threading.enumerate())
    with pytest.raises(Unreachable), WireProxy("localhost:1"):
        pass
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("proxy")
def test_as_a_process_it_takes_orders_and_tells_what_happened(broker: Broker, names: Names) -> None:
    """JSON lines in, JSON lines out; SIGTERM ends it."""
    command = [sys.executable, "-m", "proof", "proxy", "--bootstrap", broker.bootstrap]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            output = process.stdout
            connection = Connection(json.loads(output.readline())["bootstrap"])
            process.stdin.write('{"rule": {"api": "EndTxn", "cut": true}}\n{"release": 9}\n')
            process.stdin.flush()
            assert json.loads(output.readline()) == {"rule": 1}
            assert "give one of" in json.loads(output.readline())["error"]
            write_and_commit(KafkaTransaction(TransactionSettings(connection, names.group, 30), names.input, 0), names)
            caught = json.loads(output.readline())
            assert (caught["caught"], caught["api"]) == (1, "EndTxn")
            process.stdin.write('{"release": 1}\n')
            process.stdin.flush()
            lines = [json.loads(output.readline()) for _ in range(2)]
            assert {"release": 1} in lines
            assert next(line["error"] for line in lines if "answered" in line) in {0, CONCURRENT_TRANSACTIONS}
        finally:
            process.terminate()
            process.communicate(timeout=20)


def test_a_transaction_that_waits_for_acknowledgements_leaves_the_processor_alone(
    proxy: WireProxy, names: Names
) -> None:
    """A batch that is ready behind one on its way had librdkafka's thread poll without pause, a whole core's worth."""
    count, slow_s = 6_000, 0.5
    offsets, key = list(range(count)), [b"gold-1"] * count
    values: list[bytes | None] = [b'{"customer_id":"gold-1","note":"%s"}' % (b"x" * 100)] * count
    rows = Rows(offsets, [*key], values, [None] * count, [1] * count)
    offered = OffsetRange(names.input, 0, 0, count)
    targets = Targets(names.output, names.dead_letter, 0, 0)
    kafka = KafkaTransaction(TransactionSettings(proxy.connection, names.group, 60.0), names.input, 0)
    proxy.add(Rule(Api.Produce, Action.DELAY, Side.REPLY, times=0, delay_s=slow_s))
    try:
        began, spent = time.monotonic(), time.process_time()
        outcome = transact_range([rows], offered, targets, enricher(Limits()), kafka, Deadline(60), first_time=True)
        took, spent = time.monotonic() - began, time.process_time() - spent
    finally:
        kafka.close()
    assert (outcome.status, outcome.enriched) == (Status.COMMITTED, count)
    assert took > 2 * slow_s, "two requests at least were waited for"
    assert spent < slow_s


F12_OFFSETS, F12_RECORDS = ("late-offsets",), ("late-records",)


@pytest.mark.parametrize(
    ("writer", "scripts", "tries", "anomalies", "late"),
    [
        # The positive control: without it a clean strict writer would show nothing.
        ("reuse", F11, 6, {"torn-txn": 3, "lost-commit": 3}, "ok"),
        ("strict", F11, 6, {}, "INVALID_PRODUCER_EPOCH"),
        # The group falls behind a commit that was acknowledged, so the next reader writes it all again.
        ("reuse", F12_OFFSETS, 2, {"offset-regression": 2}, "ok"),
        ("strict", F12_OFFSETS, 2, {}, "INVALID_PRODUCER_EPOCH"),
        # Sequence numbers: the broker knows the batch, answers as if it had just come, and appends nothing.
        ("reuse", F12_RECORDS, 2, {}, "ok"),
        ("strict", F12_RECORDS, 2, {}, "INVALID_PRODUCER_EPOCH"),
    ],
)
def test_late_frames_hurt_a_producer_that_is_reused_and_not_one_per_transaction(
    broker: Broker, writer: str, scripts: Sequence[str], tries: int, anomalies: dict[str, int], late: str
) -> None:
    """Commits and aborts (F11), offsets and records (F12); a strict writer's meet a newer epoch and are refused."""
    tally = experiment(Connection(broker.bootstrap), writer, tries, scripts).tally
    assert (tally.names, tally.late) == (anomalies, {late: tries}), tally
    assert (tally.broken, tally.inconclusive) == (tries if anomalies else 0, 0), tally


def test_the_pipeline_itself_is_not_hurt_by_late_commits(broker: Broker, tmp_path: Path) -> None:
    """The product as a process behind the proxy, and the checker's word on all of its orders."""
    cell = Cell("wire-pipeline", "F11", "late frames", "writer", "next transaction", nothing, partitions=1)
    with Programs(tmp_path) as programs:
        stage = CellEnvironment(cell, 0, ExternalCluster(broker.bootstrap), tmp_path, programs, Deadline(300))
        stage.make_topics()
        stage.orders(1200)
        with between(stage) as proxy:
            stage.writer("--follow", "--max-records-per-transaction", "20")
            name = stage.names.transactional_id(0)
            late = [deliver_late(proxy, Api.EndTxn, name) for _ in range(5)]
        stage.drain()
        assert stage.verified()["verdict"] == "proven"
        assert stage.doubts == []
        stage.forget()
    assert {(frame.answer, frame.epochs_behind) for frame in late} == {("INVALID_PRODUCER_EPOCH", 1)}


def test_the_demonstration_shows_both_timelines_and_the_conclusion(broker: Broker) -> None:
    """Plain text without a terminal, no escape sequences; `--json` has the counts."""
    command = [sys.executable, "-m", "proof", "torn", "--bootstrap", broker.bootstrap, "--tries", "2"]
    ran = subprocess.run([*command, "--show"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for text in ("HELD by the proxy", "connection is CUT", "RELEASED, too late", "<- taken", "<- refused"):
        assert text in ran.stdout
    assert "torn-txn in 1" in ran.stdout
    assert "0 anomalies of 2 tries" in ran.stdout
    assert "\x1b" not in ran.stdout
    printed = subprocess.run(
        [*command, "--writer", "reuse", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    (control,) = json.loads(printed.stdout)["writers"]
    assert control["broken"] == 2
