"""What the benchmark computes from what it saw; no server needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness.waiting import await_ends, until

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from contenders import Setup, java_options  # noqa: E402 - the benchmarks are programs, no package
from results import lines, write  # noqa: E402
from runs import Latency, Restart, Results, Run, load  # noqa: E402
from watch import Tree, VisibilitySample, throughput  # noqa: E402

from brew.deadline import Deadline  # noqa: E402
from brew.errors import Refused  # noqa: E402


def test_what_was_visible_at_the_first_look_does_not_count_for_the_rate() -> None:
    """100 at 12 s and 300 at 14 s: 200 records in 2 s, whatever the first 100 took."""
    found = throughput(
        [VisibilitySample(12.0, 100), VisibilitySample(13.0, 250), VisibilitySample(14.0, 301)], 10.0, 300
    )
    assert found is not None
    assert found.records_per_s == 100.0
    assert found.overall_records_per_s == 75.0
    assert (found.first_visible_s, found.last_visible_s) == (2.0, 4.0)


def test_a_run_that_became_visible_at_once_has_its_overall_rate() -> None:
    """A single look saw everything: there is no time between first and last."""
    found = throughput([VisibilitySample(12.0, 300)], 10.0, 300)
    assert found is not None
    assert found.records_per_s == found.overall_records_per_s == 150.0


def test_nothing_visible_has_no_pace() -> None:
    """A division by nothing is not a result."""
    assert throughput([], 10.0, 300) is None


def _run(contender: str, number: int, rate: float) -> Run:
    parts = {"driver": 100.0, "jvm": 500.0, "workers": 200.0}
    return Run(contender, 1000, number, rate, rate, 3.0, 9.0, 10.0, 12.0, 2.0, 0.1, 800.0, parts, "proven")


def test_ratios_are_the_firsts_over_the_others_round_by_round(tmp_path: Path) -> None:
    """Rounds of 2.0, 2.5 and 8.2 give 2.50 with its range; the JSON twin keeps each run, the picture is drawn."""
    runs = [_run("direct", n, rate) for n, rate in enumerate((180.0, 250.0, 900.0), 1)]
    runs += [_run("franz", n, rate) for n, rate in enumerate((90.0, 100.0, 110.0), 1)]
    killed = [Restart("franz", 1000, 1, 200, 50, 4.0, 9.0, 0, "proven")]
    followed = [
        Latency("direct", n, 1000, 999.0, 20.0, 4.0, 30.0 + n, 90.0, 99.0, 0.2, 300.0, "proven") for n in (1, 2)
    ]
    results = Results(
        "make bench", {"cores": "2"}, {"direct": "ours", "franz": "Go"}, ["direct"], runs, killed, followed
    )
    assert lines(results, 1000)[0] == ["measure", "direct", "franz", "direct / franz"]
    assert lines(results, 1000)[1][1:] == ["250", "100", "2.50 (2.00-8.18)"]
    write(results, tmp_path / "RESULTS.md")
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| franz | 1,000 | 200 | 50 | 4.00 | 0 | proven |" in text
    assert "| direct | 999 | 32 | 90 | 99 | 4.00 | 0.20 | proven |" in text
    assert load([tmp_path / "results.json"]) == results
    assert (tmp_path / "results.svg").read_text().startswith("<svg")


def test_a_contender_that_ran_alone_has_no_ratio() -> None:
    """It shows numbers and compares nothing."""
    results = Results("make bench", {}, {"loop": "by hand"}, [], [_run("loop", 1, 5.0)])
    assert lines(results, 1000)[0] == ["measure", "loop"]


def test_the_choice_of_compilers_replaces_the_pipelines_own() -> None:
    """The untuned peer has none of our flags, the tuned one has all; everything else stays."""
    given = "-Dsome=thing -XX:+UseSerialGC -XX:Tier4InvocationThreshold=100000 -Xshare:auto"
    assert java_options(Setup(), tuned=False, given=given).endswith("=-Dsome=thing -Xshare:auto")
    assert java_options(Setup(), tuned=True, given=given).endswith(f"={given}")


_BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
_LOSES_A_CHILD = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {_BURN!r}])"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets a process adopt orphans")
def test_the_cpu_of_an_orphan_is_counted(tmp_path: Path) -> None:
    """A child that outlives its parent, unwaited for, burns 0.3 s: the sum holds them."""
    with Tree([sys.executable, "-c", _LOSES_A_CHILD], tmp_path) as tree:
        usage = tree.wait(Deadline(20))
    assert usage.orphans_adopted
    assert usage.killed_after_end == 0
    assert usage.cpu_s >= 0.3


def test_killing_a_tree_leaves_none_of_it(tmp_path: Path) -> None:
    """A grandchild in a session of its own goes too."""
    script = "import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True).wait()"
    with Tree([sys.executable, "-c", script], tmp_path) as tree:
        until(lambda: len(tree.processes()) == 2, "two processes", 10)
        found = tree.processes()
        tree.kill()
    assert not [p for p in found if _lives(p)]


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_tree_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    """The launcher's input ends, as when the benchmark is killed: the command is killed too."""
    launcher = subprocess.Popen(
        [sys.executable, str(BENCHMARKS / "measured.py"), str(tmp_path / "usage.json"), "sleep", "60"],
        stdin=subprocess.PIPE,
    )
    assert launcher.stdin is not None
    found = until(psutil.Process(launcher.pid).children, "the command", 10)
    launcher.stdin.close()
    launcher.wait(10)
    await_ends([p.pid for p in found], Deadline(10))  # a kill is not yet a death
    assert not [p for p in found if _lives(p)]


def test_a_failed_command_is_refused_with_its_last_words(tmp_path: Path) -> None:
    """Numbers of a run that failed are no result."""
    command = [sys.executable, "-c", "raise SystemExit('no such topic')"]
    with Tree(command, tmp_path) as tree, pytest.raises(Refused, match=r"ended with 1.*\n.*no such topic"):
        tree.wait(Deadline(20))


_ENDLESS = """
import signal, sys
if {polite}:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
print("up", flush=True)
signal.alarm(60)
signal.pause()
"""


@pytest.mark.parametrize(
    ("polite", "code", "fine"), [(True, 0, True), (True, 143, True), (False, 0, True), (True, 1, False)]
)
def test_a_command_that_is_told_to_stop_may_say_so(tmp_path: Path, polite: bool, code: int, fine: bool) -> None:
    """0, 143 and the signal itself are the same answer; anything else is a failure."""
    with Tree([sys.executable, "-c", _ENDLESS.format(polite=polite, code=code)], tmp_path) as tree:
        until(lambda: "up" in tree.tail(), "the command", 20)
        tree.terminate()
        if fine:
            assert tree.wait(Deadline(20), stopped=True).wall_s < 20
        else:
            with pytest.raises(Refused, match="ended with 1"):
                tree.wait(Deadline(20), stopped=True)
