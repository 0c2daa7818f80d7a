"""Query offsets: log start, last stable offset and end of partitions; committed offsets; offsets by time."""

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
"""The first attempt's time-out, after which authorization errors are checked, and its growth factor."""
_DENIED = {KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED}

__all__ = ["Committed", "LogOffsets", "committed", "committed_by", "log_offsets"]


def log_offsets(
    client: AdminClient, topic: str, partitions: Iterable[int], deadline: Deadline
) -> dict[int, LogOffsets]:
    """Return the first offset, LSO and end of each partition; repeated while a new topic has no leader yet."""
    partition_of = {TopicPartition(topic, p): p for p in partitions}

    def ask(spec: OffsetSpec, level: IsolationLevel) -> dict[int, int]:
        timeout = attempt_s(deadline)
        answers = client.list_offsets(dict.fromkeys(partition_of, spec), isolation_level=level, request_timeout=timeout)
        offsets = {partition_of[tp]: future.result().offset for tp, future in answers.items()}
        unknown = sorted(partition for partition, offset in offsets.items() if offset < 0)
        if unknown:  # seen while a leader changes; taken for an offset, it would make the log look truncated
            raise Retriable(f"offsets of {topic}: the leader of partitions {unknown} has none yet")
        return offsets

    def ask_all() -> dict[int, LogOffsets]:
        with mapped_query(f"offsets of {topic}"):
            first = ask(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
            stable = ask(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]
            # Last, so that the end is never below the LSO.
            end = ask(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]
        return {p: LogOffsets(first[p], stable[p], end[p]) for p in partition_of.values()}

    return retry_until(ask_all, f"offsets of {topic}", deadline)


def committed(
    reader: Consumer, topic: str, partitions: Iterable[int], deadline: Deadline
) -> dict[int, Committed | None]:
    """
    Return the group's committed offsets. A `read_committed` reader waits for pending ones, `read_uncommitted` does not.

    Raises:
        DeadlineExceeded: a pending transaction did not end, or the coordinator did not answer, in time.
    """
    requested = [TopicPartition(topic, p) for p in partitions]
    attempt_timeout_s = _PAUSE_S

    def ask() -> dict[int, Committed | None]:
        nonlocal attempt_timeout_s
        timeout, attempt_timeout_s = min(attempt_timeout_s, deadline.remaining_s()), attempt_timeout_s * _PAUSE_GROWTH
        with mapped("locate"):
            try:
                answers = reader.committed(requested, timeout=max(0.001, timeout))
            except KafkaException as error:
                # librdkafka does not mark its own time-out as retriable here.
                if error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001 - the library's public name
                    _check_allowed(reader)
                    if not deadline.expired():
                        raise Retriable("locate: no stable answer yet") from error
                    raise DeadlineExceeded(f"locate: no stable answer within {deadline.budget_s:g} s") from error
                raise
            offsets: dict[int, Committed | None] = {}
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)
                committed_once = answer.offset != OFFSET_INVALID
                offsets[answer.partition] = Committed(answer.offset, _text(answer)) if committed_once else None
            return offsets

    return retry_until(ask, "locate", deadline)


def committed_by(
    connection: Connection, group: str, topic: str, partitions: Iterable[int], isolation: str, deadline: Deadline
) -> dict[int, Committed | None]:
    """Like `committed`, with a client for this one request."""
    reader = consumer(connection, group, isolation)
    try:
        return committed(reader, topic, partitions, deadline)
    finally:
        reader.close()


def _check_allowed(reader: Consumer) -> None:
    """Raise a pending authorization error: `committed` only times out, the error is among the consumer's messages."""
    while (message := reader.poll(0)) is not None:
        error = message.error()
        if error is not None and error.code() in _DENIED:
            raise KafkaException(error)


def _text(answer: TopicPartition) -> str:
    """Return an offset's metadata, cut before any stray bytes that librdkafka may append (issue 4649)."""
    try:
        return answer.metadata or ""
    except UnicodeDecodeError as error:
        return error.object[: error.start].decode()


def offsets_at(
    client: AdminClient, topic: str, partitions: Iterable[int], time_ms: int, deadline: Deadline
) -> dict[int, int | None]:
    """Return each partition's first offset at or after ``time_ms``, or None if all records are older."""
    partition_of = {TopicPartition(topic, p): p for p in partitions}

    def ask() -> dict[int, int | None]:
        with mapped_query(f"offsets of {topic} by time"):
            spec = OffsetSpec.for_timestamp(time_ms)
            answers = client.list_offsets(dict.fromkeys(partition_of, spec), request_timeout=attempt_s(deadline))
            offsets = {partition_of[tp]: int(future.result().offset) for tp, future in answers.items()}
        return {p: None if offset < 0 else offset for p, offset in offsets.items()}

    return retry_until(ask, f"offsets of {topic} by time", deadline)
