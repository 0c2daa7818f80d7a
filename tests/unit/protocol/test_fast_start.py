"""Half seconds that nobody waits for: looks for a broker, answers at a log's end, refusals."""

from __future__ import annotations

import gc
import weakref
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Denied, Fatal
from brew.kafka import clients, log_reader
from brew.kafka.clients import ConnectionFailures, mapped
from brew.kafka.offsets import committed
from brew.kafka.transaction import connect_early
from proof import seed


class FakeProducer:
    """Stands for a producer, in a frame that an error went through."""


def _goes_through() -> weakref.ref[FakeProducer]:
    held = FakeProducer()
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


TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", False, False))


class Silent:
    """No broker answers it; ``timeouts`` are the seconds that it was given."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def list_topics(self, _topic: str = "", *, timeout: float) -> None:
        self.timeouts.append(timeout)
        raise TIMED_OUT


def test_a_producer_without_a_broker_is_no_error_yet() -> None:
    """Its first record tells, within the time that whoever writes it has."""
    client = Silent()
    connect_early(client, "orders")  # type: ignore[arg-type]
    [wait_s] = client.timeouts
    assert 0 < wait_s < 5


def test_a_seeder_connects_before_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idempotent producer that is not connected looks again only after 500 ms."""
    client = Mock()
    monkeypatch.setattr(seed, "producer", lambda *_args, **_settings: client)
    seed.Writer(Connection("nowhere:1"), "orders", None, 5.0)
    assert [call.args[0] for call in client.list_topics.call_args_list] == ["orders"]


def test_a_scan_has_brokers_hold_no_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log's end behind a marker is told by a fetch that finds nothing: brokers would hold it back for 500 ms."""
    consumer = Mock(side_effect=RuntimeError("its settings are all that is tested"))
    monkeypatch.setattr(log_reader, "consumer", consumer)
    with pytest.raises(RuntimeError, match="its settings"):
        list(log_reader.scan(Connection("nowhere:1"), "orders", {0: (0, 5)}, "read_committed"))
    assert consumer.call_args.kwargs["fetch.wait.max.ms"] <= 20


class UnreachableAdmin(Silent):
    """A client whose broker refuses its second connection, and answers no request."""

    def __init__(self, failures: ConnectionFailures) -> None:
        super().__init__()
        self.failures = failures

    def poll(self, _timeout: float) -> None:
        if len(self.timeouts) == 2:
            self.failures(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))


def test_a_wrong_password_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would wait for an answer as long as it may, although the broker has said no."""
    admins: list[UnreachableAdmin] = []
    monkeypatch.setattr(clients, "admin", lambda _, error_cb: admins.append(UnreachableAdmin(error_cb)) or admins[0])
    with pytest.raises(Denied, match="wrong password"):
        clients.reach(Connection("nowhere:1"), Deadline(30))
    assert admins[0].timeouts == [0.25, 0.5]


class Coordinator(Silent):
    """Never answers; after so many questions its no lies among the messages."""

    def __init__(self, quiet: int) -> None:
        super().__init__()
        self.quiet = quiet

    def committed(self, _partitions: object, timeout: float) -> None:
        self.list_topics(timeout=timeout)

    def poll(self, _timeout: float) -> Coordinator | None:
        return self if len(self.timeouts) > self.quiet else None

    def error(self) -> KafkaError:
        return KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)


def test_whoever_may_not_see_a_position_is_told_soon_and_others_wait_in_longer_parts() -> None:
    """Librdkafka takes a coordinator's no for a time-out: a single look would be too early, or come after all time."""
    denied = Coordinator(quiet=3)
    with pytest.raises(Fatal, match="GROUP_AUTHORIZATION_FAILED"):
        committed(denied, "orders", [0], Deadline(30))  # type: ignore[arg-type]
    assert denied.timeouts == [0.25, 0.5, 1.0, 2.0]
