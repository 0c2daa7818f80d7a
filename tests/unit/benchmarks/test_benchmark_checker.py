"""The checker's benchmark: sizes, and what its runs come to; pure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from brew.errors import UsageError

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from checker import sizes_of, summed


def _run(orders: int, rate: float, peak: float) -> dict[str, Any]:
    return {
        "orders": orders,
        "records": 2 * orders,
        "records_per_s": rate,
        "cpu_s": 1.0,
        "cpu_us_per_record": 2.0,
        "peak_mib": peak,
    }


def test_the_largest_log_is_told_and_the_smallest_shows_what_grows() -> None:
    """Medians, so that one disturbed run of three decides nothing."""
    small = [_run(100, 9.0, 50.0), _run(100, 9.0, 50.0), _run(100, 1.0, 99.0)]
    large = [_run(400, 5.0, 60.0), _run(400, 4.0, 60.0), _run(400, 1.0, 99.0)]
    told = summed([*large, *small])
    assert (told["records"], told["records_per_s"], told["peak_mib"]) == (800, 4.0, 60.0)
    assert (told["times_the_records"], told["times_the_memory"]) == (4.0, 1.2)


@pytest.mark.parametrize("text", ["", "many", "0", "5,5", "5,-1"])
def test_a_size_that_is_none_is_refused_by_name(text: str) -> None:
    assert sizes_of("5,20") == [5, 20]
    with pytest.raises(UsageError, match="--orders"):
        sizes_of(text)
