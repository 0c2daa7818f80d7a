"""What CI runs: the named cells are broken whatever the clock says, and CI is red without them."""

from __future__ import annotations

import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
from harness.commands import executable
from harness.pages import ROOT

from brew.cli import exit_code_of
from brew.names import ExitCode
from proof.__main__ import proof
from proof.campaign import campaign
from proof.commands import campaign as command

SCRIPT = ROOT / ".ci/run"


def _named() -> list[str]:
    match = re.search(r"^named=\((.*?)\)", SCRIPT.read_text(), re.MULTILINE | re.DOTALL)
    assert match is not None
    return match.group(1).replace("'", "").split()


def _run(
    folder: Path, *, python: str = "", make: str = "", lint: str = "", script: str = ""
) -> tuple[int, list[str], str]:
    """The script with programs that write down their calls; the shell of ``python``, ``make``, ``lint`` runs behind."""
    executable(folder / ".ci/run", script or SCRIPT.read_text(), "/bin/bash")
    calls = folder / "calls"
    for path, then in ((".venv/bin/python", python), ("make", make), ("scripts/lint.sh", lint)):
        executable(folder / path, f'echo "{Path(path).name} $*" >> {calls}\n{then}', "/bin/bash")
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    line = ["bash", ".ci/run"]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=30, check=False)
    # Fetching jars for a test and lint run beside the others: at any place among them.
    beside = re.compile(r" -m sandbox setup |^lint\.sh ")
    steps = [one for one in calls.read_text().splitlines() if not beside.search(one)]
    return done.returncode, steps, done.stderr


def test_the_ten_names_are_cells() -> None:
    names = [cell.name for cell in campaign.cells()]
    assert len(_named()) == 10
    assert [one for one in _named() if not any(fnmatch(name, one) for name in names)] == []


def test_named_cells_come_before_the_tests_and_no_clock_holds_them_back(tmp_path: Path) -> None:
    """They are broken even where the tests take all the time; the others come last, and only while there is time."""
    code, calls, _ = _run(tmp_path)
    assert code == 0
    assert [one.split()[1] for one in calls] == ["setup", "-m", "test", "-m"]
    named, others = calls[1], calls[3]
    assert all(f"--cells={one}" in named for one in _named())
    assert "begin-within" not in named
    assert "--may-leave-out" not in named
    assert "--cells=prove" in others
    assert "--begin-within-s" in others


def test_nothing_is_fetched_beside_the_cells(tmp_path: Path) -> None:
    """Their recoveries are timed."""
    slowly = f"[[ $* != *'sandbox setup'* ]] || {{ sleep 0.5; echo fetched >> {tmp_path}/calls; }}"
    _, calls, _ = _run(tmp_path, python=slowly)
    assert [one.split()[0] for one in calls[:3]] == ["make", "fetched", "python"]


def test_ci_is_red_when_a_named_cell_is_not_as_expected_and_the_tests_run_all_the_same(tmp_path: Path) -> None:
    code, calls, output = _run(tmp_path, python="[[ $* != *F27* ]] || exit 3")
    assert code == 1
    assert any(one.startswith("make test ") for one in calls)
    assert "failed: the named cells" in output
    assert all(one in output for one in _named())


@pytest.mark.parametrize("late", [True, False])
def test_a_named_cell_gets_one_more_try_and_what_was_wrong_is_said_last(tmp_path: Path, late: bool) -> None:
    """Which result is tried again is the campaign's to say (`--again`); CI's log shows its end alone."""
    fails = "[[ $* != *F27* ]] || { echo '✘ F27-x seed 1: violated'; echo '    stall: 11 s of 10'; exit 1; }"
    code, calls, output = _run(tmp_path, python=f"[[ $* == *--again* ]] && {'exit 0' if late else 'exit 1'}\n{fails}")
    first, again = (one for one in calls if "F27" in one)
    assert ("--again" in first, again) == (False, f"{first} --again")
    assert code == (0 if late else 1)
    said = output.splitlines()
    assert said[said.index("✘ F27-x seed 1: violated") + 1 :][:1] == ["    stall: 11 s of 10"]
    assert ("failed: the named cells" in output) is not late


def test_ci_is_red_without_time_for_the_others_only_by_what_failed(tmp_path: Path) -> None:
    """No time for the other cells is no failure, and is told; a step that fails is."""
    late = SCRIPT.read_text().replace("last_begins_s=1050", "last_begins_s=0")
    (tmp_path / "late").mkdir()
    code, calls, output = _run(tmp_path / "late", script=late)
    assert (code, len(calls)) == (0, 3)
    assert "no time is left for the other cells" in output
    for step in ("setup", "test"):
        (tmp_path / step).mkdir()
        assert _run(tmp_path / step, make=f"[[ $1 != {step} ]]")[0] != 0
    code, calls, output = _run(tmp_path, lint="exit 1")
    assert (code, len(calls)) == (1, 4)
    assert "failed: lint" in output


@pytest.mark.parametrize(("words", "wanted"), [((), ExitCode.REFUSED), (("--may-leave-out",), ExitCode.DONE)])
def test_a_campaign_that_left_a_cell_out_says_which_and_is_no_success(
    words: tuple[str, ...],
    wanted: ExitCode,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A campaign in which nothing ran has nothing against it, and shows nothing."""
    monkeypatch.setattr(command, "run_campaign", lambda _plan, _starts, _ends: [])
    arguments = ["campaign", "--cells", "F34-sleepers", "--begin-within-s", "1", "--out", str(tmp_path), *words]
    assert exit_code_of(proof, "proof", arguments) == wanted
    assert "left out: F34-sleepers with seed 1" in capsys.readouterr().err
