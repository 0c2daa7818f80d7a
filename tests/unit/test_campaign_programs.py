"""Programs of a campaign: none outlives its cell, and nothing outlives a campaign that was killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness.waiting import await_ends, has_ended, until

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from proof.campaign.programs import ProgramFailedError, Programs

ROOT = Path(__file__).resolve().parents[2]

KILLED = """
import os, signal, sys
from pathlib import Path
from proof.campaign import cluster
folder, mark = Path(sys.argv[1]), sys.argv[2]
cluster.guard(folder, ["touch", mark])
os.kill(os.getpid(), signal.SIGKILL)
"""


def _until_there(path: Path) -> str:
    return until(lambda: path.exists() and path.read_text().strip(), f"{path}", 10)


def test_a_program_and_its_children_end_with_the_block(tmp_path: Path) -> None:
    """A writer may have workers; SIGKILL goes to all of them."""
    with Programs(tmp_path) as programs:
        program = programs.start("family", "sh", "-c", "sleep 600 & echo $!; wait")
        child = int(_until_there(tmp_path / "family.out"))
        assert psutil.pid_exists(child)
    assert program.code() == -9
    await_ends([child], Deadline(10))
    assert has_ended(child)


def test_a_program_that_ends_badly_is_told_with_its_last_words(tmp_path: Path) -> None:
    """The checker may fail, too, and that is no violation."""
    with Programs(tmp_path) as programs:
        with pytest.raises(ProgramFailedError, match="ended with 7: nothing works"):
            programs.start("bad", "sh", "-c", "echo nothing works >&2; exit 7").done(Deadline(10))
        good = programs.start("good", "echo", "fine")
        assert good.done(Deadline(10)) == "fine\n"
        assert good.ended_at is not None
        with pytest.raises(DeadlineExceeded, match="slow"):
            programs.start("slow", "sleep", "600").wait(Deadline(0.05))


def test_an_aborted_program_tells_where_its_threads_stand(tmp_path: Path) -> None:
    """A stall without a stack can't be explained afterwards; a program that was stopped wakes up for it."""
    with Programs(tmp_path) as programs:
        words = "import signal; print('up', flush=True); signal.alarm(600); signal.pause()"
        program = programs.start("stuck", sys.executable, "-c", words)
        _until_there(tmp_path / "stuck.out")
        program.abort()
        assert program.code() == -6
    assert "Current thread" in (tmp_path / "stuck.err").read_text()


@pytest.mark.parametrize("number", ["SEGV", "ABRT"])
def test_a_program_that_crashes_by_itself_is_told_by_its_signal(tmp_path: Path, number: str) -> None:
    """Not one that we killed or aborted: that is what campaigns do."""
    with Programs(tmp_path) as programs:
        crashed = programs.start("crashed", "sh", "-c", f"echo so far; kill -{number} $$")
        crashed.wait(Deadline(10))
        assert crashed.crash == f"crashed ended with SIG{number}: so far"
        killed, aborted = (programs.start(name, "sleep", "600") for name in ("killed", "aborted"))
        assert killed.crash is None
        killed.kill()
        aborted.abort()
        assert (killed.crash, aborted.crash) == (None, None)


def test_a_killed_campaign_takes_its_brokers_down(tmp_path: Path) -> None:
    """The guard runs its command and removes the directory once the pipe's other end is gone."""
    folder, mark = tmp_path / "brokers", tmp_path / "was-called"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(mark)], cwd=ROOT, check=False, timeout=30)
    assert done.returncode == -9
    until(lambda: not folder.exists(), "the directory being removed", 10)
    assert mark.exists()
