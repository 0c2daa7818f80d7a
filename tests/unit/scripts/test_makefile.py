"""The Makefile: what it hands to the programs, and what it tells."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from harness.commands import executable
from harness.pages import ROOT

TARGETS = re.findall(r"^([a-z-]+):[^=\n]*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)

# Stands in for Python: writes its arguments down, and with --follow waits for a signal as the pipeline does.
FAKE = """
import json, os, signal, sys
if "--follow" in sys.argv:
    def end(*_): print("ended cleanly", flush=True); sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("following", flush=True)
    signal.pause()
print(json.dumps(sys.argv[1:]))
sys.exit(int(os.environ.get("FAKE_EXIT", "0")))
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return executable(tmp_path / "python", FAKE)


def _environment(**more: str) -> dict[str, str]:
    foreign = ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"]
    foreign += ["BOOTSTRAP", "GROUP_ID", "CRASH_PROB", "FOLLOW", "READER", "SEED_COUNT"]
    return {name: value for name, value in os.environ.items() if name not in foreign} | more


def _make(*arguments: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    line, variables = ["make", *arguments], _environment(**environment)
    return subprocess.run(line, cwd=ROOT, env=variables, capture_output=True, text=True, check=check)


def _command(*arguments: str, python: Path, **environment: str) -> Any:
    return json.loads(_make("--silent", *arguments, f"PY={python}", **environment).stdout)


@pytest.mark.parametrize(
    ("arguments", "environment", "passed"),
    [
        # The programs' own defaults hold; an empty option would override them with nothing.
        ([], {"BOOTSTRAP": "", "GROUP_ID": " "}, []),
        # An outside harness sets them either way: `BOOTSTRAP=... make run-pipeline GROUP_ID=...`.
        (
            ["GROUP_ID=g"],
            {"BOOTSTRAP": "a:1,b:2", "INPUT_TOPIC": "in"},
            ["--bootstrap", "a:1,b:2", "--input", "in", "--group", "g"],
        ),
        # `local[*]` is a pattern to a shell, and a file named `local1` must not change the master.
        (["MASTER=local[*]", "GROUP_ID=it's"], {}, ["--group", "it's", "--master", "local[*]"]),
    ],
)
def test_what_is_set_reaches_the_program_as_it_is(
    python: Path, arguments: list[str], environment: dict[str, str], passed: list[str]
) -> None:
    assert _command("run-pipeline", *arguments, python=python, **environment) == ["-m", "pipeline", "run", *passed]


def test_what_the_counter_counts_by_and_whether_a_crash_run_crashes_can_be_chosen(python: Path) -> None:
    assert "--unique-by" not in _command("run-downstream", python=python)
    for target in ("run-downstream", "run-downstream-ru"):
        assert _command(target, "UNIQUE_BY=key", python=python)[-2:] == ["--unique-by", "key"]
        assert _command(target, python=python, UNIQUE_BY="source")[-2:] == ["--unique-by", "source"]
    assert _command("run-pipeline-crash", python=python)[-2:] == ["--crash-prob", "1.0"]
    assert _command("run-pipeline-crash", python=python, CRASH_PROB="0")[-2:] == ["--crash-prob", "0"]


@pytest.mark.parametrize(("value", "passed"), [("1", True), ("yes", True), ("0", False), ("", False), ("false", False)])
def test_a_flag_is_off_when_its_variable_says_so(python: Path, value: str, passed: bool) -> None:
    assert ("--transactional" in _command("seed", f"SEED_TRANSACTIONAL={value}", python=python)) is passed


@pytest.mark.parametrize(
    ("arguments", "called"),
    [
        (["lag", "INPUT_TOPIC=in"], ["lag", "--input", "in", "--group", "g"]),
        (["explain", "KEY=it's 1"], ["explain", "--group", "g", "--", "it's 1"]),
        (["explain"], ["explain", "--group", "g"]),
        (["doctor"], ["doctor", "--group", "g"]),
        (["preflight", "MASTER=none"], ["preflight", "--group", "g", "--master", "none"]),
    ],
)
def test_the_commands_that_look_are_targets(python: Path, arguments: list[str], called: list[str]) -> None:
    """A checkout's `python` is in its virtual environment: `python -m pipeline preflight` finds no module `rich`."""
    assert _command(*arguments, python=python, GROUP_ID="g") == ["-m", "pipeline", *called]


def test_a_failing_program_is_reported_with_its_own_exit_code(python: Path) -> None:
    done = _make("verify", f"PY={python}", check=False, FAKE_EXIT="3", LC_ALL="C")
    assert "verify] Error 3" in done.stderr


def test_sigterm_to_make_reaches_the_pipeline(python: Path) -> None:
    """Whoever runs `make run-pipeline FOLLOW=1` as a service stops make, and the pipeline has to end cleanly."""
    with subprocess.Popen(
        ["make", "--silent", "run-pipeline", "FOLLOW=1", f"PY={python}"],
        cwd=ROOT,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as make:
        assert make.stdout is not None
        assert make.stdout.readline() == "following\n"
        make.send_signal(signal.SIGTERM)
        assert make.stdout.read() == "ended cleanly\n"


def test_make_alone_lists_the_ten_targets_of_users_and_help_all_lists_every_target() -> None:
    """A newcomer reads it whole, on 80 columns; it names the list of all, which has the variables too."""
    output = _make().stdout
    listed = re.findall(r"^  make ([a-z-]+) +\S", output, re.MULTILINE)
    assert len(listed) == 11
    assert (listed[0], listed[-1]) == ("demo", "help-all")
    assert set(listed) <= set(TARGETS)
    assert [line for line in output.splitlines() if len(line) > 80] == []
    assert output == _make("help").stdout
    everything = "\n" + _make("help-all").stdout
    assert [target for target in TARGETS if f"\n  {target} " not in everything] == []
    assert "\n  BOOTSTRAP " in everything
    assert "ENGINE " in everything
