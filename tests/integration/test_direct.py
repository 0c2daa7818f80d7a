"""The direct reader on a real broker, without Spark: the same promise at every crash point, one lease after another."""

from __future__ import annotations

import json
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import TopicPartition
from harness.operate import upstream, write
from harness.pipeline import READ_UNCOMMITTED, Stage
from harness.programs import until
from harness.servers import Broker

from brew.deadline import Deadline
from brew.journal import Phase, Step, entries
from brew.kafka import cluster_admin
from brew.kafka.clients import consumer, producer
from brew.names import CrashPoint
from brew.readers.direct.messages import MessageConnection
from brew.readers.direct.worker import IDLE_FOLLOWING_MS, MAX_READING, MAX_TRANSACTIONS, MAX_TURN_S
from proof.wire.proxy import WireProxy

DIRECT = ("--master", "none", "--reader", "direct")
FETCHES = 6
COMMITTED = {CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT}


def test_it_drains_what_the_connector_would_and_says_so(stage: Stage) -> None:
    """Aborted records, a partition of markers alone, poison, nothing at all: positions end where the input ends."""
    stage.create()
    stage.seed(300, "--transactional", "--markers-only-partition", "2")
    stage.seed(40, "--bad-every", "5")
    ran = stage.pipeline(*DIRECT, seconds=60)
    assert ran.code == 0, ran
    assert "332 enriched, 8 rejected" in ran.out
    assert stage.committed() == {p: log.end for p, log in stage.logs(stage.names.input).items()}
    stage.proven(inputs=340, outputs=332)
    again = stage.pipeline(*DIRECT, seconds=60)
    assert (again.code, "0 transactions" in again.out) == (0, True), again


def test_few_transactions_of_a_process_are_under_way_at_once(stage: Stage, tmp_path: Path) -> None:
    """64 at once starved each other past their deadlines. One that lasts long keeps nobody, and is not counted."""
    stage.create(partitions=24, orders=12_000)
    ran = stage.pipeline(*DIRECT, "--journal", str(tmp_path), seconds=60)
    assert ran.code == 0, ran
    under_way: dict[int, float] = {}
    most = 0
    for entry in sorted(entries(tmp_path), key=lambda entry: entry.at):
        if (entry.step, entry.phase) == (Step.FENCE, Phase.INTENT):
            under_way[entry.fields["partition"]] = entry.at
            most = max(most, sum(entry.at - began < MAX_TURN_S / 2 for began in under_way.values()))
        elif entry.step is Step.OUTCOME:
            under_way.pop(entry.fields["partition"], None)
    assert 1 <= most <= MAX_TRANSACTIONS
    stage.proven(inputs=12_000, outputs=12_000)


def test_a_following_run_with_nothing_to_do_asks_seldom(stage: Stage) -> None:
    """The broker holds fetches back: hundreds of idle partitions must not keep it busy. News comes at once."""
    stage.create(partitions=1, output=1, orders=40)
    with WireProxy(stage.broker.bootstrap) as proxy:
        proxied = Stage(Broker(proxy.bootstrap), stage.names)
        with proxied.follow(*DIRECT, "--follow") as program:
            until(lambda: stage.outputs() == 40, "the first orders", 30)
            until(lambda: not stage.open_transactions(), "their commit", 30)
            proxy.timeline.clear()
            began = time.monotonic()
            until(lambda: proxy.timeline.counts().get("Fetch", 0) >= FETCHES, "fetches of an idle reader", 30)
            assert time.monotonic() - began >= 0.9 * (FETCHES - 1) * IDLE_FOLLOWING_MS / 1000
            stage.seed(40)
            until(lambda: stage.outputs() == 80, "the next orders", 30)
            program.terminate()
            assert program.wait(20).code == 0
    stage.proven(inputs=80, outputs=80)


def test_a_sigkill_at_every_crash_point_heals(stage: Stage, tmp_path: Path) -> None:
    """The journal's last line tells where the process died; the next one finds out the rest from Kafka alone."""
    stage.create(2)
    for point in CrashPoint:
        stage.seed(20)
        journal = tmp_path / point.value
        crash = ["--crash-mode", "worker", "--crash-prob", "1.0", "--crash-point", point.value]
        died = stage.pipeline(*DIRECT, "--journal", str(journal), *crash, seconds=60)
        assert died.code == -signal.SIGKILL
        done = [entry.step for entry in entries(journal) if entry.phase is Phase.DONE]
        assert Step.FENCE in done, "it came to a transaction"
        if point is not CrashPoint.COMMIT_IN_FLIGHT:  # there the answer may come before the kill
            assert (Step.COMMIT in done) == (point in COMMITTED), point
        stage.drain_locally()
    stage.proven(inputs=20 * len(CrashPoint), outputs=20 * len(CrashPoint))


def test_a_following_run_takes_up_new_partitions_and_ends_on_sigterm(stage: Stage) -> None:
    stage.create(2, orders=20)
    with stage.follow(*DIRECT, "--follow") as program:
        until(lambda: sum(position or 0 for position in stage.committed().values()) == 20, "all is committed", 30)
        cluster_admin.add_partitions(stage.admin, stage.names.input, 4, Deadline(20))
        stage.seed(40)
        until(lambda: len(stage.records(stage.names.output)) == 60, "the new partitions' records", 30)
        program.terminate()
        assert program.wait(30).code == 0
    stage.nothing_open()
    stage.proven(inputs=60, outputs=60)


def test_a_position_that_somebody_moves_back_is_where_it_goes_on(stage: Stage) -> None:
    """One truth, also within a lease: the next transaction's locate finds it."""
    stage.create(1, orders=20)
    with stage.follow(*DIRECT, "--follow") as program:
        until(lambda: stage.committed()[0] == 20, "all is committed", 30)
        outsider = consumer(stage.connection, stage.names.group, READ_UNCOMMITTED)
        outsider.commit(offsets=[TopicPartition(stage.names.input, 0, 5)], asynchronous=False)
        outsider.close()
        stage.seed(1)
        until(lambda: stage.committed()[0] == 21, "the new order and the repeated ones", 30)
        program.terminate()
        ran = program.wait(30)
    assert any("an outsider moved" in note for note in ran.notes), ran.text
    assert len(stage.records(stage.names.output)) == 21 + 15


def test_blocked_partitions_stop_no_other_and_are_finished_when_their_transaction_ends(stage: Stage) -> None:
    """Also when they are more than are read at a time."""
    blocked = MAX_READING + 1
    stage.create(blocked + 1)
    stage.seed(10 * (blocked + 1))
    writer = producer(stage.connection, stage.names.topic("up"), timeout_s=60, message_max_bytes=1_000_000)
    writer.init_transactions(20)
    writer.begin_transaction()
    for partition in range(blocked):
        writer.produce(stage.names.input, b'{"customer_id":"gold-1"}', b"gold-1", partition)
    assert writer.flush(20) == 0
    logs = stage.logs(stage.names.input)
    stable = {p: logs[p].last_stable for p in range(blocked)}
    with stage.follow(*DIRECT) as program:
        until(lambda: stage.committed().get(blocked) == logs[blocked].end, "the free partition", 30)
        program.await_line(lambda line: "is blocked at offset" in line, seconds=30)
        until(lambda: stage.committed().items() >= stable.items(), "what is visible", 30)
        writer.commit_transaction(20)
        ran = program.wait(60)
    assert ran.code == 0, ran.text
    stage.drain_locally()  # over the markers that came after the goals
    stage.proven(inputs=10 * (blocked + 1) + blocked, outputs=10 * (blocked + 1) + blocked)


def test_the_lease_server_admits_nobody_without_the_token(stage: Stage) -> None:
    """Whoever finds the driver's port learns nothing, and disturbs nothing."""
    stage.create(1, orders=5)
    with stage.follow(*DIRECT, "--follow") as program:
        until(lambda: stage.committed()[0] == 5, "all is committed", 30)
        sockets = psutil.Process(program.pid).net_connections()
        ports = [socket_.laddr.port for socket_ in sockets if socket_.status == "LISTEN"]
        assert ports
        for port in ports:
            connection = MessageConnection(socket.create_connection(("127.0.0.1", port)), 10.0)
            connection.send({"hello": {"token": "guessed", "slot": 0}})
            assert connection.receive() is None
            connection.close()
        stage.seed(5)
        until(lambda: stage.committed()[0] == 10, "it works on", 30)
        program.terminate()
        assert program.wait(30).code == 0


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_crash_that_finds_nothing_to_write_lets_the_range_pass(stage: Stage, reader: str) -> None:
    """Offsets of an aborted transaction alone: `mid-produce` is never reached, and the position goes on behind them."""
    stage.create(1)
    with upstream(stage, "up") as writer:
        write(stage, writer, 1)
    crash = ("--crash-mode", "worker", "--crash-prob", "1.0", "--crash-point", CrashPoint.MID_PRODUCE.value)
    ran = stage.pipeline("--master", "none", "--reader", reader, *crash, seconds=60)
    assert ran.code == 0, ran
    assert stage.committed() == {0: 2}


def test_a_run_as_json_says_nothing_that_is_no_document(stage: Stage) -> None:
    """A line each on stdout, the sum last; refused, it is one object on stderr."""
    stage.create(1, orders=20)
    ran = stage.pipeline("--master", "none", "--json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert (ran.code, {"cycle"} <= {line["event"] for line in lines}) == (0, True), ran.text
    assert (lines[-1]["event"], lines[-1]["enriched"] + lines[-1]["rejected"]) == ("done", 20)
    refused = stage.pipeline("--master", "none", "--json", "--input", stage.names.topic("nowhere"))
    assert (refused.code, refused.out) == (3, "")
    assert "nowhere" in json.loads(refused.err)["error"]
