"""
Ask the one broker that coordinates a group where it stands, with or without waiting for what is pending.

kafka-python asks it. librdkafka's admin client, which could, too, ends the whole process when a coordinator answers
that it is none any more, as in each rolling restart (its issue 5040, open with 2.16.1); its consumer asks, and does not
hand out a refusal for a pending offset.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from protocol.deadline import Deadline
from protocol.kafka.introspect import KafkaAdminClient

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import KafkaError, RetriableError, for_code
    from kafka.protocol.consumer import OffsetFetchRequest

_MANY_GROUPS = 8
"""From that version of the request on (Kafka 3.0) it may name several groups; 7 (Kafka 2.5) knows stable offsets."""
_NEWEST = 9  # from 10 on topics go by id
_Group = OffsetFetchRequest.OffsetFetchRequestGroup
_UNSTABLE = 88

Place = tuple[str, int]


class Told(NamedTuple):
    """``offset``: None for nowhere, or unknown; ``unstable``: it was to be stable, and another one is pending."""

    offset: int | None
    unstable: bool


async def group_offsets(
    admin: KafkaAdminClient, group: str, places: Iterable[Place], *stable: bool
) -> list[Mapping[Place, Told]]:
    """
    Where the group stands in these partitions (topic, partition): an answer for each of ``stable``, in that order, all
    of one broker's. For `protocol.kafka.introspect.ask`.

    Raises:
        kafka.errors.KafkaError: the broker that was asked did not say; it may be the wrong one by now.
    """
    wanted = defaultdict(list)
    for topic, partition in places:
        wanted[topic].append(partition)
    coordinator = await admin._find_coordinator_id(group)  # noqa: SLF001 - as `introspect` does, to bound the call
    many = admin._manager.broker_version_data.api_version(OffsetFetchRequest) >= _MANY_GROUPS  # noqa: SLF001
    # A broker takes the requests of a connection one after another.
    sent = [
        admin._manager.send(_request(group, wanted, one, many=many), node_id=coordinator)  # noqa: SLF001
        for one in stable
    ]
    return [_told(await answer, many=many) for answer in sent]


async def offsets_of_groups(
    admin: KafkaAdminClient, groups: Iterable[str], places: Iterable[Place], deadline: Deadline
) -> tuple[dict[str, dict[Place, int]], dict[str, str]]:
    """
    Those of these groups that stand somewhere in these places, and where; then those whose coordinator did not say,
    and why. All are asked at once; a group that is not ours to see is in neither.
    """
    manager, asked = admin._manager, list(places)  # noqa: SLF001 - as above
    answers = {group: manager.call_soon(group_offsets, admin, group, asked, False) for group in groups}
    found, silent = dict[str, dict[Place, int]](), dict[str, str]()
    for group, answer in answers.items():
        try:
            (told,) = await manager.wait_for(answer, deadline.remaining_s() * 1000)
        except RetriableError as error:
            silent[group] = f"{error} ({type(error).__name__})"
        except KafkaError:
            continue
        else:
            if offsets := {place: one.offset for place, one in told.items() if one.offset is not None}:
                found[group] = offsets
    return found, silent


def _request(group: str, wanted: Mapping[str, list[int]], stable: bool, *, many: bool) -> Any:
    if many:
        topics = [_Group.OffsetFetchRequestTopics(name=name, partition_indexes=ps) for name, ps in wanted.items()]
        groups = [_Group(group_id=group, topics=topics)]
        return OffsetFetchRequest(groups=groups, require_stable=stable, min_version=_MANY_GROUPS, max_version=_NEWEST)
    topics = [
        OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=ps) for name, ps in wanted.items()
    ]
    return OffsetFetchRequest(
        group_id=group, topics=topics, require_stable=stable, min_version=7 if stable else 1, max_version=7
    )


def _told(response: Any, *, many: bool) -> Mapping[Place, Told]:
    answer = response.groups[0] if many else response
    found, codes = {}, [answer.error_code]
    for topic in answer.topics or ():
        for one in topic.partitions:
            offset = one.committed_offset if one.committed_offset >= 0 else None
            found[topic.name, one.partition_index] = Told(offset, one.error_code == _UNSTABLE)
            codes.append(one.error_code)
    for code in codes:
        if code not in {0, _UNSTABLE}:
            raise for_code(code)("offsets of a group")
    return found
