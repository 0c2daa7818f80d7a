"""The sandbox's PostgreSQL, Redis and Spark: up, killed, restarted, down, refused."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis as client
from harness.programs import ROOT
from harness.waiting import has_ended

from brew.cli import exit_code_of
from brew.errors import Refused
from brew.names import ExitCode
from sandbox.__main__ import cli
from sandbox.store import Postgres, Redis
from sandbox.stores import STORES


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder that PostgreSQL's user may enter, whose servers end with the test."""
    folder = Path(tempfile.mkdtemp(prefix="brew-test-stores-"))
    folder.chmod(0o711)
    yield folder
    for kind in STORES.values():
        if (store := kind.open(folder)) is not None:
            store.close(wipe=True)
    shutil.rmtree(folder)


def _stores(directory: Path, *arguments: str) -> tuple[int, str]:
    """A command's exit code and what it said; a command that starts servers is a program, and leaves them running."""
    words = ["stores", *arguments, "--dir", str(directory)]
    if arguments[0] in {"up", "restart"}:
        command = [sys.executable, "-m", "sandbox", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=90)
        return done.returncode, done.stdout + done.stderr
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            code = exit_code_of(cli, "sandbox", words)
        except SystemExit as error:  # `status` tells by its exit code
            code = int(error.code or 0)
    return code, out.getvalue()


def _shared_memory(process: psutil.Process) -> set[str]:
    """Its files in /dev/shm; none of a server's child that has just ended (a session of ours, a vacuum)."""
    try:
        return {mapping.path for mapping in process.memory_maps() if mapping.path.startswith("/dev/shm/")}
    except psutil.NoSuchProcess:
        return set()


def test_what_was_committed_survives_a_kill_of_both_servers(directory: Path) -> None:
    """`up` returns once both answer, `kill` leaves no process, `restart` brings the data back."""
    assert _stores(directory, "up")[0] == ExitCode.DONE
    report = json.loads(_stores(directory, "status", "--json")[1])
    with psycopg.connect(report["postgres"]["url"]) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
    with client.Redis.from_url(report["redis"]["url"]) as session:
        session.set("kept", 7)

    families = [psutil.Process(process["process"]) for process in report.values()]
    families += [child for process in families for child in process.children(recursive=True)]
    shared_memory = [_shared_memory(process) for process in families]
    assert set().union(*shared_memory) == set(), "nobody would remove it after a kill"
    assert _stores(directory, "kill", "postgres", "redis")[0] == ExitCode.DONE
    assert [process for process in families if process.is_running() and process.status() != psutil.STATUS_ZOMBIE] == []
    assert _stores(directory, "status")[0] == ExitCode.REFUSED

    assert _stores(directory, "restart", "postgres", "redis") == (ExitCode.DONE, "postgres is up\nredis is up\n")
    with psycopg.connect(report["postgres"]["url"]) as connection:
        assert connection.execute("SELECT value FROM kept").fetchone() == (7,)
    with client.Redis.from_url(report["redis"]["url"]) as session:
        assert session.get("kept") == b"7"
    assert _stores(directory, "down", "--wipe")[0] == ExitCode.DONE
    assert sorted(path.name for path in directory.iterdir()) == ["lock"]


def test_a_server_that_is_not_installed_is_refused_with_what_to_do(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing server is an error, never a skip."""
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setattr("sandbox.store._DEBIAN", directory)
    for kind in (Postgres, Redis):
        with pytest.raises(Refused, match="make setup-stores"):
            kind.start(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts PostgreSQL as another user")
def test_a_folder_that_the_servers_user_cannot_enter_is_refused(directory: Path) -> None:
    """Folders of `mktemp` are closed to others, and the server's own message would not say so."""
    directory.chmod(0o700)
    with pytest.raises(Refused, match=r"chmod o\+x"):
        Postgres.start(directory)


def test_a_start_that_was_killed_before_it_made_the_database_is_finished(directory: Path) -> None:
    with Postgres.start(directory) as server:
        with psycopg.connect(server._admin_url, autocommit=True) as session:
            session.execute("DROP DATABASE brew")
        Postgres.start(directory)
        psycopg.connect(server.url).close()


def test_a_paused_database_is_shut_down_cleanly(directory: Path) -> None:
    with Postgres.start(directory) as server:
        server.pause()
        server.stop()
        assert "database system is shut down" in server.log.read_text()


def test_a_folder_may_have_a_blank_in_its_name(directory: Path) -> None:
    with Redis.start(directory / "of mine") as server:
        assert server.answers()


def test_a_setting_that_the_server_does_not_take_is_told_with_its_own_words(directory: Path) -> None:
    """It ends while starting; the last lines of its log are in the refusal, and no process is left."""
    with pytest.raises(Refused, match=r"exited during startup(?s:.)*no_such_setting"):
        Postgres.start(directory, properties={"no_such_setting": "1"})
    server = Postgres.open(directory)
    assert server is not None
    assert not server.running()


Spark = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Spark]:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-m", "sandbox", "spark", *words, "--dir", str(tmp_path)]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=150, check=False)

    yield command
    assert command("down", "--wipe").returncode == 0


def test_a_cluster_comes_is_broken_mended_and_goes(spark: Spark, tmp_path: Path) -> None:
    """Whatever is started is told, with its process; a killed worker is missed, and the one that is added is not."""
    assert spark("status").returncode == 3
    up = spark("up", "--port", "0", "--workers", "1", "--cores", "1")
    assert up.returncode == 0, up.stderr
    status = spark("status", "--json")
    report = json.loads(status.stdout)
    assert (status.returncode, report["running"]) == (0, {"master": True, "1": True})
    assert f"make run-pipeline MASTER={report['url']}" in up.stdout
    master, worker = report["processes"]["master"], report["processes"]["1"]

    assert spark("kill", "1").returncode == 0
    assert has_ended(worker)
    assert spark("status").returncode == 3
    assert "worker 1 is not running" in spark("pause", "1").stderr
    assert spark("restart", "1").returncode == 0
    assert "worker 2 is up" in spark("add").stdout
    assert spark("status").returncode == 0
    wrong = spark("kill", "9")
    assert (wrong.returncode, "choose one of: master 1 2" in wrong.stderr) == (64, True)

    assert "Spark is down (3 stopped)" in spark("down", "--wipe").stdout
    assert has_ended(master)
    assert not (tmp_path / "spark").exists()
