"""
Ask the coordinator of a group for its offsets over a connection that is kept.

kafka-python asks it. librdkafka's admin client, which could, too, ends the whole process when a coordinator answers
that it is none any more, as in each rolling restart (its issue 5040, open with 2.16.1); its consumer asks, and does not
hand out a refusal for a pending offset.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Retriable
from brew.kafka.kafka_python import KafkaAdminClient, ask, open_admin

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


class FetchedOffset(NamedTuple):
    """``offset``: None for nowhere, or unknown; ``unstable``: it was to be stable, and another one is pending."""

    offset: int | None
    unstable: bool


async def group_offsets(
    admin: KafkaAdminClient, group: str, places: Iterable[Place], *stable: bool
) -> list[Mapping[Place, FetchedOffset]]:
    """
    Where the group stands in these partitions (topic, partition): an answer for each of ``stable``, in that order, all
    of one broker's. For `brew.kafka.kafka_python.ask`.

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
    return [_parsed_response(await answer, many=many) for answer in sent]


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


def _parsed_response(response: Any, *, many: bool) -> Mapping[Place, FetchedOffset]:
    answer = response.groups[0] if many else response
    found, codes = {}, [answer.error_code]
    for topic in answer.topics or ():
        for one in topic.partitions:
            offset = one.committed_offset if one.committed_offset >= 0 else None
            found[topic.name, one.partition_index] = FetchedOffset(offset, one.error_code == _UNSTABLE)
            codes.append(one.error_code)
    for code in codes:
        if code not in {0, _UNSTABLE}:
            raise for_code(code)("offsets of a group")
    return found


_CLOSE_S = 1.0


class CoordinatorAnswer(NamedTuple):
    """``offset``: where the group stands, None for nowhere; ``aware``: the coordinator knows of what is pending."""

    offset: int | None
    aware: bool


class OffsetFetchClient:
    """
    A connection to the group's coordinator. Safe for threads.

    It has a thread of its own, which would look for brokers for ever: whoever gives it up ends it. A failure holds on
    to it by its traceback, so that only the garbage collector would (22 threads a second while answers are cut off).
    """

    def __init__(self, connection: Connection, group: str, deadline: Deadline, request_s: float) -> None:
        self._group = group
        self._admin = open_admin(connection, deadline, request_s)
        self._lock, self._looks, self._given_up = threading.Lock(), 0, False
        # Also with the last user of a group that this process has not asked about for long.
        self._close = weakref.finalize(self, end, self._admin)
        self._close.atexit = False  # a program that ends does not wait for it

    def look(self, step: str, place: Place, deadline: Deadline) -> CoordinatorAnswer:
        """
        One look at the group's offset, both questions to the same broker.

        One that waits for stable offsets is refused with UNSTABLE_OFFSET_COMMIT while one is pending (KIP-447). It is
        asked first: who knew of what is pending then has seen all that was committed before, and tells it next.

        Raises:
            Retriable: no answer, or none yet; or this connection was ended meanwhile.
            DeadlineExceeded: none in time.
        """
        admin = self._admin
        with self._looking(step):
            stable, now = ask(admin, deadline, step, group_offsets, admin, self._group, [place], True, False)
        return CoordinatorAnswer(now[place].offset, stable[place].unstable)

    def ask(self, step: str, call: Callable[[KafkaAdminClient], Any], deadline: Deadline) -> Any:
        """
        The answer to ``call``, a coroutine of the library's client: for requests that only it can make.

        Raises:
            KafkaFailure, DeadlineExceeded: no answer; or this connection was ended meanwhile.
        """
        with self._looking(step):
            return ask(self._admin, deadline, step, call, self._admin)

    def end(self) -> None:
        """Close the connection, behind looks of others that go on. Harmless when repeated."""
        with self._lock:
            self._given_up, unused = True, not self._looks
        if unused:
            self._close()

    @contextmanager
    def _looking(self, step: str) -> Iterator[None]:
        with self._lock:
            if self._given_up:
                raise Retriable(f"{step}: another transaction has given this connection up")
            self._looks += 1
        try:
            yield
        finally:
            with self._lock:
                self._looks -= 1
                last = self._given_up and not self._looks
            if last:
                self._close()


def end(admin: KafkaAdminClient) -> None:
    """Its thread may be asking for an address, which has no deadline; and the last user may be that thread itself."""
    closing = threading.Thread(target=admin.close, name="asker-end", daemon=True)
    closing.start()
    if not threading.current_thread().name.startswith("kafka-io"):
        closing.join(_CLOSE_S)
