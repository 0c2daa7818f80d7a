"""Raw batches and open transactions of a real broker."""

from __future__ import annotations

import threading

import pytest
from harness.servers import Broker, Names

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Unreachable
from brew.kafka import topics
from brew.kafka.clients import admin, producer
from brew.kafka.kafka_python import open_transactions, raw_batches
from brew.kafka.offsets import log_offsets


def topic_with_transactions(broker: Broker, names: Names, compression: str = "none") -> Connection:
    """Three plain records, two committed, four aborted, one open; each flush is a batch, however slow the loop is."""
    connection = Connection(broker.bootstrap)
    topics.create(admin(connection), [topics.TopicSpec(names.input, 1, {})], Deadline(20))
    unhurried = {"linger.ms": 20_000}
    plain = producer(connection, None, timeout_s=30, message_max_bytes=1_000_000, **unhurried)
    for _ in range(3):
        plain.produce(names.input, b"plain" * 50, partition=0)
    assert plain.flush(20) == 0
    more = {"compression.type": compression, **unhurried}
    writer = producer(connection, names.topic("tx"), timeout_s=60, message_max_bytes=1_000_000, **more)
    writer.init_transactions(20)
    for records, end in ((2, writer.commit_transaction), (4, writer.abort_transaction), (1, None)):
        writer.begin_transaction()
        for _ in range(records):
            writer.produce(names.input, b"in a transaction" * 50, partition=0)
        assert writer.flush(20) == 0
        if end is not None:
            end(20)
    return connection


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_raw_batches_tell_who_wrote_and_how_it_ended(broker: Broker, names: Names, compression: str) -> None:
    """Headers and markers only: no codec is needed."""
    connection = topic_with_transactions(broker, names, compression)
    log = log_offsets(admin(connection), names.input, [0], Deadline(20))[0]
    batches = list(raw_batches(connection, names.input, 0, log.first, log.end, Deadline(20)))
    assert [(batch.records, batch.transactional, batch.marker) for batch in batches] == [
        (3, False, None),
        (2, True, None),
        (1, True, "commit"),
        (4, True, None),
        (1, True, "abort"),
        (1, True, None),
    ]
    assert [batch.base_offset for batch in batches] == [0, 3, 5, 6, 10, 11]
    assert len({batch.producer_id for batch in batches if batch.transactional}) == 1


def test_a_range_yields_the_batches_that_hold_its_offsets(broker: Broker, names: Names) -> None:
    """The first one may begin before it."""
    connection = topic_with_transactions(broker, names)
    batches = list(raw_batches(connection, names.input, 0, 4, 7, Deadline(20)))
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(3, 4), (5, 5), (6, 9)]
    assert list(raw_batches(connection, names.input, 0, 7, 7, Deadline(20))) == []


def test_an_open_transaction_is_named_with_its_first_offset_and_age(broker: Broker, names: Names) -> None:
    """The partition's leader and the coordinator together know all of it."""
    connection = topic_with_transactions(broker, names)
    (transaction,) = open_transactions(connection, names.input, [0], Deadline(20))
    assert (transaction.partition, transaction.first_offset, transaction.transactional_id) == (0, 11, names.topic("tx"))
    assert transaction.age_s is not None
    assert 0 <= transaction.age_s < 60


def test_no_thread_is_left_behind(broker: Broker, names: Names) -> None:
    """Neither after an answer nor after a failure."""
    connection = topic_with_transactions(broker, names)
    before = set(threading.enumerate())
    open_transactions(connection, names.input, [0], Deadline(20))
    next(raw_batches(connection, names.input, 0, 0, 5, Deadline(20)))
    with pytest.raises(BrewError):
        open_transactions(connection, names.topic("missing"), [0], Deadline(20))
    with pytest.raises(Unreachable):
        open_transactions(Connection("localhost:1"), names.input, [0], Deadline(0.3))
    assert set(threading.enumerate()) <= before


def test_a_missing_topic_ends_with_the_deadline(broker: Broker, names: Names) -> None:
    """It may be there in a moment, so it is waited for, and not for ever."""
    with pytest.raises(BrewError, match="raw batches"):
        list(raw_batches(Connection(broker.bootstrap), names.input, 0, 0, 5, Deadline(1)))
