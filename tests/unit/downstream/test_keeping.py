"""How long claims are kept: longer than their topic can hand a record out."""

from __future__ import annotations

import pytest

from brew.errors import Refused, UsageError
from downstream.receive.postgres import ClaimRetention, TopicRetention

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
