"""Which offset a partition had at some time."""

from __future__ import annotations

from collections.abc import Iterable

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from protocol.deadline import Deadline
from protocol.kafka.clients import asking, attempt_s
from protocol.retry import again


def offsets_at(
    client: AdminClient, topic: str, partitions: Iterable[int], time_ms: int, deadline: Deadline
) -> dict[int, int | None]:
    """Per partition the first record's offset that is not older than ``time_ms``; None where all are older."""
    asked = {TopicPartition(topic, p): p for p in partitions}

    def ask() -> dict[int, int | None]:
        with asking(f"offsets of {topic} by time"):
            spec = OffsetSpec.for_timestamp(time_ms)
            answers = client.list_offsets(dict.fromkeys(asked, spec), request_timeout=attempt_s(deadline))
            found = {asked[place]: int(future.result().offset) for place, future in answers.items()}
        return {p: None if offset < 0 else offset for p, offset in found.items()}

    return again(ask, f"offsets of {topic} by time", deadline)
