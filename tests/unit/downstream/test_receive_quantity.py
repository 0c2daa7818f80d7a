"""A quantity that is none gives no points, and somebody hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from downstream.consume.handler import HandlerContext, PartitionBatch
from downstream.receive.check import CheckResult
from downstream.receive.receiver import BAD_QUANTITY, Message, Receiver, ReceiverSettings, identifier, points_grant


@pytest.mark.parametrize(
    ("quantity", "points"),
    [
        (b"1", 1),
        (b"2147483647", 2**31 - 1),
        *((bad, 0) for bad in (b"0", b"-3", b"2147483648", b"1.5", b'"3"', b"true", b"null", b"[]")),
    ],
)
def test_only_a_whole_number_of_cups_gives_points(quantity: bytes, points: int) -> None:
    """The first and the last good one, and what lies beyond; a bad one is no point, and says why."""
    found = points_grant(b'{"customer_id":"c-1","quantity":%b}' % quantity)
    assert (found.customer, found.points) == ("c-1", points)
    assert bool(found.refused) is (points == 0)


def test_an_order_without_a_quantity_is_one_cup() -> None:
    """As ever: the field may be left out."""
    assert points_grant(b'{"customer_id":"c-1"}') == ("c-1", 1, "")


class Remembers(Receiver):
    def claim(self, found: Sequence[Message], context: HandlerContext) -> int:  # noqa: ARG002 - the shape of a receiver
        self.found = list(found)
        return len(found)


def test_a_bad_quantity_is_counted_and_told() -> None:
    """Its message is claimed like all others, so that it is not looked at for ever."""
    told: list[str] = []
    counted: list[tuple[str, int]] = []
    receiver = Remembers(ReceiverSettings("g", "out", identifier("field:order_id"), tell=told.append))
    receiver.rejected = lambda reason, records: counted.append((reason, records))
    values = [b'{"order_id":"o-%d","customer_id":"c-1","quantity":%d}' % (n, n - 1) for n in range(3)]
    records = [SimpleNamespace(value=lambda one=one: one, headers=lambda: None) for one in values]
    context = SimpleNamespace(check=lambda _partition: None, report=lambda _positions: None)
    slices = [SimpleNamespace(partition=0, records=records, until=3)]
    receiver.handle(cast("list[PartitionBatch]", slices), cast("Any", context))
    assert [one.points for one in receiver.found] == [0, 0, 1]
    assert (receiver.received.rejected, counted) == (2, [(BAD_QUANTITY, 2)])
    assert [one.split(" gives")[0] for one in told] == ["message order_id:o-0", "message order_id:o-1"]


def test_the_check_names_what_was_rejected_and_calls_no_promise_broken() -> None:
    """One effect for each message still holds; a balance that upstream spoiled is told."""
    checked = CheckResult(messages=1, effects=1)
    checked.reject("order_id:o-1", "quantity is '-3'")
    assert (checked.document()["verdict"], checked.document()["rejected"]) == ("proven", 1)
    assert "bad-quantity: message order_id:o-1 gives no points: quantity is '-3'" in checked.text()
