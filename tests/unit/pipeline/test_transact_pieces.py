"""The kernel waits for what is queued before a second batch could get ready, and others work meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.fakes import Broker, FakeTransaction

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.offsets import OffsetRange
from brew.outcome import Outcome
from brew.range_transaction import Rows, Targets, transact_range
from brew.settings import Limits
from pipeline.orders import enricher


class Slow(FakeTransaction):
    """The second wait finds no acknowledgement."""

    def settle(self, deadline: Deadline) -> None:
        if self.settled:
            raise DeadlineExceeded("produce: 1 records undelivered after 5 s")
        super().settle(deadline)


def run(kafka: FakeTransaction, count: int, size: int, waits: list[int]) -> Outcome:
    @contextmanager
    def aside() -> Iterator[None]:
        before = len(kafka.settled)
        yield
        waits.append(len(kafka.settled) - before)

    value = b'{"customer_id":"c","note":"%s"}' % (b"x" * size)
    rows = Rows(list(range(count)), [b"gold-1"] * count, [value] * count, [None] * count, [7] * count)
    enrich, targets = enricher(Limits(max_bytes=3_000_000)), Targets("out", "dead", 2, 2)
    offered = OffsetRange("in", 2, 0, count)
    return transact_range([rows], offered, targets, enrich, kafka, Deadline(20), first_time=True, aside=aside)


@pytest.mark.parametrize(("count", "size", "most"), [(6000, 60, 2500), (300, 10_240, 62), (3, 2_000_000, 1)])
def test_what_is_queued_is_acknowledged_before_it_fills_a_second_batch(count: int, size: int, most: int) -> None:
    """A batch that is ready and may not be sent yet has librdkafka's thread poll without pause."""
    kafka, waits = FakeTransaction(Broker(), queue=10_000), list[int]()

    run(kafka, count, size, waits)

    assert sum(kafka.settled) == count
    assert max(kafka.settled) == most
    assert waits == [1] * len(kafka.settled), "each wait is one in which others may have the turn"


def test_a_piece_without_an_acknowledgement_makes_nothing_visible() -> None:
    broker = Broker()

    with pytest.raises(DeadlineExceeded, match="undelivered"):
        run(Slow(broker, queue=10_000), 6000, 60, [])

    assert broker.sources() == []
    assert broker.committed is None
