"""The sandbox's Kafka: up, down, refused, killed, three of them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.brokers import Broker, sandbox_broker
from harness.names import Names
from harness.waiting import until

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import clients, topics
from brew.names import ExitCode
from sandbox import process
from sandbox.kafka import Cluster
from sandbox.layout import Layout

ROOT = Path(__file__).resolve().parents[2]


def _sandbox(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sandbox", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A folder for one cluster, whose processes end with the test."""
    yield tmp_path / "sandbox"
    if (cluster := Cluster.open(tmp_path / "sandbox")) is not None:
        cluster.close(wipe=True)


def _names_of_topics(bootstrap: str) -> list[str]:
    return topics.names(clients.admin(clients.Connection(bootstrap)), Deadline(20))


def _make_topic(bootstrap: str, name: str) -> topics.Topic:
    client = clients.admin(clients.Connection(bootstrap))
    deadline = Deadline(20)
    topics.create(client, [topics.TopicSpec(name, 2, {})], deadline)
    while not (found := topics.describe(client, [name], deadline)):
        deadline.check("each broker hearing of the new topic")
    return found[name]


def test_the_command_line_starts_tells_and_stops_a_broker(directory: Path) -> None:
    """`up` returns once a client is answered, twice is harmless, `down` leaves no process and keeps the data."""
    where = ("--dir", str(directory))
    first = _sandbox("up", "--port", "0", "--quick", *where)
    assert first.returncode == ExitCode.DONE, first.stderr
    told = json.loads(_sandbox("status", "--json", *where).stdout)
    assert told["up"]
    _make_topic(told["bootstrap"], "kept")

    second = _sandbox("up", "--port", "0", *where)
    assert (second.returncode, "already up" in second.stdout) == (ExitCode.DONE, True)

    assert _sandbox("down", *where).returncode == ExitCode.DONE
    assert not psutil.pid_exists(told["brokers"][0]["process"])
    assert json.loads(_sandbox("status", "--json", *where).stdout)["up"] is False
    again = _sandbox("down", *where)
    assert (again.returncode, again.stdout.strip()) == (ExitCode.DONE, "nothing is up")

    assert _sandbox("up", "--port", "0", "--quick", *where).returncode == ExitCode.DONE
    assert "kept" in _names_of_topics(json.loads(_sandbox("status", "--json", *where).stdout)["bootstrap"])
    assert _sandbox("down", "--wipe", *where).returncode == ExitCode.DONE
    assert Layout.read(directory) is None
    assert not (directory / "kafka-1").exists()


def test_a_taken_port_is_refused_in_one_sentence(directory: Path) -> None:
    """Whoever holds the port, it is left alone, and nothing is started."""
    with socket.create_server((process.HOST, 0)) as holder:
        port = holder.getsockname()[1]
        refused = _sandbox("up", "--port", str(port), "--dir", str(directory))
    assert refused.returncode == ExitCode.REFUSED
    assert f"port {port} is taken" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not any(node.alive() for node in getattr(Layout.read(directory), "nodes", ()))


def test_a_broker_that_cannot_start_is_refused_with_its_last_words(directory: Path) -> None:
    """The reason stands in the broker's log; nobody should have to look for it, and nothing is left running."""
    refused = _sandbox("up", "--port", "0", "--dir", str(directory), "--property", "num.network.threads=0")
    assert refused.returncode == ExitCode.REFUSED
    assert "num.network.threads" in refused.stderr
    layout = Layout.read(directory)
    assert layout is None or not any(node.alive() for node in layout.nodes)


def test_a_killed_broker_comes_back_on_its_port_with_its_data() -> None:
    """Fault tests kill brokers; what was acknowledged is there afterwards."""
    with sandbox_broker() as broker:
        assert broker.cluster is not None
        _make_topic(broker.bootstrap, "survivor")
        broker.cluster.kill()
        assert broker.cluster.running() == []
        broker.cluster.restart()
        assert "survivor" in _names_of_topics(broker.bootstrap)


def test_a_paused_broker_answers_nothing_until_it_is_resumed() -> None:
    """A hanging broker is not a dead one: connections stay, answers do not come."""
    with sandbox_broker() as broker:
        assert broker.cluster is not None
        connection = clients.Connection(broker.bootstrap)
        broker.cluster.pause()
        with pytest.raises(Refused, match="no Kafka broker answered"):
            clients.reach(connection, Deadline(0.5))
        broker.cluster.resume()
        clients.reach(connection, Deadline(20))


def test_three_brokers_hold_three_replicas_and_go_on_without_one() -> None:
    """Replication 3, as the promise needs it; the others answer while one is dead, and take it in again."""
    with sandbox_broker(brokers=3) as broker:
        assert broker.cluster is not None
        assert len(broker.cluster.running()) == 3
        assert _make_topic(broker.bootstrap, "replicated").replicas == 3
        broker.cluster.kill(2)
        assert len(broker.cluster.running()) == 2
        # Who was not asked yet may hear of the topic from the next controller, if this was the first one.
        until(lambda: "replicated" in _names_of_topics(broker.bootstrap), "the others tell of the topic")
        broker.cluster.restart(2)
        assert len(broker.cluster.running()) == 3


def test_a_directory_with_another_number_of_brokers_is_refused(directory: Path) -> None:
    """The data of one broker can't be taken for those of three."""
    with Cluster.start(directory, brokers=1) as cluster:
        cluster.stop()
        with pytest.raises(Refused, match="1 brokers, not 3"):
            Cluster.start(directory, brokers=3)


def test_fixtures_give_a_broker_that_answers_and_unused_names(broker: Broker, names: Names) -> None:
    """What every integration test starts from."""
    clients.reach(clients.Connection(broker.bootstrap), Deadline(10))
    assert names.input not in _names_of_topics(broker.bootstrap)
    assert len({names.input, names.output, names.dead_letter, names.group}) == 4
