"""The campaign's runner with a real broker: cells that prove, one that shows nothing, one that is violated."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.programs import ROOT
from harness.servers import Broker, Names, make_topics
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.journal import Step, entries
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin, producer
from brew.names import SINK_BATCH, ExitCode
from proof.campaign import campaign
from proof.campaign.cell import LINES, WHOLE, Cell, Result
from proof.campaign.cells import claims
from proof.campaign.cluster import ExternalCluster
from proof.campaign.programs import Programs
from proof.campaign.runner import RunSettings, run
from proof.campaign.sink_query import Watcher
from proof.campaign.stage import CellEnvironment

CRASH = campaign.named("F01-after-flush-writer-connector")

# The pipeline with one thing wrong: every seventh record is reported as written, and is not.
FORGETFUL = """
import itertools
from pipeline.__main__ import main
from brew.kafka.transaction import KafkaTransaction

made, numbers = KafkaTransaction.__init__, itertools.count(1)

def broken(self, *arguments):
    made(self, *arguments)
    produce = self.produce
    def forgetful(topic, value, key, partition, *rest):
        if next(numbers) % 7 == 0:
            value = b'{}'
        produce(topic, value, key, partition, *rest)
    self.produce = forgetful

KafkaTransaction.__init__ = broken
main()
"""


def _run_cell(cell: Cell, broker: Broker, tmp_path: Path, **settings: Any) -> Result:
    """Run a cell once, with seed 1, on a broker that is not the campaign's own."""
    return run(cell, 1, ExternalCluster(broker.bootstrap), RunSettings(tmp_path, **settings))


def _drain_only(stage: CellEnvironment) -> None:
    """The cell without its fault."""
    stage.orders(50)
    stage.drain()


def test_a_writer_that_is_killed_again_and_again_is_proven(broker: Broker, tmp_path: Path) -> None:
    """Two deaths with records in the log; the kills, what they left, and how long they held things up are told."""
    cell = replace(CRASH, bound_s=None)  # how fast it is, a busy machine decides
    result = _run_cell(cell, broker, tmp_path, kills=2)
    assert (result.verdict, result.anomalies, result.doubts) == ("proven", [], [])
    assert result.fired["kills"] == result.needed["kills"] == 2
    assert result.fired["aborted_records"] > 0
    assert result.counts["inputs"] == result.counts["outputs"] + result.counts["dead_letters"]
    assert all(0 < seconds < 60 for seconds in result.recovery_s)
    assert not (tmp_path / f"{CRASH.name}-1").exists()


def test_a_broken_writer_makes_its_cell_violated_and_leaves_the_evidence(broker: Broker, tmp_path: Path) -> None:
    """The campaign goes red where the promise is broken, or its green would mean nothing."""
    mutant = tmp_path / "mutant.py"
    mutant.write_text(FORGETFUL)
    program = ("env", f"PYTHONPATH={ROOT}", sys.executable, str(mutant), "run")
    result = _run_cell(replace(CRASH, function=_drain_only, needed={}), broker, tmp_path, program=program)
    assert result.verdict == "violated"
    assert "corrupt-output" in {anomaly["name"] for anomaly in result.anomalies}
    assert list((tmp_path / f"{CRASH.name}-1" / "journals").glob("writer-*.jsonl"))


def test_the_command_writes_results_and_resumes(broker: Broker, tmp_path: Path) -> None:
    """
    Exit code 3 for what could not be told; a second call runs nothing twice, and shows what decides its code.

    A cell that needs a sandbox touches no brokers that are not ours.
    """
    words = ("campaign", "--cells", "F10*", "--cells", "F14-input-leader-connector", "--bootstrap", broker.bootstrap)
    first = _proof(*words, "--out", str(tmp_path))
    assert first.returncode == ExitCode.REFUSED, first.stderr
    document = json.loads((tmp_path / WHOLE).read_text())
    assert {cell["cell"] for cell in document["cells"]} == {"F10-old-checkpoint", "F14-input-leader-connector"}
    (refused,) = [cell for cell in document["cells"] if cell["row"] == "F14"]
    assert (refused["verdict"], "three brokers" in refused["doubts"][0]) == ("inconclusive", True)
    assert document["campaign"]["seeds"] == [1]
    assert document["campaign"]["versions"]["confluent-kafka"]

    again = _proof(*words, "--out", str(tmp_path), "--resume", "--json")
    assert [json.loads(line)["cell"] for line in again.stdout.splitlines()] == ["F14-input-leader-connector"]
    assert len((tmp_path / LINES).read_text().splitlines()) == 2


def test_a_replay_keeps_what_the_cell_wrote_and_says_where(broker: Broker, tmp_path: Path) -> None:
    """What does not apply is as expected; an unknown cell is a mistake."""
    done = _proof("replay", "F10-old-checkpoint", "3", "--bootstrap", broker.bootstrap, "--out", str(tmp_path))
    assert (done.returncode, "F10-old-checkpoint seed 3" in done.stdout) == (ExitCode.DONE, True)
    assert str(tmp_path / "replay" / "F10-old-checkpoint-3") in done.stdout
    assert _proof("replay", "F99", "1").returncode == ExitCode.USAGE


def test_a_reader_writes_down_what_it_was_given(broker: Broker, names: Names, tmp_path: Path) -> None:
    """Ten records of one partition, without source headers, are ten runs; the drain ends by itself."""
    connection = Connection(broker.bootstrap)
    topics.create(admin(connection), [topics.TopicSpec(names.output, 1, {})], Deadline(30))
    client = producer(connection, None, timeout_s=10, message_max_bytes=1000)
    for number in range(10):
        client.produce(names.output, str(number).encode(), partition=0)
    assert client.flush(10) == 0
    read = ("read", "--bootstrap", broker.bootstrap, "--topic", names.output, "--journal", str(tmp_path / "j"))
    assert _proof(*read).returncode == ExitCode.DONE
    lines = [entry for entry in entries(tmp_path / "j") if entry.step is Step.READ and "topic" in entry.fields]
    assert [run[0] for line in lines for run in line.fields["runs"]] == list(range(10))
    assert {(line.who, line.fields["topic"], line.fields["isolation"]) for line in lines} == {
        ("reader", names.output, "read_committed")
    }


def test_a_reader_sees_a_batch_that_is_not_whole(broker: Broker, names: Names, tmp_path: Path) -> None:
    """A batch in one transaction is whole at each look, also beside an open one; a batch in two is seen in parts."""
    cell = replace(CRASH, function=_drain_only, partitions=1)
    with Programs(tmp_path) as programs:
        stage = CellEnvironment(cell, 1, ExternalCluster(broker.bootstrap), tmp_path, programs, Deadline(60))
        stage.make_topics()
        watcher = Watcher(stage)
        client = producer(stage.cluster.connection, names.group, timeout_s=20, message_max_bytes=1000)
        client.init_transactions(20)

        def commit(batch: int, *keys: bytes) -> None:
            client.begin_transaction()
            for key in keys:
                client.produce(stage.names.output, b"1", key, 0, headers=[(SINK_BATCH, b"%d" % batch)])
                client.flush(20)
                watcher.look()
            client.commit_transaction(20)
            until(lambda: sum(watcher.look().rows.values()) == visible_rows + len(keys), "the rows")

        visible_rows = 0
        for batch, keys in ((0, (b"a", b"b")), (1, (b"c",))):
            commit(batch, *keys)
            visible_rows += len(keys)
        assert watcher.look().findings({b"a": 1, b"b": 1, b"c": 1}) == []
        commit(1, b"d")
        findings = watcher.look().findings({b"a": 1, b"b": 1, b"c": 1, b"d": 1})
        assert [finding["name"] for finding in findings] == ["torn-batch"]


def test_leaders_are_told_and_replicas_that_lag(broker: Broker, names: Names) -> None:
    client, deadline = admin(Connection(broker.bootstrap)), Deadline(60)
    make_topics(Connection(broker.bootstrap), names.input, partitions=2)
    assert set(cluster_admin.leaders(client, names.input, deadline)) == {0, 1}
    assert cluster_admin.out_of_sync(client, [names.input], deadline) == []


@pytest.fixture
def few_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three members of eight partitions: the same cell, sooner."""
    monkeypatch.setattr(claims, "MEMBERS", 3)
    monkeypatch.setattr(claims, "PARTITIONS", 8)


@pytest.mark.usefixtures("few_members")
def test_a_claimant_that_sleeps_is_proven_to_own_nothing_that_others_have(broker: Broker, tmp_path: Path) -> None:
    """It sleeps once; what it wrote on waking was late, and no position of the log has two owners."""
    cell = replace(campaign.named("F34-sleepers"), needed={"pauses": 1, "takeovers": 1, "late": 1, "views": 3})
    result = _run_cell(replace(cell, bound_s=None), broker, tmp_path, kills=1)
    assert (result.verdict, result.anomalies, result.doubts) == ("proven", [], [])
    assert len(result.recovery_s) == 1


@pytest.mark.usefixtures("few_members")
def test_members_that_do_not_hear_what_they_lost_are_caught(broker: Broker, tmp_path: Path) -> None:
    """The control goes red, or the others' green would mean nothing."""
    cell = replace(campaign.named("F34-believers-control"), bound_s=None)
    result = _run_cell(cell, broker, tmp_path, kills=1)
    assert (result.verdict, result.expected) == ("violated", "violated")
    assert {anomaly["name"] for anomaly in result.anomalies} == {"two-owners"}


def test_a_ledger_whose_position_is_committed_afterwards_is_violated(broker: Broker, tmp_path: Path) -> None:
    """The control: the same deaths, and the double rows are named; a stall would not be enough."""
    result = _run_cell(campaign.named("F29-consumer-control"), broker, tmp_path, kills=1)
    assert (result.verdict, result.as_expected) == ("violated", True), result.doubts
    assert {anomaly["name"] for anomaly in result.anomalies} == {"ledger-duplicate", "ledger-drift"}


def test_a_cell_whose_server_is_not_installed_says_how_to_install_it(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is inconclusive, which ends a campaign with exit code 3, and never left out in silence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    result = _run_cell(campaign.named("F32-forgetting"), broker, tmp_path)
    assert (result.verdict, result.as_expected) == ("inconclusive", False)
    assert any("make setup-stores" in doubt for doubt in result.doubts)


def _proof(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proof", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
