"""The sandbox: its layout, ports, processes, and the JVM."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from harness.pages import ROOT
from harness.waiting import await_ends, has_ended, until

from brew.cli import exit_code_of
from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.jvm.dependencies import VARIABLE, Part
from brew.names import ExitCode
from sandbox import isolation, kafka, process, spark, store
from sandbox.__main__ import cli
from sandbox.jvm import TOOLS, Jvm
from sandbox.kafka import Cluster, Settings
from sandbox.layout import Layout, plan, server_properties
from sandbox.process import Identity, ServerProcess
from sandbox.spark import SparkCluster

ONE_COPY = dict.fromkeys(("offsets.topic.replication.factor", "transaction.state.log.replication.factor"), "1")
THREE_COPIES = dict.fromkeys(("default.replication.factor", "transaction.state.log.replication.factor"), "3")
NEEDS_TWO = dict.fromkeys(("min.insync.replicas", "transaction.state.log.min.isr"), "2")
VOTERS = "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
LISTENERS = "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:12"


@pytest.mark.parametrize(
    ("brokers", "number", "overrides", "settings"),
    [
        # Kafka's defaults of three replicas would make the first transaction of one node wait for ever.
        (1, 1, {}, {**ONE_COPY, "min.insync.replicas": "1"}),
        # One of three brokers may die without a record lost or a write refused.
        (3, 2, {}, {**THREE_COPIES, **NEEDS_TWO, "controller.quorum.voters": VOTERS, "listeners": LISTENERS}),
        # A mistyped topic must be an error, as it is on a well-kept cluster.
        (1, 1, {}, {"auto.create.topics.enable": "false"}),
        # Tests need, for one, other time-outs than people do: a setting asked for wins.
        (1, 1, {"min.insync.replicas": "7"}, {"min.insync.replicas": "7"}),
    ],
)
def test_brokers_are_set_up_for_their_number(
    tmp_path: Path, brokers: int, number: int, overrides: dict[str, str], settings: dict[str, str]
) -> None:
    layout = plan(tmp_path, "c", range(1, brokers + 1), range(11, brokers + 11))
    lines = server_properties(layout, layout.node(number), overrides).splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    assert properties == properties | settings


def test_the_state_file_is_read_back_as_written(tmp_path: Path) -> None:
    layout = plan(tmp_path, "c", [1, 2, 3], [11, 12, 13]).with_node(2, identity=Identity(4711, 1234.5))
    assert (Layout.read(tmp_path), list(tmp_path.iterdir())) == (None, []), "looking at a folder makes nothing there"
    layout.write()
    assert Layout.read(tmp_path) == layout
    process.write_private(tmp_path / "passwords.json", b"{}")
    assert (tmp_path / "passwords.json").stat().st_mode & 0o777 == 0o600


def test_a_cluster_keeps_its_version_and_refuses_another(tmp_path: Path) -> None:
    """Data that a newer broker wrote can stop an older one; a state file from before versions is the usual one's."""
    old = plan(tmp_path, "c", [1], [2])
    assert old.kafka == "4.1.1"
    replace(old, launched=Settings(kafka="3.9.2").kept()).write()
    layout = Layout.read(tmp_path)
    assert (layout is not None and layout.kafka, Settings(kafka="3.9.2").jvm.part) == ("3.9.2", Part.KAFKA_3_9)
    with pytest.raises(Refused, match=r"holds a cluster of Kafka 3\.9\.2, not 3\.3\.2; .*--wipe"):
        Cluster.start(tmp_path, settings=Settings(kafka="3.3.2"))
    for brokers, settings, why in ((1, Settings(secure=True), "without authentication"), (2, Settings(), "not 2")):
        with pytest.raises(Refused, match=why):
            kafka._check_fits(old, brokers, settings)


def test_a_cluster_is_up_when_each_of_its_brokers_is(tmp_path: Path) -> None:
    layout = plan(tmp_path, "c", [1, 2], [11, 12])
    codes = []
    for up in ([], [1], [1, 2]):
        for number in up:
            layout = layout.with_node(number, identity=Identity.of(os.getpid()))
        layout.write()
        codes.append(exit_code_of(cli, "sandbox", ["status", "--json", "--dir", str(tmp_path)]))
    assert codes == [ExitCode.REFUSED, ExitCode.REFUSED, ExitCode.DONE]


def test_a_start_that_was_killed_before_it_made_the_users_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers run, so nothing is launched; but without users, nobody could log in for ever."""
    done = list[str]()
    plan(tmp_path, "c", [1], [2]).with_node(1, identity=Identity.of(os.getpid()), mutual_port=3).write()
    monkeypatch.setattr(Cluster, "connection", None)
    monkeypatch.setattr(kafka, "await_answer", lambda *_: done.append("answers"))
    monkeypatch.setattr(kafka.Security, "create_users", lambda *_: done.append("users"))
    assert exit_code_of(cli, "sandbox", ["up", "--dir", str(tmp_path)]) == ExitCode.DONE
    assert done == ["answers", "users"]


def test_a_broker_is_stopped_before_it_is_started_again_and_killed_if_another_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, layout = Mock(), plan(tmp_path, "c", [1, 2], [11, 12])
    layout = layout.with_node(1, identity=done.identity).with_node(2, size_mb=16)
    monkeypatch.setattr(Cluster, "_start", lambda _, nodes: done.start([node.number for node in nodes]))
    monkeypatch.setattr(kafka, "limit_disk", done.limit_disk)
    cluster = Cluster(layout, Settings())
    cluster.restart(1)
    assert [name for name, _, _ in done.mock_calls] == ["identity.stop", "start"]
    assert cluster.heal() == 0
    done.limit_disk.assert_called_once_with(tmp_path / "kafka-2/data", 16)

    def fail(self: Cluster, _nodes: object) -> None:
        self._started[1] = Mock()
        raise Refused("broker 2 did not start")

    monkeypatch.setattr(Cluster, "_start", fail)
    monkeypatch.setattr(Cluster, "kill", lambda _, number: done.kill(number))
    with pytest.raises(Refused, match="broker 2"):
        Cluster._start_layout(layout.with_node(1, identity=None), Settings())
    done.kill.assert_called_once_with(1)


def test_a_start_that_was_killed_while_it_formatted_keeps_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a new one, the brokers whose data was formatted never met the others, and `down --wipe` found nothing."""
    ids = list[str]()

    def interrupted(layout: Layout, *_: object) -> None:
        ids.append(layout.cluster_id)
        raise KeyboardInterrupt

    monkeypatch.setattr(kafka, "format_data", interrupted)
    for brokers, version, error in ((1, "3.3.2", Refused), (3, None, KeyboardInterrupt), (3, None, KeyboardInterrupt)):
        monkeypatch.setenv(VARIABLE, str(tmp_path / "no-jars" if version else ROOT / ".jvm"))
        with pytest.raises(error):
            Cluster.start(tmp_path / "cluster", brokers=brokers, settings=Settings(kafka=version))
    assert len(set(ids)) == 1 < len(ids)
    assert exit_code_of(cli, "sandbox", ["down", "--wipe", "--dir", str(tmp_path / "cluster")]) == ExitCode.DONE
    assert [path.name for path in (tmp_path / "cluster").iterdir()] == ["lock"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Spark's processes sleep; the titles in this list are those that do not start."""
    titles = list[str]()

    def server(_command: object, log: Path, *, ends_with_parent: bool) -> ServerProcess:
        return ServerProcess(["sleep", "600"], log, ends_with_parent=ends_with_parent)

    def await_start(title: str, *_: object) -> None:
        if title in titles:
            raise Refused(title)

    monkeypatch.setattr(spark, "ServerProcess", server)
    monkeypatch.setattr(spark, "await_start", await_start)
    return titles


def test_a_spark_cluster_goes_on_if_one_more_worker_does_not_start(tmp_path: Path, failing: list[str]) -> None:
    with SparkCluster.start(tmp_path, workers=1) as before:
        failing.append("Spark's worker 2")
        with pytest.raises(Refused, match="worker 2"):
            SparkCluster.start(tmp_path, workers=2)
        after = SparkCluster.open(tmp_path)
        assert after is not None
        assert [after.alive(name) for name in ("master", "1", "2")] == [True, True, False]
        assert before.alive("master")


def test_a_spark_cluster_that_was_down_has_what_is_asked_for_now(tmp_path: Path, failing: list[str]) -> None:
    """One that runs keeps its own: an executor of another Python, or a worker of another size, would fit nobody."""
    assert failing == []
    with SparkCluster.start(tmp_path, workers=2, settings=spark.Settings(cores=1)) as before:
        assert SparkCluster.start(tmp_path, workers=2, settings=spark.Settings(cores=4)).state.cores == 1
    with SparkCluster.start(tmp_path, workers=1, settings=spark.Settings(cores=4)) as after:
        assert (after.state.port, after.state.cores, after.workers) == (before.state.port, 4, ["1"])


def test_a_start_that_the_log_has_of_an_earlier_run_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, cluster = list[bool](), Cluster(plan(tmp_path, "c", [1], [2]), Settings())
    node = cluster.layout.node(1)
    log = cluster.layout.log(node)
    log.parent.mkdir()
    log.write_bytes(kafka._STARTED)
    monkeypatch.setattr(kafka, "_listens", lambda _: True)
    monkeypatch.setattr(kafka, "await_start", lambda _title, ready, *_: seen.append(ready()))
    for begin in (log.stat().st_size, 0):
        cluster._await(node, begin, Deadline(1))
    assert seen == [False, True]


def test_a_cut_is_made_on_both_sides_and_only_networks_without_a_directory_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that could still send would not be cut off. Clients have no network of their own."""
    network, ran = isolation.Network(tmp_path), list[tuple[str, ...]]()
    address = {"ifname": network.name, "addr_info": [{"local": "10.213.7.254", "prefixlen": 24}]}
    monkeypatch.setattr(isolation, "_asked", lambda *_: [address])
    monkeypatch.setattr(isolation, "_ip", lambda *words: ran.append((words[1], words[-1])))
    network.cut(1, [2, isolation.CLIENTS])
    inside = network.name
    first, second = f"{inside}-1", f"{inside}-2"
    assert ran == [(first, "10.213.7.2/32"), (second, "10.213.7.1/32"), (first, "10.213.7.254/32")]
    gone, removed = tmp_path / "gone", list[Path]()
    links = [("brew1", tmp_path), ("brew2", gone), ("docker0", gone)]
    monkeypatch.setattr(isolation, "_asked", lambda *_: [{"ifname": name, "ifalias": str(at)} for name, at in links])
    monkeypatch.setattr(isolation.Network, "remove", lambda self: removed.append(self.directory))
    assert isolation.sweep() == removed == [gone]


def test_only_disks_of_the_sandbox_are_filled_resized_and_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong mount point would take the machine's own file systems away."""
    ran, data = list[str](), tmp_path / "kafka-3/data"
    mounted = {Path("/dev/shm"), Path("/run"), tmp_path.parent, data}
    monkeypatch.setattr(isolation, "_mounted", lambda: mounted)
    monkeypatch.setattr(isolation, "_run", lambda *words, **_: ran.append(" ".join(words)))
    monkeypatch.setattr(isolation.shutil, "disk_usage", lambda _: Mock(used=4096))
    isolation.limit_disk(data, 16)
    isolation.limit_disk(tmp_path / "new", 16)
    assert isolation.fill_disk(data) == 4096
    with pytest.raises(Refused, match="is not a file system of its own"):
        isolation.fill_disk(tmp_path)
    isolation.release_disks(tmp_path)
    assert ran == [
        f"mount -o remount,size=16m {data}",
        f"mount -t tmpfs -o size=16m,mode=0755 brew-sandbox {tmp_path / 'new'}",
        f"mount -o remount,size=4096 {data}",
        f"umount --lazy {data}",
    ]


def test_each_cut_of_the_sandbox_is_healed_and_only_its_networks_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, ran = isolation.Network(tmp_path), list[tuple[str, ...]]()
    own, other = [f"{network.name}-1", f"{network.name}-2"], isolation.Network(tmp_path / "other").name
    monkeypatch.setattr(isolation, "_namespaces", lambda: [*own, f"{other}-1", "docker"])
    answers = {"route": [{"dst": "10.213.7.2"}, {"dst": "10.213.7.254"}]}
    answers["link"] = [{"ifname": name} for name in ("lo", network.name, own[0], other, f"{other}-1")]
    monkeypatch.setattr(isolation, "_asked", lambda *words: answers["route" if "route" in words else "link"])
    monkeypatch.setattr(isolation, "_ip", lambda *words: ran.append(words))
    monkeypatch.setattr(isolation, "may_isolate", lambda: True)
    assert network.heal() == 4
    assert [(words[1], words[-1]) for words in ran] == [
        (name, route["dst"]) for name in own for route in answers["route"]
    ]
    ran.clear()
    network.remove()
    assert ran == [("link", "delete", name) for name in (network.name, own[0])] + [("netns", "delete", n) for n in own]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cluster_id": "c", "nodes": [{"number": 1}]}'])
def test_a_broken_state_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """Guessing what ran would leave processes behind, or end foreign ones."""
    (tmp_path / "kafka.json").write_text(text)
    with pytest.raises(Refused, match=r"kafka\.json"):
        Layout.read(tmp_path)


def test_a_port_is_refused_with_its_holders_number_until_the_holder_has_closed_it() -> None:
    """One sentence says which, whose and what to do; lingering connections do not keep a server from coming back."""
    with socket.create_server((process.HOST, 0)) as server:
        port = server.getsockname()[1]
        holder = f"(process {os.getpid()}|another process)"
        with pytest.raises(Refused, match=rf"port {port} is taken by .*{holder}.*--port"):
            process.require_free(port)
        with socket.create_connection((process.HOST, port)), server.accept()[0]:
            pass
    process.require_free(port)
    with socket.create_server((process.HOST, port)) as again:
        assert again.getsockname()[1] == port


def test_free_ports_are_different_and_below_the_outgoing_range() -> None:
    """A killed broker must find its port free again, so no outgoing connection may be given it meanwhile."""
    ports = process.free(20)
    assert len(set(ports)) == 20
    assert max(ports) < 32_768


WAITS = "signal.alarm(600); signal.pause()"
IDLE = [sys.executable, "-c", f"import signal; {WAITS}"]
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready')"
STUBBORN = [sys.executable, "-uc", f"{DEAF}; {WAITS}"]


def test_a_process_that_has_ended_or_whose_number_another_one_has_is_not_ours(tmp_path: Path) -> None:
    """A state file from before a reboot must not make `down` end somebody else's program; stopping is harmless."""
    started = ServerProcess(IDLE, tmp_path / "log", ends_with_parent=True)
    older = Identity(started.identity.pid, started.identity.created - 3600)
    assert (older.alive(), older.stop(Deadline(1)), started.identity.alive()) == (False, False, True)
    started.identity.kill()
    started.ended()
    started = ServerProcess([sys.executable, "-c", ""], tmp_path / "log", ends_with_parent=False)
    gone = started.identity  # nobody has asked for its exit status yet
    until(lambda: not gone.alive(), "the end of the process", 10)
    assert (gone.wait(Deadline(10)), gone.alive(), gone.stop(Deadline(1))) == (True, False, False)
    started.ended()


def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`down` ends, whatever state a server is in."""
    log = tmp_path / "log"
    started = ServerProcess(STUBBORN, log, ends_with_parent=True)
    until(lambda: b"ready" in log.read_bytes(), "the process getting ready", 10)
    assert started.identity.stop(Deadline(0.05))
    assert not started.identity.alive()
    started.ended()
    paused = ServerProcess(IDLE, log, ends_with_parent=True)
    assert paused.identity.send(signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(Identity, "kill", kill := Mock())
        assert paused.identity.stop(Deadline(5))
    paused.identity.kill()
    paused.ended()
    assert not kill.called, "a paused one is continued, and ends cleanly"


def _started_by_another(folder: Path, *, ends_with_parent: bool, then: str = "") -> Identity:
    """A server whose starter has ended, by itself or by what it did ``then``."""
    script = (
        "import os, pathlib, signal; from sandbox.process import ServerProcess;"
        f"s = ServerProcess({IDLE!r}, pathlib.Path({str(folder / 'log')!r}), ends_with_parent={ends_with_parent});"
        f"print(s.identity.pid, s.identity.created, flush=True); {then}"
    )
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=not then, cwd=ROOT, text=True)
    pid, created = completed.stdout.split()
    return Identity(int(pid), float(created))


def test_a_server_ends_when_its_starter_is_killed_unless_it_is_detached(tmp_path: Path) -> None:
    """A test run that is killed with SIGKILL cleans nothing up itself, and still leaves no broker behind."""
    left = _started_by_another(tmp_path, ends_with_parent=True, then="os.kill(os.getpid(), signal.SIGKILL)").pid
    await_ends([left], Deadline(10))
    assert has_ended(left)
    detached = _started_by_another(tmp_path, ends_with_parent=False)
    assert detached.alive(), "`python -m sandbox up` returns, and the broker stays"
    detached.kill()
    assert not detached.alive()


def test_a_stopped_process_stands_still_when_a_signal_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_missing_jars_are_refused_with_the_command_that_fetches_them_and_unknown_tools_with_all(tmp_path: Path) -> None:
    """A clone where `make setup` has not run yet says so in one sentence; nobody has to look up which tools exist."""
    with pytest.raises(Refused, match="make setup"):
        Jvm(tmp_path).command("kafka.Kafka", [])
    with pytest.raises(UsageError) as refusal:
        Jvm(tmp_path).tool("kafka-nothing", [])
    assert all(name in str(refusal.value) for name in TOOLS)


def test_the_class_path_has_one_order_and_an_archive_is_named_only_when_it_exists(tmp_path: Path) -> None:
    """An archive fits the class path it was made with, in no other order; a missing one only makes a start slower."""
    (tmp_path / "kafka").mkdir()
    for name in ("b.jar", "a.jar", "c.jar"):
        (tmp_path / "kafka" / name).touch()
    jvm = Jvm(tmp_path)
    assert [Path(jar).name for jar in jvm.class_path().split(":")] == ["a.jar", "b.jar", "c.jar"]
    assert not any("SharedArchiveFile" in word for word in jvm.command("kafka.Kafka", []))
    jvm.archive.touch()
    assert f"-XX:SharedArchiveFile={jvm.archive}" in jvm.command("kafka.Kafka", [])


def test_a_server_has_its_whole_time_to_start_however_long_its_data_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a loaded machine `initdb` used up the 40 s that both had, and the server was killed while it started."""
    now, left = [0.0], list[float]()
    monkeypatch.setattr(store, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    monkeypatch.setattr(store, "await_start", lambda *given: left.append(given[-1].remaining_s()))
    monkeypatch.setattr(store, "ServerProcess", lambda *_, **__: Mock(identity=Identity(os.getpid(), 0.0)))

    class Slow(store.Store):
        name, url = "slow", "slow:"

        def prepare(self) -> None:
            now[0] += 100

        def command(self) -> list[str]:
            return []

        def answers(self) -> bool:
            return True

    Slow.start(tmp_path)
    assert left == [120.0]


def test_a_database_whose_making_was_interrupted_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PG_VERSION is the first file of `initdb`: a server in what is there would never start."""
    initdb = tmp_path / "initdb"
    monkeypatch.setattr(store, "_program", lambda _name: str(initdb))
    monkeypatch.setattr(store, "_as_user", list)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    database = store.Postgres(tmp_path, store.State(1))
    database.home.mkdir()
    for ending, budget_s, expected in (("exit 1", 30.0, "failed"), ("exec sleep 30", 0.5, "did not end within 0.5 s")):
        initdb.write_text(f'#!/bin/sh\ntouch "$2/PG_VERSION"\n{ending}\n')
        initdb.chmod(0o755)
        monkeypatch.setattr(store, "_START_S", budget_s)
        with pytest.raises(Refused, match=expected):
            database.prepare()
        assert not database.data.exists()
    initdb.write_text('#!/bin/sh\ntouch "$2/PG_VERSION" "$2/whole"\n')
    monkeypatch.setattr(store, "_START_S", 10.0)
    database.prepare()
    assert (database.data / "whole").exists()


def test_the_user_of_roots_database_gets_to_it_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With umask 027, `make demo-downstream` said to `chmod` a folder that was gone by then."""
    modes = list[int]()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", lambda *_: None)
    monkeypatch.setattr(store, "_program", lambda _name: "true")
    monkeypatch.setattr(store, "_as_user", list)
    monkeypatch.setattr(store, "_account", Mock())
    monkeypatch.setattr(store, "_require_way", lambda data, _account: modes.append(data.parent.stat().st_mode & 0o777))
    database = store.Postgres(tmp_path, store.State(1))
    database.home.mkdir(mode=0o700)
    database.prepare()
    assert modes == [0o711]
