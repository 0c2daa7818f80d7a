"""The Makefile: what it hands to the programs, what it tells, and what `make setup` finds and leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.commands import executable
from harness.pages import ROOT
from harness.waiting import has_ended, until

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


@pytest.mark.parametrize(("value", "passed"), [("1", True), ("yes", True), ("0", False), ("", False), ("False", False)])
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


@pytest.mark.parametrize(
    ("target", "variable"),
    [
        *(("run-ledger", "DATABASE_URL"), ("run-receive", "DATABASE_URL"), ("run-receive", "REDIS_URL")),
        *(("run-receive", "EFFECT_URL"), ("run-call", "CALL_URL")),
    ],
)
def test_an_address_is_on_no_command_line(target: str, variable: str) -> None:
    """Every user of the machine can read it there, with its password; the program reads its environment."""
    called = _make("--dry-run", "--assume-old=setup", target, **{variable: "http://user:sesame@host/"}).stdout
    assert f"-m downstream {target.removeprefix('run-')} " in called
    assert "sesame" not in called


def test_no_campaign_counts_or_deletes_the_results_of_another() -> None:
    """`make prove-all` goes on where it stopped, and does not take five kills of `make prove` for its hundred."""
    old = ("--assume-old=setup", "--assume-old=setup-stores")
    lines = {target: _make("--dry-run", *old, target).stdout for target in ("prove", "prove-all", "soak")}
    folders = {target: re.findall(r"--out '([^']*)'", line) for target, line in lines.items()}
    assert folders == {"prove": [], "prove-all": ["proof-results/all"], "soak": ["proof-results/soak"]}


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


# Makes nothing, and hangs where the broker's archive would be made.
PYTHON = """
if [[ $* == "-m sandbox archive" ]]; then echo $$ > archiving.new; mv archiving.new archiving; exec sleep 60; fi
"""


def test_ctrl_c_ends_what_runs_beside_and_stamps_nothing_that_was_not_made(tmp_path: Path) -> None:
    """The archives are made in the background, where bash ignores SIGINT: they went on, and were stamped as made."""
    executable(tmp_path / "scripts/setup.sh", (ROOT / "scripts/setup.sh").read_text(), "/bin/bash")
    executable(tmp_path / ".venv/bin/python", PYTHON, "/bin/bash")
    (tmp_path / "brew/jvm").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "brew/jvm/jars.lock", "scripts/archive.py"):
        (tmp_path / name).touch()
    with (tmp_path / "output").open("w") as output:
        line = ["bash", "scripts/setup.sh"]
        setup = subprocess.Popen(line, cwd=tmp_path, stdout=output, stderr=output, start_new_session=True)
    try:
        until((tmp_path / "archiving").exists, "the archive is being made", 20)
        archiving = int((tmp_path / "archiving").read_text())
        os.killpg(setup.pid, signal.SIGINT)
        assert setup.wait(20) != 0
        until(lambda: has_ended(archiving), "what made it has ended", 20)
    finally:
        setup.kill()
    assert not (tmp_path / ".jvm/.archive-stamp").exists()
    assert (tmp_path / ".jvm/.stamp").exists()


# Makes an environment as `python -m venv` does it: a link that is there already is kept, unless all is cleared.
MAKES_VENV = """
if [[ $* == "-m venv --clear .venv" ]]; then rm -rf .venv; fi
mkdir -p .venv/bin
[[ -L .venv/bin/python ]] || ln -s "$0" .venv/bin/python
"""


@pytest.mark.parametrize("left", ["exit 1", None], ids=["interrupted before it had pip", "its Python is gone"])
def test_an_environment_that_does_not_work_is_made_again(tmp_path: Path, left: str | None) -> None:
    """`make` said "No module named pip", or "No such file or directory", until somebody removed .venv by hand."""
    executable(tmp_path / "scripts/setup.sh", (ROOT / "scripts/setup.sh").read_text(), "/bin/bash")
    made = executable(tmp_path / "python", MAKES_VENV, "/bin/bash")
    executable(tmp_path / "scripts/find-python.sh", f"echo {made}", "/bin/bash")
    (tmp_path / "brew/jvm").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "brew/jvm/jars.lock", "scripts/archive.py"):
        (tmp_path / name).touch()
    line = ["bash", "scripts/setup.sh"]
    assert subprocess.run(line, cwd=tmp_path, check=False, timeout=60).returncode == 0
    (python := tmp_path / ".venv/bin/python").unlink()
    if left is None:
        python.symlink_to(tmp_path / "gone")
    else:
        executable(python, left, "/bin/bash")
        (tmp_path / ".venv/.stamp").unlink()
    assert subprocess.run(line, cwd=tmp_path, check=False, timeout=60).returncode == 0
    assert python.resolve() == made


def test_the_archives_of_another_folder_are_made_again(tmp_path: Path) -> None:
    """A JVM ignores an archive whose class path is another one, as after a move, and starts slowly without a word."""
    here, there = tmp_path / "here", tmp_path / "there"
    executable(here / "scripts/setup.sh", (ROOT / "scripts/setup.sh").read_text(), "/bin/bash")
    made = executable(tmp_path / "python", MAKES_VENV, "/bin/bash")
    executable(here / "scripts/find-python.sh", f"echo {made}", "/bin/bash")
    executable(here / "scripts/archive.sh", "echo made >>archives-made", "/bin/bash")
    (here / "brew/jvm").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt", "brew/jvm/jars.lock", "scripts/archive.py"):
        (here / name).touch()

    def times(folder: Path) -> int:
        assert subprocess.run(["bash", "scripts/setup.sh"], cwd=folder, check=False, timeout=60).returncode == 0
        return len((folder / "archives-made").read_text().split())

    assert [times(here), times(here)] == [1, 1]
    shutil.copytree(here, there, symlinks=True)
    assert [times(there), times(there)] == [2, 2]


SCRIPT = ROOT / "scripts/find-python.sh"
QUICK, SLOW, TOO_OLD = 0, 10, 1


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "bash").symlink_to("/bin/bash")
    return tmp_path


def _python(home: Path, name: str, judged: int) -> str:
    """Stands in for an interpreter: what it says of itself is its exit code."""
    return str(executable(home / name, f"exit {judged}", "/bin/sh"))


def _found(home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment, line = {"PATH": str(home), **more}, ["/bin/bash", str(SCRIPT)]
    return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("first", "second", "warned"), [(SLOW, QUICK, False), (TOO_OLD, SLOW, True)])
def test_an_optimised_build_is_taken_before_an_earlier_one(home: Path, first: int, second: int, warned: bool) -> None:
    """A pyenv's is often first on PATH and not optimised; where there is no other, a slow build is taken and told."""
    _python(home, "python3", first)
    taken = _python(home, "python3.12", second)
    done = _found(home)
    assert (done.stdout.strip(), done.returncode, bool(done.stderr)) == (taken, 0, warned)
    assert ("built without --enable-optimizations" in done.stderr) is warned


def test_what_the_user_names_is_taken_as_it_is(home: Path) -> None:
    """A real interpreter is asked the question itself."""
    _python(home, "python3", QUICK)
    for named in (_python(home, "mine", SLOW), sys.executable):
        assert _found(home, PYTHON=named).stdout.strip() == named


@pytest.mark.parametrize("named", [True, False])
def test_without_a_python_that_will_do_it_says_what_to_do(home: Path, named: bool) -> None:
    old = _python(home, "python3", TOO_OLD)
    done = _found(home, **({"PYTHON": old} if named else {}))
    assert (done.stdout, done.returncode) == ("", 3)
    assert "Python 3.11 or later with ensurepip" in done.stderr
    assert "PYTHON" in done.stderr
    assert not named or old in done.stderr


@pytest.mark.parametrize(
    ("configured", "prefix", "version", "judged"),
    [
        ("'--enable-shared'", "/home/somebody/.pyenv", (3, 11), SLOW),
        ("'--enable-shared' '--enable-optimizations'", "/home/somebody/.pyenv", (3, 11), QUICK),
        ("'--enable-shared'", "/usr", (3, 11), QUICK),
        (None, "/opt", (3, 13), SLOW),
        ("'--enable-optimizations'", "/usr", (3, 10), TOO_OLD),
    ],
)
def test_an_interpreter_is_judged_by_what_it_tells_of_its_build(
    configured: str | None, prefix: str, version: tuple[int, int], judged: int
) -> None:
    code = (
        "import runpy, sys, sysconfig\n"
        f"sys.base_prefix, sys.version_info = {prefix!r}, {version!r}\n"
        f"sysconfig.get_config_var = {{'CONFIG_ARGS': {configured!r}}}.get\n"
        f"runpy.run_path({str(SCRIPT.with_name('judge_python.py'))!r})\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == judged


def test_a_story_knows_nothing_of_the_cluster_and_the_runs_that_other_commands_are_for(tmp_path: Path) -> None:
    """
    Its broker has no TLS: with somebody's --client-config, no command would reach it; nor with a function.

    `make setup` makes an archive with a run: in `make run-pipeline FOLLOW=1`, that followed for ever.
    """
    (tmp_path / "brew.toml").write_text('[common]\ninput = "mine"\n')
    names = ("BREW_CLIENT_CONFIG", "BREW_CONFIG", "TRANSFORM", "ALSO_OUTPUT", "MASTER", "FOLLOW", "INPUT_TOPIC")
    mine = dict.fromkeys(names, "mine")
    line = f"source {ROOT}/scripts/story.sh; env; exec {sys.executable} -m pipeline config show"
    environment = _environment(**mine, PYTHONPATH=str(ROOT))
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert re.findall("[= ]mine", done.stdout) == []
