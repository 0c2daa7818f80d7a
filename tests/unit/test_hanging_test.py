"""A hung test ends its worker, and the tests behind it run (`tests/conftest.py`); CI once waited for 90 minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
BEHIND_IT = """
@pytest.mark.parametrize("number", range(5))
def test_behind_it(number):
    assert number >= 0
"""
HANGS = """
@pytest.mark.longest(1)
def test_hangs():
    threading.Event().wait()

@pytest.fixture
def held():
    yield
    threading.Event().wait()

@pytest.mark.longest(1)
def test_fails_first(held):
    assert held is not None
"""
HANGS_ONCE = """
@pytest.mark.longest(2)
def test_hangs():
    if not (once := pathlib.Path(__file__).with_name("once")).exists():
        once.touch()
        threading.Event().wait()
"""


def ran(folder: Path, hangs: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(f"import pathlib, threading, pytest\n{hangs}{BEHIND_IT}")
    words = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-n1", "-c", "/dev/null"]
    words += [*options, "--rootdir", str(folder), str(folder)]
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_hung_test_ends_with_its_stacks_and_others_go_on(tmp_path: Path) -> None:
    """Also in a fixture's end behind a failure: pytest calls `faulthandler`'s timer off there."""
    completed = ran(tmp_path, HANGS)
    assert completed.returncode == 1, completed.stdout + completed.stderr
    assert "3 failed, 5 passed" in completed.stdout
    for name, where in (("test_hangs", "in test_hangs"), ("test_fails_first", "in held")):
        assert f"crashed while running 'test_it.py::{name}'" in completed.stdout
        assert where in completed.stderr
    assert completed.stderr.count("Timeout (0:00:01)") == 2


def test_a_test_that_hangs_once_passes_in_its_second_try_where_one_is_asked_for(tmp_path: Path) -> None:
    """As CI asks; the summary names it, and says how its first attempt failed."""
    completed = ran(tmp_path, HANGS_ONCE, "--reruns", "1", "-rR")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "6 passed, 1 rerun" in completed.stdout
    assert "RERUN test_it.py::test_hangs" in completed.stdout
    summary = completed.stdout.partition("first attempts that failed")[2]
    assert "test_it.py::test_hangs failed: worker 'gw0' crashed" in summary


def test_what_a_test_left_open_is_named_in_its_line(tmp_path: Path) -> None:
    """Several at once are an ExceptionGroup, whose text counts them only."""
    unclosed = "def test_it():\n    for _ in range(2):\n        open('/dev/null')\n"
    completed = ran(tmp_path, unclosed, "-W", "error")
    line = next(line for line in completed.stdout.splitlines() if "call of test_it.py::test_it failed" in line)
    assert line.count("ResourceWarning: unclosed file <_io.TextIOWrapper name='/dev/null'") == 2, completed.stdout
