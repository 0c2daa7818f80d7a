"""Statistics of the benchmark; pure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from runs import Spread, delays_ms, marginal, percentile, ratio, rounds


def test_everybody_is_first_as_often_as_last() -> None:
    """The order turns round with each round."""
    assert rounds(["a", "b", "c"], 3, paired=False) == [
        (1, ["a", "b", "c"]),
        (2, ["c", "b", "a"]),
        (3, ["a", "b", "c"]),
    ]


def test_a_paired_contender_runs_beside_each_other_one() -> None:
    """Rounds of two with numbers of their own, turned round at each repetition."""
    assert rounds(["a", "b", "c"], 2, paired=True) == [
        (1, ["a", "b"]),
        (2, ["a", "c"]),
        (3, ["b", "a"]),
        (4, ["c", "a"]),
    ]


def test_a_ratio_is_taken_round_by_round() -> None:
    """A machine that was half as fast in round 2 halves both; rounds of one alone, and a peer's 0, don't count."""
    found = ratio({1: 200.0, 2: 100.0, 3: 330.0, 9: 5.0, 10: 1.0}, {1: 100.0, 2: 50.0, 3: 110.0, 8: 7.0, 10: 0.0})
    assert found == Spread(2.0, 2.0, 3.0, 3)
    assert found.text(".2f") == "2.00 (2.00-3.00)"
    assert ratio({1: 1.0}, {2: 1.0}) is None


def test_one_round_has_no_range() -> None:
    """A range of one value would look like a measured one."""
    assert Spread.of([1.5]) == Spread(1.5, 1.5, 1.5, 1)
    assert Spread(1.5, 1.5, 1.5, 1).text(".1f") == "1.5"
    assert Spread.of([]) is None


def test_the_start_falls_out_of_the_price_of_one_more_record() -> None:
    """3 s of start, then 5 us a record: 8 s for a million and 23 s for four."""
    assert marginal((1_000_000, 8.0), (4_000_000, 23.0)) == pytest.approx(5e-6)
    with pytest.raises(ValueError, match="more records than 4000"):
        marginal((4000, 1.0), (4000, 2.0))


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(share: float, expected: float) -> None:
    """Nearest rank over 1 to 100, in any order."""
    assert percentile([float(n) for n in range(100, 0, -1)], share) == expected


def test_a_percentile_of_nothing_is_refused() -> None:
    """And so is a share that none has."""
    for values, share in (([], 0.5), ([1.0], 0.0), ([1.0], 1.1)):
        with pytest.raises(ValueError, match="a percentile needs"):
            percentile(values, share)


def test_delays_leave_the_warm_up_out_and_nothing_else() -> None:
    """What was sent before the moment does not count; what was never received is an error, not a short list."""
    sent = {b"a": 1.0, b"b": 2.0, b"c": 3.0}
    assert delays_ms(sent, {b"a": 9.0, b"b": 2.5, b"c": 3.25, b"waiting": 0.5}, since=2.0) == [500.0, 250.0]
    with pytest.raises(ValueError, match="1 of 3"):
        delays_ms(sent, {b"a": 9.0, b"b": 2.5}, since=2.0)
