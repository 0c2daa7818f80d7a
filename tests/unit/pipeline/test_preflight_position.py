"""What the checks before a run say of the group's position; pure."""

from __future__ import annotations

import pytest

from brew.offsets import Committed, LogOffsets
from brew.planner import PartitionFacts, position_metadata
from brew.preflight.checks import positions
from brew.preflight.finding import Severity


def fact(partition: int, offset: int | None, metadata: str = position_metadata("id-in")) -> PartitionFacts:
    at = None if offset is None else Committed(offset, metadata)
    return PartitionFacts("in", partition, "id-in", at, LogOffsets(5, 90, 100))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ([fact(0, 5), fact(1, None)], {"position": Severity.OK, "topic-identity": Severity.OK}),
        ([fact(0, 50, "")], {"position": Severity.OK, "topic-identity": Severity.UNKNOWN}),
        ([fact(0, 4)], {"position": Severity.UNSAFE}),
        ([fact(0, 101)], {"position": Severity.UNSAFE}),
        ([fact(0, 50, position_metadata("another" * 3 + "x"))], {"topic-identity": Severity.UNSAFE}),
    ],
)
def test_the_position_has_to_mean_what_it_meant(facts: list[PartitionFacts], told: dict[str, Severity]) -> None:
    """Inside the log, of the topic that it was committed for."""
    assert {one.name: one.severity for one in positions(facts, "g")} == told
