"""What a scan keeps of a batch, as messages and as plain tuples."""

from __future__ import annotations

import random
from dataclasses import dataclass

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError

from brew.kafka import log_reader


@dataclass
class Message:
    """As the library hands it out."""

    place: tuple[int, int]
    failed: KafkaError | None = None
    kind: int = TIMESTAMP_CREATE_TIME

    def error(self) -> KafkaError | None:
        return self.failed

    def partition(self) -> int:
        return self.place[0]

    def offset(self) -> int:
        return self.place[1]

    def key(self) -> bytes | None:
        return b"k"

    def value(self) -> bytes | None:
        return None

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return self.kind, 12


def test_rows_are_those_of_the_messages_and_end_the_same_partitions() -> None:
    """Any mixture of records below, at and past the ends, of other partitions, and of end-of-partition events."""
    for seed in range(300):
        dice = random.Random(seed)
        got, at = [], [0, 0, 0, 0]
        for _ in range(dice.randint(0, 12)):
            partition = dice.randrange(4)
            at[partition] += dice.randint(1, 2)
            end = KafkaError(KafkaError._PARTITION_EOF) if dice.random() < 0.1 else None
            got.append(Message((partition, at[partition]), end))
        ends = {p: dice.randint(1, 6) for p in range(3)}
        plain, rows = dict(ends), dict(ends)
        messages = log_reader._take_messages(list(got), plain)
        assert [row[:2] for row in log_reader._take_rows(list(got), rows)] == [one.place for one in messages]  # type: ignore[attr-defined]
        assert plain == rows


def test_a_broker_s_own_timestamp_is_none() -> None:
    """It says nothing about the producer; and a record without headers has an empty list."""
    found = log_reader._take_rows([Message((0, 1), kind=TIMESTAMP_LOG_APPEND_TIME), Message((0, 2))], {0: 9})
    assert found == [(0, 1, b"k", None, [], None), (0, 2, b"k", None, [], 12)]
