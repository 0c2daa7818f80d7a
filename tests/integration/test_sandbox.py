"""The sandbox's Kafka: up, down, refused, killed, started again, cut off, on a full disk, and nothing left behind."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.programs import ROOT

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import clients, topics
from brew.names import ExitCode
from sandbox import isolation, kafka, layout, process
from sandbox.isolation import CLIENTS, Network
from sandbox.kafka import Cluster, Settings
from sandbox.layout import Layout

namespaces = pytest.mark.skipif(not isolation.may_isolate(), reason="namespaces need root, `ip` and `nsenter`")


def _sandbox(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sandbox", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A folder for one cluster, whose processes, networks and mounts end with the test."""
    folder = tmp_path / "sandbox"
    yield folder
    if (cluster := Cluster.open(folder)) is not None:
        cluster.close(wipe=True)
    Network(folder).remove()


def _names_of_topics(bootstrap: str) -> list[str]:
    return topics.names(clients.admin(clients.Connection(bootstrap)), Deadline(20))


def _make_topic(bootstrap: str, name: str) -> topics.Topic:
    client = clients.admin(clients.Connection(bootstrap))
    deadline = Deadline(20)
    topics.create(client, [topics.TopicSpec(name, 2, {})], deadline)
    while not (described := topics.describe(client, [name], deadline)):
        deadline.check("each broker hearing of the new topic")
    return described[name]


def test_the_command_line_starts_breaks_mends_and_stops_a_broker(directory: Path) -> None:
    """`up` returns once a client is answered, twice is harmless; `kill` and `down` keep the data, and no process."""
    in_directory = ("--dir", str(directory))

    def status() -> Any:
        return json.loads(_sandbox("status", "--json", *in_directory).stdout)

    first = _sandbox("up", "--port", "0", "--quick", "--heap-mb", "256", *in_directory)
    assert first.returncode == ExitCode.DONE, first.stderr
    report = status()
    (node,) = report["brokers"]
    assert (report["up"], node["network"], node["data_size_mb"]) == (True, "loopback", None)
    _make_topic(report["bootstrap"], "kept")
    second = _sandbox("up", "--port", "0", *in_directory)
    assert (second.returncode, "already up" in second.stdout) == (ExitCode.DONE, True)

    assert _sandbox("kill", "1", *in_directory).stdout == "broker 1 is killed\n"
    assert status()["up"] is False
    assert _sandbox("restart", "1", *in_directory).stdout == "up: broker 1\n"
    report = status()
    assert "kept" in _names_of_topics(report["bootstrap"])
    assert [_sandbox(word, "1", *in_directory).returncode for word in ("pause", "resume")] == [ExitCode.DONE] * 2
    for words in (("kill", "7"), ("cut", "1", "--from", "clients"), ("fill", "1")):
        refused = _sandbox(*words, *in_directory)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (ExitCode.REFUSED, 1), refused.stderr

    assert _sandbox("down", *in_directory).returncode == ExitCode.DONE
    assert not psutil.pid_exists(report["brokers"][0]["process"])
    assert status()["up"] is False
    again = _sandbox("down", *in_directory)
    assert (again.returncode, again.stdout.strip()) == (ExitCode.DONE, "nothing is up")
    with pytest.raises(Refused, match="1 brokers, not 3"):  # its data can't be taken for those of three
        Cluster.start(directory, brokers=3)

    assert _sandbox("up", "--quick", *in_directory).returncode == ExitCode.DONE
    assert status()["bootstrap"] == report["bootstrap"], "where its clients look for it"
    assert "kept" in _names_of_topics(status()["bootstrap"])
    assert _sandbox("down", "--wipe", *in_directory).returncode == ExitCode.DONE
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


@pytest.mark.parametrize("place", [0, 1], ids=["the controller's", "the broker's"])
def test_a_port_that_is_taken_while_the_broker_starts_is_chosen_anew(
    place: int, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two starts at once may choose the same one: it was free for both."""
    chosen = list[list[int]]()
    with socket.create_server(("127.0.0.1", 0)) as other:

        def free(count: int, *, apart_from: Collection[int] = ()) -> list[int]:
            chosen.append(process.free(count, apart_from=apart_from))
            if len(chosen) == 1:
                chosen[0][place] = other.getsockname()[1]
            return chosen[-1]

        monkeypatch.setattr(layout, "free", free)
        monkeypatch.setattr(kafka, "require_free", lambda _port: None)
        with Cluster.start(directory) as cluster:
            assert [len(chosen), cluster.bootstrap] == [2, f"127.0.0.1:{chosen[1][1]}"]
            _make_topic(cluster.bootstrap, "made")


def test_a_broker_that_cannot_start_is_refused_with_its_last_words(directory: Path) -> None:
    """The reason stands in the broker's log; nobody should have to look for it, and nothing is left running."""
    refused = _sandbox("up", "--port", "0", "--dir", str(directory), "--property", "num.network.threads=0")
    assert refused.returncode == ExitCode.REFUSED
    assert "num.network.threads" in refused.stderr
    layout = Layout.read(directory)
    assert layout is None or not any(node.alive() for node in layout.nodes)


def _links() -> str:
    return subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout + str(
        list(Path("/run/netns").glob("*")) if Path("/run/netns").exists() else ""
    )


@namespaces
def test_a_broker_in_its_own_network_is_cut_off_and_healed(directory: Path) -> None:
    """No client is answered while it is cut off, and nothing of the network is left afterwards."""
    settings = Settings(namespaces=True)
    with Cluster.start(directory, settings=settings) as cluster:
        connection = clients.Connection(cluster.bootstrap)
        assert not cluster.bootstrap.startswith("127.")
        clients.reach(connection, Deadline(20))
        cluster.cut(1, [CLIENTS])
        with pytest.raises(Refused, match="no Kafka broker answered"):
            clients.reach(connection, Deadline(0.5))
        assert cluster.heal() == 1
        clients.reach(connection, Deadline(20))
        assert cluster.network.name in _links()
    assert cluster.network.name not in _links()


@namespaces
def test_brokers_do_not_hear_of_each_other_across_a_cut(tmp_path: Path) -> None:
    """Both ends get a route into nothing; two sandboxes have different networks."""
    first, second = Network(tmp_path / "a"), Network(tmp_path / "b")
    try:
        hosts = first.make([1, 2, 3])
        assert len({host.rpartition(".")[0] for host in [*hosts.values(), *second.make([1]).values()]}) == 2
        assert _routes(first, 1) == []
        first.cut(1, [2, 3])
        assert _routes(first, 1) == [hosts[2], hosts[3]]
        assert _routes(first, 2) == _routes(first, 3) == [hosts[1]]
        assert first.heal() == 4
        assert _routes(first, 1) == _routes(first, 2) == []
    finally:
        first.remove()
        second.remove()
    assert first.name not in _links()


def _routes(network: Network, number: int) -> list[str]:
    command = ["ip", "-n", network.namespace(number), "-json", "route", "show", "type", "blackhole"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [route["dst"] for route in json.loads(output or "[]")]


@namespaces
def test_a_network_that_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    """By `down`, which finds no cluster there; and by the next `up`, when even the directory is gone."""
    killed, gone = tmp_path / "killed", tmp_path / "gone"
    for directory in (killed, gone):
        directory.mkdir()
        Network(directory).make([1, 2])
    gone.rmdir()
    assert _sandbox("down", "--dir", str(killed)).returncode == ExitCode.DONE
    assert Network(killed).name not in _links()
    assert gone in isolation.sweep()
    assert Network(gone).name not in _links()


@pytest.mark.skipif(not isolation.may_mount(), reason="mounting needs root")
def test_a_broker_on_a_full_disk_ends_and_comes_back_with_room(directory: Path) -> None:
    """Its data is what it was; other disks are not touched, and `close` unmounts."""
    with Cluster.start(directory, settings=Settings(data_size_mb=64)) as cluster:
        client = clients.admin(clients.Connection(cluster.bootstrap))
        topics.create(client, [topics.TopicSpec("kept", 1, {})], Deadline(20))
        assert cluster.fill(1) < 64 * 1024 * 1024
        with pytest.raises(OSError, match="No space left"):
            (cluster.layout.data(cluster.layout.node(1)) / "more").write_bytes(os.urandom(100_000))
        cluster.heal()
        cluster.restart(1)
        assert "kept" in topics.names(clients.admin(clients.Connection(cluster.bootstrap)), Deadline(20))
    assert str(directory) not in Path("/proc/self/mounts").read_text()
