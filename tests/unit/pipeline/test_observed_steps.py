"""A transaction's steps are measured, whatever becomes of it, and records cost nothing."""

from __future__ import annotations

import itertools

import pytest
from harness.fakes import Broker, FakeTransaction

from brew.attempt import TimedTransaction
from brew.deadline import Deadline
from brew.errors import Abortable, Fenced, KafkaFailure
from brew.names import STEPS
from brew.offsets import OffsetRange
from brew.range_transaction import Rows, Targets, transact_range

RANGE = OffsetRange("in", 0, 0, 3)
TARGETS = Targets("out", "dlq", 0, 0)
ROWS = Rows([0, 1, 2], [None] * 3, [b"a", b"b", b"c"], [None] * 3, [0] * 3)


def timed(fake: FakeTransaction) -> TimedTransaction:
    """Each look at the clock is a second later than the one before."""
    ticks = itertools.count()
    return TimedTransaction(fake, lambda: float(next(ticks)))


def attempt(kafka: TimedTransaction) -> None:
    transact_range([ROWS], RANGE, TARGETS, lambda _key, value: value, kafka, Deadline(5), first_time=True)


def test_the_six_steps_are_measured_in_their_order() -> None:
    kafka = timed(FakeTransaction(Broker()))
    attempt(kafka)
    assert tuple(kafka.steps) == STEPS
    assert kafka.steps == dict.fromkeys(STEPS, 1.0)


@pytest.mark.parametrize(
    ("step", "error", "measured"),
    [
        ("fence", Fenced("x"), ["fence"]),
        ("produce", Abortable("x"), ["fence", "locate", "begin", "produce", "abort"]),
        ("send-offsets", Abortable("x"), ["fence", "locate", "begin", "produce", "send-offsets", "abort"]),
        ("commit", Abortable("x"), [*STEPS]),
    ],
)
def test_a_step_that_fails_is_measured_too(step: str, error: KafkaFailure, measured: list[str]) -> None:
    """What takes long before it fails is what people look for; the last one told is where it ended."""
    kafka = timed(FakeTransaction(Broker(), (step, error)))
    with pytest.raises(type(error)):
        attempt(kafka)
    assert list(kafka.steps) == measured


def test_times_are_told_in_microseconds_and_there_is_none_of_producing_without_a_begin() -> None:
    ticks = (n * 0.12345678 for n in range(20))
    kafka = TimedTransaction(FakeTransaction(Broker()), lambda: next(ticks))
    kafka.fence(Deadline(5))
    kafka.begin()
    kafka.flush(Deadline(5))
    assert kafka.steps == dict.fromkeys(["fence", "begin", "produce"], 0.123457)
    kafka = TimedTransaction(FakeTransaction(Broker()))
    kafka.fence(Deadline(5))
    kafka.abort(Deadline(5))
    assert list(kafka.steps) == ["fence", "abort"]


def test_a_record_goes_by_unseen() -> None:
    """The kernel calls the client's own function: nothing of ours stands in the hot loop."""
    fake = FakeTransaction(Broker())
    assert timed(fake).produce == fake.produce
