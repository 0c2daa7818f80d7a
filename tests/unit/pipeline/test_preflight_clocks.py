"""Preflight's look at two clocks."""

from __future__ import annotations

import pytest

from brew.cluster import Unknown
from brew.kafka.cluster_details import ahead_s
from brew.preflight.finding import Severity
from brew.preflight.timeouts import skew


@pytest.mark.parametrize(
    ("told", "severity"),
    [
        (0.0, Severity.OK),
        (1.0, Severity.OK),
        (-1.0, Severity.OK),
        (1.001, Severity.WARNING),
        (-1.001, Severity.WARNING),
        (Unknown("old"), Severity.UNKNOWN),
    ],
)
def test_clocks_that_differ_by_more_than_a_second_are_warned_of(told: float | Unknown, severity: Severity) -> None:
    """No run is refused over them: they make ages wrong, and nothing comes twice."""
    assert skew(told).severity is severity
    assert ("ahead" in skew(75.0).value, "behind" in skew(-75.0).value) == (True, True)


@pytest.mark.parametrize(
    ("there_ms", "told"), [(99_999, 0.0), (100_000, 0.0), (100_400, 0.0), (100_500, 0.1), (98_999, -1.0)]
)
def test_a_clock_is_ahead_or_behind_only_outside_of_question_and_answer(there_ms: int, told: float) -> None:
    """The way there and back is not mistaken for a wrong clock; milliseconds are cut off there."""
    assert ahead_s(there_ms, 100.0, 100.4) == pytest.approx(told)
