"""What programs leave on this machine for the live view."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brew.deadline import Deadline
from brew.observability import local
from brew.observability.local import announced, announced_urls, folder, remember_verdict, verdict_file
from operations.ui.sources import ProofSource

TOPICS = ("in", "out", "dead")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_run_is_found_while_it_lasts() -> None:
    with announced("http://127.0.0.1:4711"):
        assert announced_urls() == ["http://127.0.0.1:4711/status"]
    assert announced_urls() == []
    assert list(folder().iterdir()) == []


def test_what_a_killed_run_left_is_removed_by_who_looks() -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = folder() / f"status-{int(done.stdout)}.json"
    left.parent.mkdir(parents=True)
    left.write_text('{"url": "http://127.0.0.1:1/status"}')
    (folder() / f"status-{os.getpid()}.json").write_text("broken")
    assert announced_urls() == []
    assert not left.exists()


def test_the_last_verdict_is_found_by_who_looks_at_the_same() -> None:
    """Another group, cluster or topic has none; localhost is this machine."""
    source = ProofSource(verdict_file("127.0.0.1:9092", "g", TOPICS), optional=True)
    assert source.ask(Deadline(1)) is None
    document = {"verdict": "proven", "inputs": 3, "outputs": 3, "dead_letters": 0}
    remember_verdict("localhost:9092", "g", TOPICS, document)
    proof = source.ask(Deadline(1))
    assert (proof.mark, proof.lines[0]) == ("proven", "3 inputs = 3 outputs + 0 dead letters")
    assert ProofSource(verdict_file("127.0.0.1:9092", "other", TOPICS), optional=True).ask(Deadline(1)) is None


def test_old_verdicts_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_MOST_VERDICTS", 3)
    for number in range(6):
        remember_verdict("k:1", f"g{number}", TOPICS, {})
        os.utime(verdict_file("k:1", f"g{number}", TOPICS), (number, number))
    remember_verdict("k:1", "last", TOPICS, {})
    assert len(list(folder().iterdir())) == 3
    assert verdict_file("k:1", "last", TOPICS).exists()


def test_who_cannot_write_there_goes_on_without(cache: Path) -> None:
    (cache / "brew").write_text("a file where a folder should be")
    with announced("http://127.0.0.1:1"):
        assert announced_urls() == []
    remember_verdict("k:1", "g", TOPICS, {})
