"""Log start, last stable offset and end of partitions, committed offsets, offsets by time."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import OFFSET_INVALID, Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    OffsetSpec,
)

from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import DeadlineExceeded, Retriable
from brew.kafka.clients import attempt_s, consumer, mapped, mapped_query
from brew.offsets import Committed, LogOffsets

_PAUSE_S, _PAUSE_GROWTH = 0.25, 2.0
"""Between looks whether the answer is a no: the first one, and how many times longer each next one is."""
_DENIED = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED}

__all__ = ["Committed", "LogOffsets", "committed", "committed_by", "log_offsets"]


def log_offsets(
    client: AdminClient, topic: str, partitions: Iterable[int], deadline: Deadline
) -> dict[int, LogOffsets]:
    """First offset, LSO and end of each partition; a new topic without a leader yet is asked again."""
    asked = {TopicPartition(topic, p): p for p in partitions}

    def ask(spec: OffsetSpec, level: IsolationLevel) -> dict[int, int]:
        timeout = attempt_s(deadline)
        answers = client.list_offsets(dict.fromkeys(asked, spec), isolation_level=level, request_timeout=timeout)
        found = {asked[tp]: future.result().offset for tp, future in answers.items()}
        unknown = sorted(partition for partition, offset in found.items() if offset < 0)
        if unknown:  # an answer without an offset, seen while a leader changes; taken for one it would look truncated
            raise Retriable(f"offsets of {topic}: the leader of partitions {unknown} names none yet")
        return found

    def ask_all() -> dict[int, LogOffsets]:
        with mapped_query(f"offsets of {topic}"):
            first = ask(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
            stable = ask(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]
            # Asked last, so that the end is never below the LSO beside it.
            end = ask(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
        return {p: LogOffsets(first[p], stable[p], end[p]) for p in asked.values()}

    return retry_until(ask_all, f"offsets of {topic}", deadline)


def committed(
    reader: Consumer, topic: str, partitions: Iterable[int], deadline: Deadline
) -> dict[int, Committed | None]:
    """
    The group's committed offsets; a `read_committed` reader waits for pending ones, a `read_uncommitted` one does not.

    Raises:
        DeadlineExceeded: a pending transaction did not end, or the coordinator did not answer, in time.
    """
    asked = [TopicPartition(topic, p) for p in partitions]
    look_s = _PAUSE_S

    def ask() -> dict[int, Committed | None]:
        nonlocal look_s
        timeout, look_s = min(look_s, deadline.remaining_s()), look_s * _PAUSE_GROWTH
        with mapped("locate"):
            try:
                answers = reader.committed(asked, timeout=max(0.001, timeout))
            except KafkaException as error:
                # librdkafka does not call its own time-out retriable here; the call had all the time there was.
                if error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001 - the library's public name
                    _check_allowed(reader)
                    if not deadline.expired():
                        raise Retriable("locate: no stable answer yet") from error
                    raise DeadlineExceeded(f"locate: no stable answer within {deadline.budget_s:g} s") from error
                raise
            found: dict[int, Committed | None] = {}
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)
                known = answer.offset != OFFSET_INVALID
                found[answer.partition] = Committed(answer.offset, _text(answer)) if known else None
            return found

    return retry_until(ask, "locate", deadline)


def committed_by(
    connection: Connection, group: str, topic: str, partitions: Iterable[int], isolation: str, deadline: Deadline
) -> dict[int, Committed | None]:
    """As `committed`, through a client for this one question."""
    reader = consumer(connection, group, isolation)
    try:
        return committed(reader, topic, partitions, deadline)
    finally:
        reader.close()


def _check_allowed(reader: Consumer) -> None:
    """A coordinator that may not be asked is a time-out to `committed`, and an error among the reader's messages."""
    while (message := reader.poll(0)) is not None:
        error = message.error()
        if error is not None and error.code() in _DENIED:
            raise KafkaException(error)


def _text(answer: TopicPartition) -> str:
    """The text beside an offset; none where librdkafka hands it out with foreign bytes behind (its issue 4649)."""
    try:
        return answer.metadata or ""
    except UnicodeDecodeError:
        return ""


def offsets_at(
    client: AdminClient, topic: str, partitions: Iterable[int], time_ms: int, deadline: Deadline
) -> dict[int, int | None]:
    """Per partition the first record's offset that is not older than ``time_ms``; None where all are older."""
    asked = {TopicPartition(topic, p): p for p in partitions}

    def ask() -> dict[int, int | None]:
        with mapped_query(f"offsets of {topic} by time"):
            spec = OffsetSpec.for_timestamp(time_ms)
            answers = client.list_offsets(dict.fromkeys(asked, spec), request_timeout=attempt_s(deadline))
            found = {asked[place]: int(future.result().offset) for place, future in answers.items()}
        return {p: None if offset < 0 else offset for p, offset in found.items()}

    return retry_until(ask, f"offsets of {topic} by time", deadline)
