"""What is asked about a group's offsets on the wire, by version, and what an answer tells."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import NotCoordinatorError
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from brew.kafka import group_requests
from brew.kafka.group_requests import FetchedOffset

WANTED = {"orders": [0, 1]}
_Topic = OffsetFetchResponse.OffsetFetchResponseTopic
_Group = OffsetFetchResponse.OffsetFetchResponseGroup


def _topic(kind: Any, *codes: int) -> Any:
    part = kind.OffsetFetchResponsePartition if kind is _Topic else kind.OffsetFetchResponsePartitions
    parts = [part(partition_index=p, committed_offset=7 - 8 * p, error_code=code) for p, code in enumerate(codes)]
    return kind(name="orders", partitions=parts)


def _answer(*codes: int, many: bool, whole: int = 0) -> OffsetFetchResponse:
    """Partition 0 stands at 7, partition 1 nowhere."""
    if not many:
        return OffsetFetchResponse(topics=[_topic(_Topic, *codes)], error_code=whole)
    topics = [_topic(_Group.OffsetFetchResponseTopics, *codes)]
    return OffsetFetchResponse(groups=[_Group(group_id="g", topics=topics, error_code=whole)])


@pytest.mark.parametrize(("many", "version"), [(False, 7), (True, 9)])
@pytest.mark.parametrize("stable", [False, True])
def test_a_question_names_group_partitions_and_whether_it_waits(many: bool, version: int, stable: bool) -> None:
    """Brokers since 2.5 and since 3.0 are asked in different words."""
    asked = group_requests._request("g", WANTED, stable, multi_group=many)
    read = OffsetFetchRequest.decode(asked.encode(version=version), version=version)
    told = read.groups[0] if many else read
    topics = [(one.name, list(one.partition_indexes)) for one in told.topics]
    assert (told.group_id, topics, read.require_stable) == ("g", [("orders", [0, 1])], stable)


@pytest.mark.parametrize("many", [False, True])
def test_an_answer_tells_where_the_group_stands_and_what_is_pending(many: bool) -> None:
    assert group_requests._parsed_response(_answer(0, 0, many=many), multi_group=many) == {
        ("orders", 0): FetchedOffset(7, unstable=False),
        ("orders", 1): FetchedOffset(None, unstable=False),
    }
    assert group_requests._parsed_response(_answer(88, 88, many=many), multi_group=many)["orders", 1] == FetchedOffset(
        None, unstable=True
    )


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("codes", "whole"), [((0, 16), 0), ((), 16)])
def test_an_error_is_not_taken_for_a_position(many: bool, codes: tuple[int, ...], whole: int) -> None:
    """Of one partition, or of the whole group."""
    with pytest.raises(NotCoordinatorError):
        group_requests._parsed_response(_answer(*codes, many=many, whole=whole), multi_group=many)
