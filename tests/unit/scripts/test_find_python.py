"""Which Python `make setup` makes the environment with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from harness.commands import executable
from harness.pages import ROOT

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
