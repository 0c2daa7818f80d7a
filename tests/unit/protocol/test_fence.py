"""The first step: a fence calls again long before the client library would look again by itself."""

from __future__ import annotations

import gc
import weakref

import pytest
from confluent_kafka import KafkaError, KafkaException

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded
from brew.kafka import transaction
from brew.kafka.clients import mapped
from brew.kafka.transaction import KafkaTransaction, TransactionSettings

LIBRDKAFKAS_PAUSE_S = 0.5
BUSY = {KafkaError.CONCURRENT_TRANSACTIONS, KafkaError._TIMED_OUT}


class Producer:
    """Answers `init_transactions` with an error so often, as librdkafka does when its time runs out first."""

    def __init__(self, code: int, failures: int) -> None:
        self.code, self.failures = code, failures
        self.timeouts: list[float] = []

    def produce(self) -> None: ...

    def poll(self, _timeout: float) -> None: ...

    def init_transactions(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        if len(self.timeouts) <= self.failures:
            raise KafkaException(KafkaError(self.code, "busy", False, True))


def fenced_by(monkeypatch: pytest.MonkeyPatch, fake: Producer) -> KafkaTransaction:
    monkeypatch.setattr(transaction, "producer", lambda *_args, **_settings: fake)
    return KafkaTransaction(TransactionSettings(Connection("nowhere:1"), "group", 30), "orders", 0)


@pytest.mark.parametrize("code", BUSY)
def test_it_calls_again_long_before_the_library_looks_again(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """While the transaction before is being completed, or no connection is up, librdkafka waits half a second."""
    fake = Producer(code, failures=5)
    fenced_by(monkeypatch, fake).fence(Deadline(20))
    assert len(fake.timeouts) == 6
    assert sum(fake.timeouts) < LIBRDKAFKAS_PAUSE_S / 3


def test_its_calls_grow_longer_and_stay_within_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that are away for long are not asked a hundred times a second."""
    fake = Producer(KafkaError._TIMED_OUT, failures=60)
    fenced_by(monkeypatch, fake).fence(Deadline(20))
    grown = fake.timeouts
    assert grown[0] == 0.01
    assert grown == sorted(grown)
    assert grown[-1] == 3.0


def test_it_ends_with_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Producer(KafkaError.CONCURRENT_TRANSACTIONS, failures=10**9)
    with pytest.raises(DeadlineExceeded, match="fence"):
        fenced_by(monkeypatch, fake).fence(Deadline(0.05))


class Held:
    """Stands for a producer, in a frame that an error went through."""


def _goes_through() -> weakref.ref[Held]:
    held = Held()
    with pytest.raises(BrewError), mapped("fence"):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "late", False, True))
    return weakref.ref(held)


def test_an_error_that_was_passed_on_holds_no_frame() -> None:
    """
    A process may have 1,024 producers: each takes a thread-local key. An error that a frame of its own traceback holds
    would keep every caller's producer until the next collection, which long runs put off.
    """
    gc.disable()
    try:
        assert _goes_through()() is None
    finally:
        gc.enable()
