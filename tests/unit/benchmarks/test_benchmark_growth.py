"""How long a process of the direct reader ran no transaction, from its journal."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[3] / "benchmarks")]

from growth import longest_pause_s, median_ratio  # noqa: E402 - the benchmarks are programs, no package

from brew.journal import Entry, Phase, Step  # noqa: E402


def fence(at: float, pid: int = 7) -> Entry:
    return Entry(at, "writer", pid, Step.FENCE, Phase.INTENT, {})


def outcome(at: float, pid: int = 7) -> Entry:
    return Entry(at, "writer", pid, Step.OUTCOME, Phase.DONE, {})


def test_the_longest_time_between_two_transactions_of_one_process_counts() -> None:
    """Time before the first and behind the last is none; nor is that of another process."""
    lines = [fence(1), outcome(2), fence(2.5), outcome(4), fence(5), outcome(6), fence(20, pid=8), outcome(21, pid=8)]
    assert longest_pause_s(lines) == 1


def test_transactions_that_overlap_leave_no_pause() -> None:
    assert longest_pause_s([fence(1), fence(2), outcome(3), fence(3.5), outcome(9), outcome(9.5)]) == 0


def test_an_attempt_that_ended_before_its_fence_is_none() -> None:
    assert longest_pause_s([outcome(1), fence(3), outcome(4)]) == 2


def test_the_middle_pair_counts_not_the_mean() -> None:
    pairs = [{"case": {"mb_per_s": ours}, "base": {"mb_per_s": base}} for ours, base in ((9, 10), (1, 10), (30, 10))]
    assert median_ratio(pairs) == 0.9
