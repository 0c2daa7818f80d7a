"""A hung test ends its worker, and the tests behind it run (`tests/conftest.py`); CI once waited for 90 minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILE = """
import threading, pytest

@pytest.mark.longest(1)
def test_hangs():
    threading.Event().wait()

def test_behind_it():
    assert True
"""
FAILS_FIRST = """
import threading, pytest

@pytest.fixture
def held():
    yield
    threading.Event().wait()

@pytest.mark.longest(1)
def test_hangs(held):
    assert held is not None

def test_behind_it():
    assert True
"""


@pytest.mark.parametrize(("file", "failed", "where"), [(FILE, 1, "in test_hangs"), (FAILS_FIRST, 2, "in held")])
def test_a_test_that_hangs_is_ended_with_its_stacks_and_the_others_go_on(
    tmp_path: Path, file: str, failed: int, where: str
) -> None:
    """Also in a fixture's end behind a failure: pytest calls `faulthandler`'s timer off there."""
    (tmp_path / "test_it.py").write_text(file)
    words = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-n1", "-c", "/dev/null"]
    ran = subprocess.run(
        [*words, "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"{failed} failed, 1 passed" in ran.stdout
    assert "crashed while running 'test_it.py::test_hangs'" in ran.stdout
    assert "Timeout (0:00:01)" in ran.stderr
    assert where in ran.stderr
