"""Receivers: quantities, how long claims are kept, threads beside the loop, where to read on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brew.errors import Refused, UsageError
from brew.offsets import Committed
from downstream.consume.handler import AssignedPartition, HandlerContext, PartitionBatch, metadata, start, topic_id_in
from downstream.receive import command
from downstream.receive.check import CheckResult
from downstream.receive.postgres import ClaimRetention, TopicRetention
from downstream.receive.receiver import (
    BAD_QUANTITY,
    BackgroundThread,
    Message,
    Receiver,
    ReceiverSettings,
    identifier,
    points_grant,
)

LEASE = cast("HandlerContext", None)


def _seat(committed: int | None, topic_id: str | None = None) -> AssignedPartition:
    return AssignedPartition("t", "id", 3, committed, 10, 90, topic_id)


def test_reading_goes_on_at_the_groups_offset_or_begins_at_the_logs_first() -> None:
    """Also where others have set the offset, who say nothing of a topic."""
    assert [start(_seat(at)) for at in (None, 10, 90)] == [10, 10, 90]
    assert start(_seat(50, topic_id_in(Committed(50, metadata("id"))))) == 50
    assert start(_seat(50, topic_id_in(Committed(50, "")))) == 50


def test_an_offset_that_is_none_of_this_log_is_refused() -> None:
    """Of a topic that was made again, an offset below the new log's end would skip records without a word."""
    with pytest.raises(Refused, match=r"^topic-recreated: .* id other, .* now is id;"):
        start(_seat(50, topic_id_in(Committed(50, metadata("other")))))
    with pytest.raises(Refused, match=r"^input-lost: .* left at 9,"):
        start(_seat(9, "id"))


class Broken(BackgroundThread):
    """Ends at once."""

    def __init__(self) -> None:
        super().__init__("broken", 1)

    def round(self) -> bool:
        raise Refused("the outbox's table is gone")

    def drain(self, _deadline: object) -> None: ...


def _receiver() -> Receiver:
    return Receiver(ReceiverSettings("g", "t", identifier("source")))


def test_a_thread_beside_the_receiver_does_not_end_in_silence() -> None:
    """Else a program that follows would go on claiming messages whose requests nobody sends."""
    receiver, broken = _receiver(), Broken()
    receiver.background.append(broken)
    with contextlib.suppress(Refused):  # it may have ended by now
        receiver.tick(LEASE)
    broken._thread.join(5)
    with pytest.raises(Refused, match="table is gone"):
        receiver.tick(LEASE)


def test_the_command_listens_to_the_thread_that_delivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """From before the loop begins."""
    receiver, broken = _receiver(), Broken()

    def consume(
        _name: str, _settings: object, handler: Receiver, _given: object, stop: threading.Event, _: object
    ) -> str:
        assert handler.background == [broken]
        stop.set()
        return "consumed"

    monkeypatch.setattr(command, "consume", consume)
    settings = cast("Any", SimpleNamespace(follow=False))
    assert command._run(settings, receiver, cast("Any", broken), {}) == "consumed"


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


DAY = 86_400.0


def test_claims_have_to_outlive_retention_and_segment_together() -> None:
    """A segment's first record stays until its last one is old: the last bad and the first good day."""
    kept = TopicRetention(7 * DAY, 3 * DAY)
    with pytest.raises(
        Refused, match=r"for 10 days, and 't' keeps .* 10 days \(retention.ms 7 days, segment.ms 3 days\)"
    ):
        ClaimRetention.longer_than(10, kept, "t")
    assert ClaimRetention.longer_than(10.5, kept, "t").keep_s == 10.5 * DAY


def test_records_that_stay_for_ever_need_claims_that_do() -> None:
    """0 days stand for that."""
    for_ever = TopicRetention(None, 3 * DAY)
    with pytest.raises(Refused, match="give 0 to keep claims for ever"):
        ClaimRetention.longer_than(9999, for_ever, "t")
    assert ClaimRetention.longer_than(0, for_ever, "t").keep_s is None
    with pytest.raises(UsageError):
        ClaimRetention.longer_than(-1, for_ever, "t")
