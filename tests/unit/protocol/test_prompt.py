"""Half seconds that nobody waits for: librdkafka's looks for a broker, brokers' answers at a log's end, a no."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Denied, Fatal
from brew.kafka import clients, log_reader
from brew.kafka.clients import ConnectionFailures
from brew.kafka.offsets import committed
from brew.kafka.transaction import connect_early
from proof import seed

TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", False, False))


class Silent:
    """No broker answers it; ``waits`` are the seconds that it was given."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def list_topics(self, _topic: str, timeout: float) -> None:
        self.waits.append(timeout)
        raise TIMED_OUT


def test_a_producer_without_a_broker_is_no_error_yet() -> None:
    """Its first record tells, within the time that whoever writes it has."""
    client = Silent()
    connect_early(client, "orders")  # type: ignore[arg-type]
    [wait_s] = client.waits
    assert 0 < wait_s < 5


def test_a_seeder_connects_before_its_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idempotent producer that is not connected looks again only after 500 ms."""
    asked: list[str] = []

    class Client:
        def list_topics(self, topic: str, timeout: float) -> None:  # noqa: ARG002 - the client's shape
            asked.append(topic)

    monkeypatch.setattr(seed, "producer", lambda *_args, **_settings: Client())
    seed.Writer(Connection("nowhere:1"), "orders", None, 5.0)
    assert asked == ["orders"]


def test_a_scan_has_brokers_hold_no_answer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log's end behind a marker is told by a fetch that finds nothing: brokers would hold it back for 500 ms."""
    given: dict[str, Any] = {}

    class Made(Exception):
        pass

    def consumer(*_args: Any, **settings: Any) -> None:
        given.update(settings)
        raise Made

    monkeypatch.setattr(log_reader, "consumer", consumer)
    with pytest.raises(Made):
        list(log_reader.scan(Connection("nowhere:1"), "orders", {0: (0, 5)}, "read_committed"))
    assert given["fetch.wait.max.ms"] <= 20


class Door:
    """A broker that shuts it at the second knock, and answers no question."""

    def __init__(self, told: ConnectionFailures) -> None:
        self.told, self.timeouts = told, list[float]()

    def list_topics(self, timeout: float) -> None:
        self.timeouts.append(timeout)
        raise TIMED_OUT

    def poll(self, _timeout: float) -> None:
        if len(self.timeouts) == 2:
            self.told(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))


def test_a_wrong_password_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would wait for an answer as long as it may, although the broker has said no."""
    made: list[Door] = []
    monkeypatch.setattr(clients, "admin", lambda _connection, error_cb: made.append(Door(error_cb)) or made[0])
    with pytest.raises(Denied, match="wrong password"):
        clients.reach(Connection("nowhere:1"), Deadline(30))
    assert made[0].timeouts == [0.25, 0.5]


class Coordinator:
    """Never answers; after so many questions its no lies among the messages."""

    def __init__(self, quiet: int) -> None:
        self.quiet, self.timeouts = quiet, list[float]()

    def committed(self, _asked: object, timeout: float) -> None:
        self.timeouts.append(timeout)
        raise TIMED_OUT

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
