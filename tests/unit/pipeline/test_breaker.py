"""The breaker: which outcomes it counts, and when it stops a run."""

from __future__ import annotations

import pytest

from pipeline.breaker import WINDOW, Breaker
from pipeline.outcome import Outcome, Status
from protocol.errors import Refused


def outcome(enriched: int, rejected: int, partition: int = 0, status: Status = Status.COMMITTED) -> Outcome:
    return Outcome(partition, 0, 1, status, 0, enriched, rejected)


def test_it_waits_for_a_full_window() -> None:
    """999 bad records are not yet a judgement, one more is."""
    breaker = Breaker(0.5)
    breaker.heed(outcome(0, WINDOW - 1))
    with pytest.raises(Refused, match=r"too-many-rejected: partition 0 rejected 1000 of its last 1000 records"):
        breaker.heed(outcome(0, 1))


def test_the_share_itself_is_allowed() -> None:
    breaker = Breaker(0.5)
    breaker.heed(outcome(500, 500))
    with pytest.raises(Refused, match=r"a share of 0\.501, --max-rejected is 0\.5"):
        breaker.heed(outcome(499, 501))


def test_what_is_older_than_the_window_is_forgotten() -> None:
    breaker = Breaker(0.5)
    for _ in range(100):
        breaker.heed(outcome(600, 0))
    breaker.heed(outcome(400, 200))
    with pytest.raises(Refused, match="rejected 800 of its last 1200"):
        breaker.heed(outcome(0, 600))


def test_partitions_are_counted_apart_and_only_what_is_committed() -> None:
    breaker = Breaker(0.1)
    for partition in range(10):
        breaker.heed(outcome(0, WINDOW - 1, partition))
    for status in set(Status) - {Status.COMMITTED}:
        breaker.heed(outcome(0, WINDOW, 0, status))
    with pytest.raises(Refused, match=r"partition 9 rejected 1000 of its last 1000"):  # all by its own records
        breaker.heed(outcome(0, 1, 9))


def test_it_says_so_once() -> None:
    """What still runs reports while the run ends; that must not break the ending."""
    breaker = Breaker(0.0)
    with pytest.raises(Refused):
        breaker.heed(outcome(0, WINDOW))
    breaker.heed(outcome(0, WINDOW))
    breaker.heed(outcome(0, WINDOW, 1))


def test_a_share_of_one_never_trips() -> None:
    Breaker(1.0).heed(outcome(0, 10 * WINDOW))
    with pytest.raises(Refused):
        Breaker(0.999).heed(outcome(0, 10 * WINDOW))
