"""Where patterns without a position of their own read on, and what a thread beside them means to the loop."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brew.errors import Refused
from brew.offsets import Committed
from downstream.consume.handler import AssignedPartition, HandlerContext, metadata, start, topic_id_in
from downstream.receive import command
from downstream.receive.receiver import BackgroundThread, Receiver, ReceiverSettings, identifier

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
