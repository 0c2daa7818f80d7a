"""Mutants in reading and writing records: rows, headers, order, dead letters."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException, Producer

from brew import range_transaction
from brew.kafka import log_reader
from brew.kafka.clients import producer
from brew.kafka.transaction import KafkaTransaction
from brew.names import READ_UNCOMMITTED
from brew.offsets import HEADER_OFFSET
from mutants.mutant import Changes, Method, mutant

Produce = Callable[..., None]
_PARTITION, _HEADERS = 3, 7


def _producing(change: Changes, twist: Callable[[Produce], Produce]) -> None:
    """Replace every transaction's `produce` by ``twist(produce)``."""

    def init(old: Method, self: KafkaTransaction, *arguments: Any) -> None:
        old(self, *arguments)
        self.produce = twist(self.produce)

    change.wrap(KafkaTransaction, "__init__", init)


def _skipping(change: Changes, error: type[Exception]) -> None:
    """Skip each record whose `produce` raises ``error``."""

    def twist(produce: Produce) -> Produce:
        def write(*record: Any) -> None:
            with contextlib.suppress(error):
                produce(*record)

        return write

    _producing(change, twist)


def _headers(change: Changes, edit: Callable[[list[Any]], list[Any]]) -> None:
    def twist(produce: Produce) -> Produce:
        return lambda *record: produce(*record[:_HEADERS], edit(record[_HEADERS]))

    _producing(change, twist)


@mutant("D9", on="calm", named="phantom-output")
def read_uncommitted_input(change: Changes) -> None:
    """The input is read with read_uncommitted, so orders of aborted transactions are enriched, too."""
    change.set(log_reader, "READ_COMMITTED", lambda _: READ_UNCOMMITTED)


@mutant("D9", on="retention", named="lost-output")
def reader_resets_to_latest(change: Changes) -> None:
    """A reader whose offset is gone continues at the end of the log instead of raising."""
    change.wrap(log_reader, "consumer", lambda old, *a, **k: old(*a, **k, **{"auto.offset.reset": "latest"}))


@mutant("D14", on="full-queue", named="lost-output")
def buffer_error_swallowed(change: Changes) -> None:
    """A full queue is ignored: the record that did not fit is never written."""
    _skipping(change, BufferError)


@mutant("D14", on="failing-produce", named="lost-output")
def failed_row_skipped(change: Changes) -> None:
    """A row whose `produce` raises is skipped, and the range continues without it."""
    _skipping(change, KafkaException)


@mutant("D22", on="calm", named="phantom-output")
def source_headers_dropped(change: Changes) -> None:
    """Records are written without the headers of their source position."""
    _headers(change, lambda headers: headers[:-3])


@mutant("D22", on="calm", named="corrupt-output")
def source_offset_off_by_one(change: Changes) -> None:
    """The source offset in the headers is that of the next record."""

    def edit(headers: list[Any]) -> list[Any]:
        return [*headers[:-1], (HEADER_OFFSET, b"%d" % (int(headers[-1][1]) + 1))]

    _headers(change, edit)


@mutant("D22", on="calm", named="corrupt-output")
def input_headers_dropped(change: Changes) -> None:
    """The input's own headers are dropped."""
    _headers(change, lambda headers: headers[-3:])


@mutant("D10", on="calm", named="nonmonotonic-output")
def partition_by_chance(change: Changes) -> None:
    """Records go to random partitions instead of their input's, so orders of one key overtake each other."""
    chance = random.Random(4)

    def twist(produce: Produce) -> Produce:
        return lambda *record: produce(*record[:_PARTITION], chance.randrange(2), *record[_PARTITION + 1 :])

    _producing(change, twist)


@mutant("D10", on="calm", named="nonmonotonic-output")
def batches_swapped(change: Changes) -> None:
    """The second half of a range is written before the first, as two concurrent writers would."""

    def init(old: Method, self: KafkaTransaction, *arguments: Any) -> None:
        old(self, *arguments)
        self.plain = self.produce
        self.held = []
        self.produce = lambda *record: self.held.append(record)

    def flush(old: Method, self: KafkaTransaction, *arguments: Any) -> None:
        middle = len(self.held) // 2
        for record in [*self.held[middle:], *self.held[:middle]]:
            self.plain(*record)
        old(self, *arguments)

    change.wrap(KafkaTransaction, "__init__", init)
    change.wrap(KafkaTransaction, "flush", flush)


@mutant("D19", on="calm", named="lost-output")
def rejected_rows_dropped(change: Changes) -> None:
    """A record that can't be enriched is dropped instead of going to the dead-letter topic."""
    change.set(range_transaction, "_reject", lambda _: lambda *_arguments: None)


@mutant("D19", on="crash-after-flush", named="duplicate-output")
def dead_letters_outside_of_the_transaction(change: Changes) -> None:
    """A separate producer writes dead letters, so they survive a crash and the next attempt duplicates them."""
    beside: list[Producer] = []

    def init(old: Method, self: KafkaTransaction, settings: Any, *place: Any) -> None:
        old(self, settings, *place)
        if not beside:
            beside.append(producer(settings.connection, None, timeout_s=10, message_max_bytes=1_000_000))

    class Outside:
        """The port, only with `produce`."""

        @staticmethod
        def produce(*record: Any) -> None:
            beside[0].produce(*record)
            beside[0].flush(10)

    change.wrap(KafkaTransaction, "__init__", init)
    change.wrap(range_transaction, "_reject", lambda old, run, *record: old(replace(run, kafka=Outside()), *record))
