"""The sandbox: its layout, ports, processes, and the JVM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from harness.waiting import await_ends, has_ended, until

from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.jvm.dependencies import Part
from sandbox import process
from sandbox.jvm import TOOLS, Jvm
from sandbox.kafka import Cluster, Settings
from sandbox.layout import Layout, plan, server_properties
from sandbox.process import Identity, ServerProcess


def _properties(layout: Layout, number: int, **more: str) -> dict[str, str]:
    text = server_properties(
        layout, layout.node(number), {name.replace("_", "."): value for name, value in more.items()}
    )
    return dict(line.split("=", 1) for line in text.splitlines())


def test_one_node_needs_no_other_for_its_internal_topics(tmp_path: Path) -> None:
    """Kafka's defaults of three replicas would make the first transaction wait for ever."""
    found = _properties(plan(tmp_path, "c", [9092], [9093]), 1)
    for name in ("offsets.topic.replication.factor", "transaction.state.log.replication.factor", "min.insync.replicas"):
        assert found[name] == "1"


def test_three_nodes_replicate_everything_and_need_two(tmp_path: Path) -> None:
    """One of three brokers may die without a record lost or a write refused."""
    found = _properties(plan(tmp_path, "c", [1, 2, 3], [11, 12, 13]), 2)
    assert found["default.replication.factor"] == found["transaction.state.log.replication.factor"] == "3"
    assert found["min.insync.replicas"] == found["transaction.state.log.min.isr"] == "2"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:12"


def test_topics_are_never_made_by_accident(tmp_path: Path) -> None:
    """A mistyped topic must be an error, as it is on a well-kept cluster."""
    assert _properties(plan(tmp_path, "c", [1], [2]), 1)["auto.create.topics.enable"] == "false"


def test_a_setting_asked_for_wins(tmp_path: Path) -> None:
    """Tests need, for one, other time-outs than people do."""
    assert _properties(plan(tmp_path, "c", [1], [2]), 1, num_partitions="7")["num.partitions"] == "7"


def test_the_state_file_is_read_back_as_written(tmp_path: Path) -> None:
    """`down` finds what `up` started, in another process and on another day."""
    layout = plan(tmp_path, "c", [1, 2, 3], [11, 12, 13]).with_node(2, identity=Identity(4711, 1234.5))
    layout.write()
    assert Layout.read(tmp_path) == layout


def test_a_cluster_keeps_its_version_and_refuses_another(tmp_path: Path) -> None:
    """Data that a newer broker wrote can stop an older one; a state file from before versions is the usual one's."""
    old = plan(tmp_path, "c", [1], [2])
    assert old.kafka == "4.1.1"
    replace(old, launched=Settings(kafka="3.9.2").kept()).write()
    found = Layout.read(tmp_path)
    assert (found is not None and found.kafka, Settings(kafka="3.9.2").jvm.part) == ("3.9.2", Part.KAFKA_3_9)
    with pytest.raises(Refused, match=r"holds a cluster of Kafka 3\.9\.2, not 3\.3\.2; .*--wipe"):
        Cluster.start(tmp_path, settings=Settings(kafka="3.3.2"))


def test_a_directory_without_state_holds_no_cluster(tmp_path: Path) -> None:
    """Looking at a folder makes nothing there."""
    assert Layout.read(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cluster_id": "c", "nodes": [{"number": 1}]}'])
def test_a_broken_state_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """Guessing what ran would leave processes behind, or end foreign ones."""
    (tmp_path / "kafka.json").write_text(text)
    with pytest.raises(Refused, match=r"kafka\.json"):
        Layout.read(tmp_path)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server((process.HOST, 0)) as server:
        yield int(server.getsockname()[1])


def test_a_port_somebody_listens_on_is_refused_with_the_holders_number(taken: int) -> None:
    """One sentence says which port, who has it and what to do."""
    with pytest.raises(Refused, match=rf"port {taken} is taken by .*(process {os.getpid()}|another process).*--port"):
        process.require_free(taken)


def test_a_port_is_free_again_once_its_holder_has_closed_it() -> None:
    """Connections that linger after a server's end do not keep it from coming back."""
    with socket.create_server((process.HOST, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((process.HOST, port)), server.accept()[0]:
            pass
    process.require_free(port)
    with socket.create_server((process.HOST, port)) as again:
        assert again.getsockname()[1] == port


def test_free_ports_are_different_and_below_the_outgoing_range() -> None:
    """A killed broker must find its port free again, so no outgoing connection may be given it meanwhile."""
    found = process.free(20)
    assert len(set(found)) == 20
    assert max(found) < 32_768


WAITS = "signal.alarm(600); signal.pause()"
IDLE = [sys.executable, "-c", f"import signal; {WAITS}"]
STUBBORN = [
    sys.executable,
    "-uc",
    f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); {WAITS}",
]


def test_a_process_number_given_to_another_process_is_not_ours(tmp_path: Path) -> None:
    """A state file from before a reboot must not make `down` end somebody else's program."""
    started = ServerProcess(IDLE, tmp_path / "log", ends_with_parent=True)
    older = Identity(started.identity.pid, started.identity.created - 3600)
    assert not older.alive()
    assert not older.stop(Deadline(1))
    assert started.identity.alive()
    started.identity.kill()
    started.ended()


def test_a_process_that_has_ended_is_not_alive_and_stopping_it_is_harmless(tmp_path: Path) -> None:
    """Also while nobody has asked for its exit status yet."""
    started = ServerProcess([sys.executable, "-c", ""], tmp_path / "log", ends_with_parent=False)
    assert started.identity.wait(Deadline(10))
    assert not started.identity.alive()
    assert not started.identity.stop(Deadline(1))
    started.ended()


def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    """`down` ends, whatever state a server is in."""
    log = tmp_path / "log"
    started = ServerProcess(STUBBORN, log, ends_with_parent=True)
    until(lambda: b"ready" in log.read_bytes(), "the process getting ready", 10)
    assert started.identity.stop(Deadline(0.05))
    assert not started.identity.alive()
    started.ended()


def _started_by_another(folder: Path, *, ends_with_parent: bool, then: str = "") -> Identity:
    """A server whose starter has ended, by itself or by what it did ``then``."""
    script = (
        "import os, pathlib, signal; from sandbox.process import ServerProcess;"
        f"s = ServerProcess({IDLE!r}, pathlib.Path({str(folder / 'log')!r}), ends_with_parent={ends_with_parent});"
        f"print(s.identity.pid, s.identity.created, flush=True); {then}"
    )
    root = Path(__file__).resolve().parents[3]
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=not then, cwd=root, text=True)
    pid, created = told.stdout.split()
    return Identity(int(pid), float(created))


def test_a_server_that_ends_with_its_parent_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    """A test run that is killed with SIGKILL cleans nothing up itself, and still leaves no broker behind."""
    left = _started_by_another(tmp_path, ends_with_parent=True, then="os.kill(os.getpid(), signal.SIGKILL)").pid
    await_ends([left], Deadline(10))
    assert has_ended(left)


def test_a_detached_server_outlives_its_starter(tmp_path: Path) -> None:
    """`python -m sandbox up` returns, and the broker stays."""
    left = _started_by_another(tmp_path, ends_with_parent=False)
    assert left.alive()
    left.kill()
    assert not left.alive()


def test_a_process_that_was_stopped_stands_still_when_the_signal_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads work on until the one that got the signal has a processor: under load a paused broker answered."""
    looks, real = list[bool](), process._all_threads_stopped

    def later(pid: int) -> bool:
        looks.append(len(looks) > 1 and real(pid))
        return looks[-1]

    monkeypatch.setattr(process, "_all_threads_stopped", later)
    started = ServerProcess(IDLE, tmp_path / "log", ends_with_parent=True)
    try:
        assert started.identity.send(signal.SIGSTOP)
        stopped = psutil.Process(started.identity.pid).status() == psutil.STATUS_STOPPED
        assert (looks[:2], looks[-1], stopped) == ([False, False], True, True)
        seen = len(looks)
        assert started.identity.send(signal.SIGCONT)
        assert len(looks) == seen
    finally:
        started.identity.kill()
        started.ended()


def test_missing_jars_are_refused_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    """A clone where `make setup` has not run yet says so in one sentence."""
    with pytest.raises(Refused, match="make setup"):
        Jvm(tmp_path).command("kafka.Kafka", [])


def _put_jars(home: Path, *names: str) -> None:
    (home / "kafka").mkdir()
    for name in names:
        (home / "kafka" / name).touch()


def test_the_class_path_has_one_order(tmp_path: Path) -> None:
    """A class-data archive fits the class path it was made with, and no other order of the same jars."""
    _put_jars(tmp_path, "b.jar", "a.jar", "c.jar")
    assert [Path(jar).name for jar in Jvm(tmp_path).class_path().split(":")] == ["a.jar", "b.jar", "c.jar"]


def test_an_archive_is_named_only_when_it_exists(tmp_path: Path) -> None:
    """A missing archive makes a start slower, never impossible."""
    _put_jars(tmp_path, "a.jar")
    jvm = Jvm(tmp_path)
    assert not any("SharedArchiveFile" in word for word in jvm.command("kafka.Kafka", []))
    jvm.archive.touch()
    assert f"-XX:SharedArchiveFile={jvm.archive}" in jvm.command("kafka.Kafka", [])


def test_an_unknown_tool_is_wrong_usage_and_the_known_ones_are_named(tmp_path: Path) -> None:
    """Nobody has to look up which tools there are."""
    with pytest.raises(UsageError) as refusal:
        Jvm(tmp_path).tool("kafka-nothing", [])
    assert all(name in str(refusal.value) for name in TOOLS)
