"""Mutants in flush, send-offsets and commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from confluent_kafka import TopicPartition

from brew import range_transaction
from brew.deadline import Deadline
from brew.errors import BrewError
from brew.kafka.transaction import KafkaTransaction
from brew.offsets import HEADER_OFFSET
from mutants.mutant import Changes, Method, mutant


@mutant("D14", on="model", named="records are still queued")
def flush_left_out(change: Changes) -> None:
    """The commit is sent while records are still queued, before their errors are known."""

    class Unflushed:
        """The port without waiting for acknowledgements."""

        def __init__(self, kafka: Any) -> None:
            self._kafka = kafka

        def __getattr__(self, name: str) -> Any:
            return getattr(self._kafka, name)

        def await_acks(self, deadline: Deadline) -> None: ...

        def flush(self, deadline: Deadline) -> None: ...

    def transact(old: Method, *arguments: Any, **options: Any) -> Any:
        rows, offered, targets, enrich, kafka, *more = arguments
        return old(rows, offered, targets, enrich, Unflushed(kafka), *more, **options)

    change.wrap(range_transaction, "transact_range", transact)


def _offsets(change: Changes, pick: Callable[[int, int | None], int | None]) -> None:
    """Send a different offset: ``pick`` gets the range's end and the last row's offset."""

    def init(old: Method, self: KafkaTransaction, *arguments: Any) -> None:
        old(self, *arguments)
        produce = self.produce
        self.last = None

        def write(*record: Any) -> None:
            produce(*record)
            self.last = int(dict(record[-1])[HEADER_OFFSET])

        self.produce = write

    def send(old: Method, self: KafkaTransaction, until: int, *more: Any) -> None:
        picked = pick(until, self.last)
        if picked is not None:
            old(self, picked, *more)

    change.wrap(KafkaTransaction, "__init__", init)
    change.wrap(KafkaTransaction, "send_offsets", send)


@mutant("D5", on="calm", named="lost-commit")
def offset_behind_the_last_row(change: Changes) -> None:
    """The offset sent is the last row + 1, not the range's end: markers at the end remain as lag forever."""
    _offsets(change, lambda _, last: None if last is None else last + 1)


@mutant("D5", on="calm", named="duplicate-output")
def offset_one_short(change: Changes) -> None:
    """The offset sent is that of the range's last record, not the next one."""
    _offsets(change, lambda until, _: until - 1)


@mutant("D5", on="calm", named="lost-output")
def offset_one_too_far(change: Changes) -> None:
    """The offset sent skips the first record of the next range."""
    _offsets(change, lambda until, _: until + 1)


@mutant("D4", on="calm", named="offset-behind")
def offsets_never_sent(change: Changes) -> None:
    """Records are committed without their offset."""
    _offsets(change, lambda *_: None)


@mutant("D6", on="crash-after-send-offsets", named="lost-output")
def offset_by_plain_consumer_commit(change: Changes) -> None:
    """A consumer commits the offset, outside the transaction."""

    def send(self: KafkaTransaction, until: int, metadata: str, _deadline: Deadline) -> None:
        place = TopicPartition(self._topic, self._partition, until, metadata)
        self._locator.client().commit(offsets=[place], asynchronous=False)

    change.set(KafkaTransaction, "send_offsets", lambda _: send)


@mutant("D19", on="crash-after-send-offsets", named="duplicate-output")
def offset_in_a_transaction_of_its_own(change: Changes) -> None:
    """Records are committed first, and their offset in a second transaction."""

    def send(old: Method, self: KafkaTransaction, until: int, metadata: str, deadline: Deadline) -> None:
        self._call("commit", self._producer.commit_transaction, deadline)
        self.begin()
        old(self, until, metadata, deadline)

    change.wrap(KafkaTransaction, "send_offsets", send)


@mutant("D11", on="failing-send-offsets", named="duplicate-output")
def commit_after_failed_send_offsets(change: Changes) -> None:
    """An error of send-offsets is logged and ignored; the commit follows."""

    def send(old: Method, *arguments: Any) -> None:
        with contextlib.suppress(BrewError):
            old(*arguments)

    change.wrap(KafkaTransaction, "send_offsets", send)
