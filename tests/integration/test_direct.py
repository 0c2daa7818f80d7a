"""The direct reader on a real broker, without Spark: the same promise at every crash point, one lease after another."""

from __future__ import annotations

import re
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
from confluent_kafka import TopicPartition
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import READ_UNCOMMITTED, Stage
from harness.programs import until

from brew.deadline import Deadline
from brew.journal import Phase, Step, entries
from brew.kafka import cluster_admin
from brew.kafka.clients import consumer, producer
from brew.names import CrashPoint
from brew.readers.direct.messages import MessageConnection
from brew.readers.direct.worker import IDLE_FOLLOWING_MS, MAX_READING, MAX_TRANSACTIONS, MAX_TURN_S
from proof.wire.proxy import WireProxy

DIRECT = ("--master", "none", "--reader", "direct")
RIVALRY = re.compile('"status":"(fenced|ahead|offset-gap|already-done)"')
ANNOUNCED = re.compile(r"^💥 crash[^:]*: (\d+) records?", re.MULTILINE)
FETCHES = 6
COMMITTED = {CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT}


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    return Stage(broker, names)


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
    stage.create(partitions=24)
    stage.seed(12_000)
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
    stage.create(partitions=1, output=1)
    stage.seed(40)
    with WireProxy(stage.broker.bootstrap) as proxy:
        near = Stage(Broker(proxy.bootstrap), stage.names)
        with near.follow(*DIRECT, "--follow") as program:
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


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_crash_at_this_point_leaves_what_it_says_and_the_next_run_heals_it(stage: Stage, point: CrashPoint) -> None:
    stage.create(3)
    stage.seed(60)
    ran = stage.pipeline(*DIRECT, "--crash-prob", "1.0", "--crash-point", point.value, seconds=60)
    assert ran.code == 2, ran.text
    told = ANNOUNCED.search(ran.out)
    assert told is not None, ran.text
    assert int(told[1]) == len(stage.records(stage.names.output, READ_UNCOMMITTED))
    assert (int(told[1]) > 0) == (point is not CrashPoint.AFTER_FENCE)
    visible = len(stage.records(stage.names.output))
    assert (visible == int(told[1])) if point in COMMITTED else point is CrashPoint.COMMIT_IN_FLIGHT or visible == 0
    healed = stage.pipeline(*DIRECT, seconds=60)
    assert healed.code == 0, healed
    stage.proven(inputs=60, outputs=60)


def test_a_sigkill_at_every_crash_point_heals(stage: Stage, tmp_path: Path) -> None:
    """The process dies as a Spark worker would, its line to the driver with it."""
    stage.create(2)
    seeded = 0
    for point in CrashPoint:
        stage.seed(20)
        seeded += 20
        crash = ["--crash-mode", "worker", "--crash-prob", "1.0", "--crash-point", point.value]
        died = stage.pipeline(*DIRECT, "--journal", str(tmp_path / point.value), *crash, seconds=60)
        assert died.code == -signal.SIGKILL
    healed = stage.pipeline(*DIRECT, seconds=60)
    assert healed.code == 0, healed
    fenced = [
        e for p in CrashPoint for e in entries(tmp_path / p.value) if (e.step, e.phase) == (Step.FENCE, Phase.DONE)
    ]
    assert len(fenced) >= len(CrashPoint), "each run came to a transaction"
    stage.proven(inputs=seeded, outputs=seeded)


def test_a_following_run_takes_up_new_partitions_and_ends_on_sigterm(stage: Stage) -> None:
    stage.create(2)
    stage.seed(20)
    with stage.follow(*DIRECT, "--follow") as program:
        until(lambda: sum(at or 0 for at in stage.committed().values()) == 20, "all is committed", 30)
        cluster_admin.add_partitions(stage.admin, stage.names.input, 4, Deadline(20))
        stage.seed(40)
        until(lambda: len(stage.records(stage.names.output)) == 60, "the new partitions' records", 30)
        program.terminate()
        assert program.wait(30).code == 0
    stage.nothing_open()
    stage.proven(inputs=60, outputs=60)


def _committed(stage: Stage) -> int:
    return sum(offset or 0 for offset in stage.committed().values())


def test_two_runs_at_once_write_everything_once(stage: Stage) -> None:
    """They fence each other between their transactions; orders come until that was seen, and both end with 0."""
    stage.create(2)
    small, deadline, seeded = ("--max-records-per-transaction", "500", "--follow"), Deadline(60), 0
    with stage.follow(*DIRECT, *small) as one, stage.follow(*DIRECT, *small) as other:
        while not (one.heard(RIVALRY) or other.heard(RIVALRY)):
            assert not deadline.expired(), f"the two runs never met:\n{one.told()}\n{other.told()}"
            stage.seed(5_000)
            seeded += 5_000
            until(lambda goal=seeded: _committed(stage) >= goal, "this round is committed", 60)
        one.terminate()
        other.terminate()
        ran = [one.wait(30), other.wait(30)]
    assert [each.code for each in ran] == [0, 0], [each.text for each in ran]
    stage.proven(inputs=seeded, outputs=seeded)


def test_a_position_that_somebody_moves_back_is_where_it_goes_on(stage: Stage) -> None:
    """One truth, also within a lease: the next transaction's locate finds it."""
    stage.create(1)
    stage.seed(20)
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


@pytest.mark.parametrize("blocked", [1, MAX_READING + 1])
def test_blocked_partitions_stop_no_other_and_are_finished_when_their_transaction_ends(
    stage: Stage, blocked: int
) -> None:
    """More than are read at a time, too."""
    stage.create(blocked + 1)
    stage.seed(10 * (blocked + 1))
    upstream = producer(stage.connection, f"{stage.names.stem}-upstream", timeout_s=60, message_max_bytes=1_000_000)
    upstream.init_transactions(20)
    upstream.begin_transaction()
    for partition in range(blocked):
        upstream.produce(stage.names.input, b'{"customer_id":"gold-1"}', b"gold-1", partition)
    assert upstream.flush(20) == 0
    end = stage.logs(stage.names.input)
    stable = {p: end[p].last_stable for p in range(blocked)}
    with stage.follow(*DIRECT) as program:
        until(lambda: stage.committed().get(blocked) == end[blocked].end, "the free partition", 30)
        program.await_line(lambda line: "is blocked at offset" in line, seconds=30)
        until(lambda: {p: at for p, at in stage.committed().items() if p < blocked} == stable, "what is visible", 30)
        upstream.commit_transaction(20)
        ran = program.wait(60)
    assert ran.code == 0, ran.text
    stage.drain_alone()  # over the markers that came after the goals
    stage.proven(inputs=10 * (blocked + 1) + blocked, outputs=10 * (blocked + 1) + blocked)


def test_an_office_admits_nobody_without_the_token(stage: Stage) -> None:
    """Whoever finds the driver's port learns nothing, and disturbs nothing."""
    stage.create(1)
    stage.seed(5)
    with stage.follow(*DIRECT, "--follow") as program:
        until(lambda: stage.committed()[0] == 5, "all is committed", 30)
        ports = [one.laddr.port for one in psutil.Process(program.pid).net_connections() if one.status == "LISTEN"]
        assert ports
        for port in ports:
            line = MessageConnection(socket.create_connection(("127.0.0.1", port)), 10.0)
            line.send({"hello": {"token": "guessed", "slot": 0}})
            assert line.receive() is None
            line.close()
        stage.seed(5)
        until(lambda: stage.committed()[0] == 10, "it works on", 30)
        program.terminate()
        assert program.wait(30).code == 0
