"""The sandbox's faults: brokers cut off in networks of their own, full disks, and nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import clients, topics
from brew.names import ExitCode
from sandbox import isolation
from sandbox.isolation import CLIENTS, Network
from sandbox.kafka import Cluster, Settings

ROOT = Path(__file__).resolve().parents[2]

namespaces = pytest.mark.skipif(not isolation.may_isolate(), reason="namespaces need root, `ip` and `nsenter`")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A folder for one cluster, whose processes, networks and mounts end with the test."""
    where = tmp_path / "sandbox"
    yield where
    if (cluster := Cluster.open(where)) is not None:
        cluster.close(wipe=True)
    Network(where).remove()


def _sandbox(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sandbox", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)


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


def _routes(one: Network, number: int) -> list[str]:
    command = ["ip", "-n", one.namespace(number), "-json", "route", "show", "type", "blackhole"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [route["dst"] for route in json.loads(told or "[]")]


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


def test_the_commands_break_and_mend_a_broker(directory: Path) -> None:
    """`kill`, `restart`, `pause`, `resume`; a number that is not there, and a cut without networks, are refused."""
    where = ("--dir", str(directory))
    assert _sandbox("up", "--port", "0", "--quick", "--heap-mb", "256", *where).returncode == ExitCode.DONE
    assert _sandbox("kill", "1", *where).stdout == "broker 1 is killed\n"
    assert json.loads(_sandbox("status", "--json", *where).stdout)["up"] is False
    assert _sandbox("restart", "1", *where).stdout == "up: broker 1\n"
    told = json.loads(_sandbox("status", "--json", *where).stdout)
    assert (told["up"], told["brokers"][0]["network"], told["brokers"][0]["data_size_mb"]) == (True, "loopback", None)
    assert [_sandbox(word, "1", *where).returncode for word in ("pause", "resume")] == [ExitCode.DONE] * 2
    for words in (("kill", "7"), ("cut", "1", "--from", "clients"), ("fill", "1")):
        refused = _sandbox(*words, *where)
        assert (refused.returncode, len(refused.stderr.splitlines())) == (ExitCode.REFUSED, 1), refused.stderr
