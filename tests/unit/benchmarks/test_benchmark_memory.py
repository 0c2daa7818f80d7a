"""Memory that is touched before a run: each page of it, and none is kept."""

from __future__ import annotations

import mmap
import resource
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "benchmarks")]

import environment as memory  # noqa: E402 - the benchmarks are programs, no package

SIZE = 64 * 1024 * 1024


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_each_page_is_touched_and_given_back() -> None:
    before, own = faults(), psutil.Process().memory_info().rss
    assert memory.touch(SIZE) > 0
    assert faults() - before >= SIZE // mmap.PAGESIZE
    assert psutil.Process().memory_info().rss - own < SIZE // 2


def test_no_more_than_half_of_what_is_available_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=SIZE))
    before = faults()
    memory.touch(100 * SIZE)
    assert faults() - before < SIZE // mmap.PAGESIZE
