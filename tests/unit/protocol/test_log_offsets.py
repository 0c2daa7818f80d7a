"""Offsets of a log while its leader changes: an answer without an offset is asked again, never taken for one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.kafka.offsets import log_offsets
from brew.offsets import LogOffsets


class _Leaders:
    """Answers `list_offsets` with the next of ``offsets``, the last one for good."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = list(offsets)
        self.asked = 0

    def list_offsets(self, wanted: dict[Any, Any], **_more: Any) -> dict[Any, Any]:
        self.asked += 1
        offset = self._offsets.pop(0) if len(self._offsets) > 1 else self._offsets[0]
        return {tp: SimpleNamespace(result=lambda: SimpleNamespace(offset=offset)) for tp in wanted}


def test_an_answer_without_an_offset_is_asked_again() -> None:
    """-1001 came back for the end of a log whose leader had just died: it read as a truncated log."""
    leaders: Any = _Leaders(0, 700, -1001, 0, 700, 705)
    assert log_offsets(leaders, "orders", [1], Deadline(5)) == {1: LogOffsets(0, 700, 705)}
    assert leaders.asked == 6


def test_a_leader_that_never_names_an_offset_ends_with_the_deadline() -> None:
    leaders: Any = _Leaders(-1001)
    with pytest.raises(DeadlineExceeded, match=r"the leader of partitions \[1\] has none yet"):
        log_offsets(leaders, "orders", [1], Deadline(0.1))
