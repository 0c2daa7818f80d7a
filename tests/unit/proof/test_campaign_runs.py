"""Programs of a campaign, and lanes of cells at the same time."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import psutil
import pytest
from confluent_kafka import KafkaException
from harness.pages import ROOT
from harness.waiting import await_ends, has_ended, until

from brew.cli import exit_code_of
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.names import ExitCode
from proof.__main__ import proof
from proof.campaign import campaign
from proof.campaign.campaign import Plan, run_campaign
from proof.campaign.cell import LINES, WHOLE, Cell, Result, append_result, finished_results
from proof.campaign.cluster import ExternalCluster, SandboxFolder
from proof.campaign.effects import Freezer, frozen
from proof.campaign.programs import ProgramFailedError, Programs
from proof.campaign.runner import RunSettings
from proof.commands import campaign as campaign_command
from proof.provenance import MadeWith

KILLED = """
import os, signal, sys
from pathlib import Path
from proof.campaign import cluster
folder, mark = Path(sys.argv[1]), sys.argv[2]
cluster.guard(folder, ["touch", mark])
os.kill(os.getpid(), signal.SIGKILL)
"""


def _await_text(path: Path) -> str:
    return until(lambda: path.exists() and path.read_text().strip(), f"{path}", 10)


def test_a_program_and_its_children_end_with_the_block(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        program = programs.start("family", "sh", "-c", "sleep 600 & echo $!; wait")
        child = int(_await_text(tmp_path / "family.out"))
        assert psutil.pid_exists(child)
    assert program.code() == -9
    await_ends([child], Deadline(10))
    assert has_ended(child)


def test_a_program_that_ends_badly_is_told_with_its_last_words(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        with pytest.raises(ProgramFailedError, match="ended with 7: nothing works"):
            programs.start("bad", "sh", "-c", "echo nothing works >&2; exit 7").done(Deadline(10))
        good = programs.start("good", "echo", "fine")
        assert good.done(Deadline(10)) == "fine\n"
        assert good.ended_at is not None
        with pytest.raises(DeadlineExceeded, match="slow"):
            programs.start("slow", "sleep", "600").wait(Deadline(0.05))


def test_settings_of_other_runs_do_not_reach_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `export TIERS=profiles`, each cell was a violation: its writer found no profiles, and stalled."""
    for name in ("TIERS", "TRANSFORM", "ALSO_OUTPUT", "STORE", "EFFECT_URL", "BREW_CLIENT_CONFIG", "BREW_CONFIG"):
        monkeypatch.setenv(name, "mine")
    with Programs(tmp_path) as programs:
        assert "=mine" not in programs.start("settings", "env").done(Deadline(10))
    with SandboxFolder(tmp_path / "servers", "stores") as servers:  # mine does not exist, which is refused
        assert servers.status() == {}


def test_no_other_process_is_taken_for_a_program_that_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is its group's: free again, it is some other group's within minutes, which was then killed."""
    with Programs(tmp_path) as programs:
        program = programs.start("brief", "sh", "-c", "exit 5")
        assert program.wait(Deadline(10)) == 5
        assert psutil.Process(program.pid).status() == psutil.STATUS_ZOMBIE
        program.kill()
        assert not psutil.pid_exists(program.pid)
        monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("a signal to a number that was given back"))
        program.terminate()
    assert program.code() == 5


def test_an_aborted_program_tells_where_its_threads_stand(tmp_path: Path) -> None:
    """A stall without a stack can't be explained afterwards; a program that was stopped wakes up for it."""
    with Programs(tmp_path) as programs:
        words = "import signal; print('up', flush=True); signal.alarm(600); signal.pause()"
        program = programs.start("stuck", sys.executable, "-c", words)
        _await_text(tmp_path / "stuck.out")
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
    folder, mark = tmp_path / "brokers", tmp_path / "was-called"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(mark)], cwd=ROOT, check=False, timeout=30)
    assert done.returncode == -9
    until(lambda: not folder.exists(), "the directory being removed", 10)
    assert mark.exists()


@pytest.fixture(autouse=True)
def _kernel_is_not_hashed_for_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "_made_with", lambda *_: MadeWith("commit", "kernel", {}))


def _cell(name: str, meet: Callable[[], object]) -> Cell:
    def experiment(_bootstrap: str, seed: int, _kills: int) -> dict[str, Any]:
        meet()
        about = dict.fromkeys(("row", "fault", "target", "moment", "path", "began"), "")
        return {**about, "seed": seed, "verdict": "proven", "seconds": 0.0, "bound_s": None}

    return Cell(name, "T", "nothing", "nobody", "never", lambda _stage: None, experiment=experiment)


def _plan(folder: Path, cells: list[Cell], at_once: int) -> Plan:
    return Plan(cells, [1], RunSettings(folder), "test", bootstrap="nowhere:1", at_once=at_once)


def test_two_lanes_work_at_the_same_time_from_both_ends(tmp_path: Path) -> None:
    """The first two meet, or neither goes on; every cell is told once, and stands in the file once."""
    both = threading.Barrier(2)
    cells = [_cell(name, lambda: both.wait(20)) for name in "abcd"]
    began: list[str] = []
    ended: list[Result] = []
    done = run_campaign(_plan(tmp_path, cells, 2), lambda cell, _seed: began.append(cell.name), ended.append)
    assert set(began[:2]) == {"a", "d"}
    assert sorted(one.cell for one in ended) == list("abcd")
    assert [one.cell for one in finished_results(tmp_path)] == [one.cell for one in done] == [one.cell for one in ended]


def test_a_seed_that_is_named_twice_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lanes would work in one folder at once, and remove each other's journals."""
    plans = list[Plan]()

    def run(plan: Plan, **_: object) -> list[Result]:
        plans.append(plan)
        return []

    monkeypatch.setattr(campaign_command, "_run_campaign", run)
    words = ["campaign", "--cells", "F10-old-checkpoint", "--seeds", "2,1,2", "--out", str(tmp_path), "--may-leave-out"]
    assert exit_code_of(proof, "proof", words) == ExitCode.DONE
    assert [(cell.name, seed) for cell, seed in plans[0].left(())] == [("F10-old-checkpoint", n) for n in (2, 1)]


def test_one_lane_keeps_the_order_and_names_what_time_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other cell begins then; what has begun is finished, and counts."""
    up = threading.Event()
    monkeypatch.setattr(campaign, "Deadline", lambda _seconds: SimpleNamespace(expired=up.is_set))
    cells = [_cell("a", bool), _cell("b", bool), _cell("c", up.set), _cell("d", bool)]
    plan = replace(_plan(tmp_path, cells, 1), begin_within_s=60.0)
    done = run_campaign(plan, lambda _cell, _seed: None, lambda _result: None)
    assert ([one.cell for one in done], plan.missing_in(done)) == (list("abc"), ["d with seed 1"])


def test_what_was_only_late_is_tried_again_when_asked_and_says_so(tmp_path: Path) -> None:
    """A violation stays one, whatever is asked, and so does what was as expected."""
    late, wrong = {"name": "stall", "evidence": "11 s of 10"}, {"name": "lost-output", "evidence": "record 7"}
    verdicts = {"late": ("violated", [late]), "doubt": ("inconclusive", []), "lost": ("violated", [late, wrong])}
    began: list[str] = []
    plan = _plan(tmp_path, [_cell(name, bool) for name in ("well", *verdicts)], 1)
    (well, *_) = run_campaign(plan, lambda _cell, _seed: None, lambda _result: None)
    for name, (verdict, anomalies) in verdicts.items():
        append_result(tmp_path, replace(well, cell=name, verdict=verdict, anomalies=anomalies))
    plan = replace(plan, resume=True)
    shown: list[Result] = []
    done = run_campaign(plan, lambda cell, _seed: began.append(cell.name), shown.append)
    assert (began, len(done)) == ([], 4), "without --again, all that has a result is left alone"
    assert [one.cell for one in shown] == list(verdicts), "what decides the exit code is shown again"
    done = run_campaign(replace(plan, again=True, cells=plan.cells[:1]), lambda *_: None, lambda _result: None)
    assert len(done) == 4, "a result that was not repeated still counts"
    done = run_campaign(replace(plan, again=True), lambda cell, _seed: began.append(cell.name), lambda _result: None)
    assert began == ["late", "doubt"]
    assert {one.cell: one.verdict for one in done} == {
        **dict.fromkeys(("well", "late", "doubt"), "proven"),
        "lost": "violated",
    }
    assert [one.note for one in done if one.cell == "late"] == ["repeated after stall: 11 s of 10."]
    assert sorted(one.cell for one in finished_results(tmp_path)) == sorted(one.cell for one in done)


def test_only_a_resumed_campaign_counts_what_is_there(tmp_path: Path) -> None:
    """An old result would stand for a cell that has not run."""
    began: list[str] = []
    plan = _plan(tmp_path, [_cell("a", bool)], 1)
    for resume in (False, False, True):
        run_campaign(replace(plan, resume=resume), lambda cell, _seed: began.append(cell.name), lambda _result: None)
    assert (began, len(finished_results(tmp_path))) == (["a", "a"], 1)


def test_a_result_that_was_not_expected_costs_its_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be in any state, and would spoil the next cell."""
    events: list[str] = []

    class Brokers(ExternalCluster):
        def __init__(self, _folder: Path) -> None:
            super().__init__("nowhere:1")
            events.append("up")

        def close(self) -> None:
            events.append("down")

    monkeypatch.setattr(campaign, "Sandbox", Brokers)
    monkeypatch.setattr(campaign.tempfile, "mkdtemp", lambda **_: str(tmp_path))
    cells = [_cell("a", bool), replace(_cell("b", bool), expected="violated"), _cell("c", bool)]
    plan = replace(_plan(tmp_path, cells, 1), bootstrap=None)
    run_campaign(plan, lambda cell, _seed: events.append(cell.name), lambda _result: None)
    assert events == ["a", "up", "b", "down", "c", "up", "down"]


@pytest.mark.parametrize(
    ("printed", "code", "known"),
    [("{}", 0, False), ('{"n": 1}', 0, True), ('{"n": 1}', 1, True), ('{"n": 1}', 3, False), ("no JSON", 0, False)],
)
def test_a_report_is_one_only_by_what_it_says_and_how_its_program_ended(
    printed: str, code: int, known: bool, tmp_path: Path
) -> None:
    with Programs(tmp_path) as programs:
        program = programs.start("check", "sh", "-c", f"echo '{printed}'; exit {code}")
        with nullcontext() if known else pytest.raises(ProgramFailedError, match=f"ended with {code} and gave no"):
            assert program.report(Deadline(10)) == {"n": 1}


def test_a_line_that_was_cut_off_does_not_spoil_the_next_one(tmp_path: Path) -> None:
    (result,) = run_campaign(_plan(tmp_path, [_cell("a", bool)], 1), lambda *_: None, lambda _result: None)
    with (tmp_path / LINES).open("a") as file:
        file.write('{"cell": "b", "ro')
    append_result(tmp_path, replace(result, cell="c"))
    assert [one.cell for one in finished_results(tmp_path)] == ["a", "c"]


def test_results_of_a_version_with_other_fields_are_those_of_another_kernel(tmp_path: Path) -> None:
    (tmp_path / LINES).write_text('{"cell": "a", "seed": 1, "kernel": "older", "way": "direct"}\n')
    plan = replace(_plan(tmp_path, [_cell("a", bool)], 1), resume=True)
    assert [one.kernel for one in run_campaign(plan, lambda *_: None, lambda _result: None)] == ["kernel"]


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_in_a_lane_ends_the_campaign_and_is_raised(tmp_path: Path, at_once: int) -> None:
    def fail(cell: Cell, _seed: int) -> None:
        if cell.name not in "ab":
            raise OSError("the disk is full")

    cells = [_cell(name, bool) for name in ("a", "b", "c", "d0", "d1", "d2")]
    with pytest.raises(OSError, match="the disk is full"):
        run_campaign(_plan(tmp_path, cells, at_once), fail, lambda _result: None)
    assert (tmp_path / WHOLE).exists()
    assert {one.cell for one in finished_results(tmp_path)} <= {"a", "b"}


def test_an_error_in_an_experiment_makes_its_cell_inconclusive_and_the_next_one_runs(tmp_path: Path) -> None:
    def fail() -> None:
        raise KafkaException("no brokers here")

    plan = _plan(tmp_path, [_cell("a", fail), _cell("b", bool)], 1)
    broken, whole = run_campaign(plan, lambda *_: None, lambda _result: None)
    assert (broken.verdict, broken.doubts) == ("inconclusive", ["KafkaException: no brokers here"])
    assert (whole.cell, whole.verdict) == ("b", "proven")


def test_a_cell_that_an_interrupted_campaign_ends_has_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its brokers stop while it runs, so it may be anything; with --resume it runs again."""
    join, closing = threading.Thread.join, threading.Event()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def close(*_: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # a lane without cells
        closing.set()
        for lane in threading.enumerate():
            if lane.name.startswith("lane "):
                join(lane, 20)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    monkeypatch.setattr(campaign._Campaign, "close", close)
    with pytest.raises(KeyboardInterrupt):
        run_campaign(_plan(tmp_path, [_cell("a", lambda: closing.wait(20))], 2), lambda *_: None, lambda _result: None)
    assert finished_results(tmp_path) == []


_CHILD = "import sys; print('ready'); sys.stdin.readline(); print('alive')"
# The child has a process group of its own in its parent's session, as PySpark's daemon of workers has.
_PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-u", "-c", {_CHILD!r}],
                         stdin=int(sys.argv[1]), stdout=int(sys.argv[2]), process_group=0)
print(child.pid, flush=True)
sys.stdin.read()
"""


class Family:
    """A parent that dies when told, and its child, which answers a line when it is alive."""

    def __enter__(self) -> Self:
        child_in, self._to_child = os.pipe()
        from_child, child_out = os.pipe()
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, str(child_in), str(child_out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[child_in, child_out],
        )
        os.close(child_in)
        os.close(child_out)
        self._from_child = os.fdopen(from_child)
        assert self._parent.stdout is not None
        self.child = psutil.Process(int(self._parent.stdout.readline()))
        assert self._from_child.readline() == "ready\n"
        return self

    def stop_child(self) -> None:
        """A signal takes effect later: only a member that has stopped by then ends with its parent."""
        self.child.suspend()
        until(lambda: self.child.status() == psutil.STATUS_STOPPED, "the child to stop")

    def kill_parent(self) -> None:
        self._parent.kill()
        self._parent.wait(10)

    def answer(self) -> str:
        with suppress(BrokenPipeError):
            os.write(self._to_child, b"\n")
        assert select.select([self._from_child], [], [], 30)[0], f"neither answer nor end: {self.child.status()}"
        return self._from_child.readline()

    def __exit__(self, *_: object) -> None:
        with suppress(psutil.NoSuchProcess):
            self.child.kill()
        self._parent.kill()
        self._parent.communicate(timeout=10)
        os.close(self._to_child)
        self._from_child.close()


def own_cgroups() -> list[Path]:
    """The cgroups of this process: a campaign that runs beside it, or was killed, has its own."""
    return [*Path("/sys/fs/cgroup").rglob(f"brew-{os.getpid()}-*")]


def test_a_process_that_sigstop_holds_is_ended_with_its_parent() -> None:
    """The reason for the freezer: POSIX ends an orphaned process group that has stopped members."""
    with Family() as family:
        family.stop_child()
        family.kill_parent()
        assert family.answer() == ""


def test_a_frozen_process_outlives_its_parent_and_goes_on_when_released() -> None:
    """Root may use the freezer; for anybody else it says that it can't be used."""
    with Family() as family:
        family.stop_child()
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                Freezer()
            return
        with frozen([family.child]) as freezer:
            family.kill_parent()
            freezer.release([family.child])
            assert family.answer() == "alive\n"


def test_what_is_still_frozen_goes_on_at_the_end_or_has_died_and_no_cgroup_is_left() -> None:
    """A killed process dies when it is released, and its cgroup can't be removed until it has."""
    if os.geteuid() != 0:
        return
    for _ in range(3):
        with Family() as family, frozen([family.child]):
            family.child.kill()
    assert not own_cgroups()
    with Family() as family:
        with frozen([family.child]):
            assert own_cgroups()
            family.kill_parent()
        assert family.answer() == "alive\n"
    until(lambda: not own_cgroups(), "no cgroup of the freezer", 5)
