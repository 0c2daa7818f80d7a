"""What is said of brokers that do not answer, on a clock that the test moves."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from brew.kafka.broker_watch import Outage

NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def outage(patience_s: float | None = 120.0) -> Outage:
    return Outage("k:9092", "the run waits", patience_s)


def test_an_outage_is_said_once_when_it_begins_and_once_when_it_is_over() -> None:
    """With what waits, until when, and how long it lasted."""
    one = outage()
    assert one.answered(100.0) is None
    assert one.silent(104.0, NOON) == (
        "brokers-away: k:9092 has not answered for 4 s; the run waits, at least until 12:01:56 UTC (120 s)"
    )
    assert [one.silent(at, NOON) for at in (105.0, 120.0, 135.0)] == [None] * 3
    assert one.answered(136.0) == "brokers-back: k:9092 answers again; it was away for 36 s"
    assert [one.answered(at) for at in (138.0, 140.0)] == [None] * 2


def test_a_second_outage_is_said_again() -> None:
    """Its length counts from the last answer before it."""
    one = outage()
    one.answered(0.0)
    one.silent(4.0)
    one.answered(10.0)
    told = one.silent(30.0, NOON)
    assert told is not None
    assert "has not answered for 20 s" in told
    assert one.answered(40.0) == "brokers-back: k:9092 answers again; it was away for 30 s"


def test_brokers_that_never_answered_are_refused_elsewhere_and_not_said_to_be_away() -> None:
    """The program's own first question ends it with what to do."""
    one = outage()
    assert [one.silent(at) for at in (0.0, 100.0)] == [None, None]
    assert one.answered(101.0) is None


@pytest.mark.parametrize(("silent_s", "until"), [(119.0, "12:00:01"), (120.0, "12:00:00"), (500.0, "12:00:00")])
def test_the_time_of_giving_up_is_never_one_that_has_passed(silent_s: float, until: str) -> None:
    """A machine that slept finds out late."""
    one = outage()
    one.answered(0.0)
    assert f"until {until} UTC" in (one.silent(silent_s, NOON) or "")


def test_who_waits_for_ever_says_so() -> None:
    """A member of a group has no limit of its own."""
    one = outage(None)
    one.answered(0.0)
    assert (one.silent(4.0) or "").endswith("the run waits, until it answers or this program is stopped")
