"""Brokers that have just started, answer late, refuse, or don't answer: what is waited for, and what is said."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, Denied, Fatal, Refused
from brew.kafka import clients, connection_diagnosis, log_reader, topics
from brew.kafka.clients import ConnectionFailures, mapped
from brew.kafka.cluster import Outage
from brew.kafka.connection_diagnosis import cause
from brew.kafka.offsets import committed, offsets_at
from brew.kafka.topics import TopicSpec, create
from brew.kafka.transaction import connect_early
from brew.offsets import Committed
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


class Answer(SimpleNamespace):
    """A committed offset as the client returns it; librdkafka may append bytes to its metadata."""

    @property
    def metadata(self) -> str:
        return (self.content or b"").decode()  # type: ignore[no-any-return]


def test_a_group_that_stands_at_the_first_offset_stands_somewhere() -> None:
    """0 is a position, and no metadata is an empty text; a partition that may not be seen is no missing position."""
    answers = [
        Answer(partition=0, offset=0, content=None, error=None),
        Answer(partition=1, offset=OFFSET_INVALID, content=None, error=None),
        Answer(partition=2, offset=7, content=b"topic-id=x\xff:", error=None),
    ]
    reader: Any = SimpleNamespace(committed=lambda _wanted, **_: answers)
    assert committed(reader, "in", [0, 1, 2], Deadline(5)) == {
        0: Committed(0, ""),
        1: None,
        2: Committed(7, "topic-id=x"),
    }
    answers[1].error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(Fatal, match="TOPIC_AUTHORIZATION_FAILED"):
        committed(reader, "in", [0, 1, 2], Deadline(5))


def done(value: Any) -> Future[Any]:
    future = Future[Any]()
    future.set_result(value)
    return future


def test_a_time_behind_the_last_record_has_no_offset() -> None:
    """The brokers answer -1; the first offset is one."""
    found = {0: 0, 1: -1}
    client: Any = SimpleNamespace(
        list_offsets=lambda wanted, **_: {
            place: done(SimpleNamespace(offset=found[place.partition])) for place in wanted
        }
    )
    assert offsets_at(client, "in", [0, 1], 1000, Deadline(5)) == {0: 0, 1: None}


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        (topics.retention_s, "604800000", 604_800),
        (topics.retention_s, "1500", 1.5),
        (topics.retention_s, "0", 0),
        (topics.retention_s, "-1", None),
        (topics.segment_s, "1500", 1.5),
        (topics.max_message_bytes, "1048588", 1_048_588),
        (topics.cleanup_policy, "compact,delete", "compact,delete"),
    ],
)
def test_a_topics_setting_is_told_in_seconds_or_bytes(setting: Callable[..., Any], value: str, expected: Any) -> None:
    """`receive` keeps ids as long as the topic keeps records: a thousandth of it would let a repeated one through."""
    names = (topics.RETENTION_MS, topics.SEGMENT_MS, topics.MAX_MESSAGE_BYTES, topics.CLEANUP_POLICY)
    config = {name: SimpleNamespace(value=value) for name in names}
    client = SimpleNamespace(describe_configs=lambda resources, **_: {resources[0]: done(config)})
    assert setting(client, "out", Deadline(5)) == expected


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (KafkaError(KafkaError._SSL, "ssl://h:1: SSL handshake failed: certificate has expired"), True),
        (KafkaError(KafkaError._SSL, "ssl://h:1: SSL handshake failed: sslv3 ALERT handshake failure"), True),
        (KafkaError(KafkaError._SSL, "ssl://h:1: SSL handshake failed: unexpected eof"), False),
        (KafkaError(KafkaError._AUTHENTICATION, "wrong password"), True),
        (KafkaError(KafkaError._TRANSPORT, "connection refused"), False),
    ],
)
def test_a_broker_that_is_killed_in_a_handshake_refuses_nobody(
    monkeypatch: pytest.MonkeyPatch, error: KafkaError, refused: bool
) -> None:
    """A run would end in a restart of its brokers; the last refusal stays what is told."""
    monkeypatch.setattr(connection_diagnosis, "tls_failure", lambda _: "h:1: expired")
    failures = ConnectionFailures()
    failures(error)
    with pytest.raises(Denied, match=f"connect: {error.str()}") if refused else nullcontext():
        failures.check(Connection("h:1"), "connect")
    failures(KafkaError(KafkaError._AUTHENTICATION, "no such user"))
    failures(KafkaError(KafkaError._TRANSPORT, "gone"))
    with pytest.raises(Denied, match="connect: no such user"):
        failures.check(Connection("h:1"), "connect")


CREATED, EXISTS, LATE, DENIED = (
    None,
    KafkaError(KafkaError.TOPIC_ALREADY_EXISTS),
    KafkaError(KafkaError._TIMED_OUT),
    KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
)


class Brokers:
    """An admin client: how many brokers are registered, and what creation answers; the last of each stays."""

    def __init__(self, registered: Iterable[int], answers: Iterable[KafkaError | None] = (CREATED,)) -> None:
        self.registered, self.answers = _staying(registered), _staying(answers)
        self.replicas: list[int] = []

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        return SimpleNamespace(brokers=dict.fromkeys(range(next(self.registered))))

    def create_topics(self, wanted: list[NewTopic], **_: float) -> dict[str, Future[None]]:
        return {topic.topic: self._answer(topic) for topic in wanted}

    def _answer(self, topic: NewTopic) -> Future[None]:
        self.replicas.append(topic.replication_factor)
        future, error = Future[None](), next(self.answers)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(KafkaException(error))
        return future


def _staying(values: Iterable[Any]) -> Iterator[Any]:
    last = None
    for last in values:
        yield last
    while True:
        yield last


def made(brokers: Any, seconds: float = 5.0) -> dict[str, bool]:
    return create(brokers, [TopicSpec("t", 4, {})], Deadline(seconds))


@pytest.mark.parametrize(("registered", "replicas"), [([1], 1), ([3], 3), ([9], 3), ([0, 0, 1], 1)])
def test_a_topic_has_as_many_replicas_as_there_are_brokers_up_to_three(registered: list[int], replicas: int) -> None:
    """A broker that has just started tells of none for a moment; no replicas at all would be refused."""
    brokers = Brokers(registered)
    assert (made(brokers), brokers.replicas) == ({"t": True}, [replicas])


def test_brokers_that_never_register_are_waited_for_until_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match=r"make topics: .*no broker has registered yet"):
        made(Brokers([0]), 0.3)


@pytest.mark.parametrize(
    ("answers", "by_this_call"), [([EXISTS], False), ([LATE, EXISTS], True), ([LATE, CREATED], True)]
)
def test_who_created_a_topic_is_known_though_an_answer_was_lost(answers: list[Any], by_this_call: bool) -> None:
    assert made(Brokers([1], answers)) == {"t": by_this_call}


def test_a_refusal_names_the_topic_and_what_to_do() -> None:
    with pytest.raises(Refused, match=r"'t' is missing and could not be made: .*; make it by hand"):
        made(Brokers([1], [DENIED]))


TLS = {"security.protocol": "SASL_SSL"}


@pytest.fixture
def hangs_up() -> Iterator[str]:
    """A server that ends each connection when it has heard something, as a plaintext broker does with TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(100)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def refusing() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{bound.getsockname()[1]}"


def test_a_refused_port_is_told_with_what_starts_a_broker(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkout it is `make up`; an installed wheel has no Makefile beside it."""
    diagnosis = cause(Connection(refusing))
    assert diagnosis.found == f"{refusing} refuses connections: nothing listens there"
    assert diagnosis.next == "start one with `make up`, or point BOOTSTRAP (--bootstrap) at yours"
    monkeypatch.setattr(connection_diagnosis, "_CHECKOUT", Path("/nowhere"))
    assert cause(Connection(refusing)).next.startswith("start one with `brew-sandbox up`, or point BOOTSTRAP")


def test_a_name_without_an_address_is_told_as_that() -> None:
    """Names below .invalid never have one (RFC 2606); to start a broker would not help."""
    diagnosis = cause(Connection("kafka.invalid:9092"))
    assert diagnosis.found.startswith("the name 'kafka.invalid' has no address (")
    assert diagnosis.next.startswith("correct the name in BOOTSTRAP")
    assert "make up" not in diagnosis.next


def test_a_server_may_be_written_as_the_clients_take_it(refusing: str) -> None:
    """With a scheme it was told that its name has no address."""
    for server in (f"PLAINTEXT://{refusing}", f" {refusing} ", f"SASL_SSL://{refusing}"):
        assert cause(Connection(server)).found == f"{server.strip()} refuses connections: nothing listens there"


def test_a_server_that_hangs_up_is_told_by_what_the_client_speaks(refusing: str, hangs_up: str) -> None:
    """To start another broker on the port would not work; of several servers the one that tells more is told."""
    diagnosis = cause(Connection(hangs_up, TLS, source="client.properties"))
    assert diagnosis.found == f"{hangs_up} does not speak TLS, and this client does (security.protocol is SASL_SSL)"
    assert diagnosis.next.endswith("at the broker's TLS port, since a login goes over TLS only")
    diagnosis = cause(Connection(hangs_up, {"security.protocol": "SSL"}, source="client.properties"))
    assert diagnosis.next.endswith("set security.protocol in client.properties to PLAINTEXT")
    diagnosis = cause(Connection(hangs_up))
    assert diagnosis.found == f"{hangs_up} accepts connections and answers nothing"
    assert diagnosis.next.startswith("check whether that broker hangs")
    assert hangs_up in cause(Connection(f"{refusing},{hangs_up}", TLS)).found


def test_words_that_end_a_clause_stand_in_no_cause(refusing: str, hangs_up: str) -> None:
    """What comes behind the last semicolon of a refusal is its next step."""
    for connection in (Connection(refusing), Connection("kafka.invalid:1"), Connection(hangs_up, TLS)):
        assert ";" not in "".join(cause(connection))


NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def outage(patience_s: float | None = 120.0) -> Outage:
    """Brokers that answered at 0."""
    new = Outage("k:9092", "the run waits", patience_s)
    assert new.answered(0.0) is None
    return new


def test_an_outage_is_said_once_when_it_begins_and_once_when_it_is_over() -> None:
    """With what waits, until when, and how long it lasted: counted from the last answer before it."""
    away = outage()
    assert away.answered(100.0) is None
    assert away.silent(104.0, NOON) == (
        "brokers-away: k:9092 has not answered for 4 s; the run waits, at least until 12:01:56 UTC (120 s)"
    )
    assert [away.silent(seconds, NOON) for seconds in (105.0, 120.0, 135.0)] == [None] * 3
    assert away.answered(136.0) == "brokers-back: k:9092 answers again; it was away for 36 s"
    assert [away.answered(seconds) for seconds in (138.0, 140.0)] == [None] * 2
    assert "has not answered for 20 s" in (away.silent(160.0, NOON) or "")
    assert away.answered(170.0) == "brokers-back: k:9092 answers again; it was away for 30 s"
    assert (outage(None).silent(4.0) or "").endswith("the run waits, until it answers or this program is stopped")
    never = Outage("k:9092", "the run waits", 120.0)  # the program's own first question ends it with what to do
    assert (never.silent(0.0), never.silent(100.0), never.answered(101.0)) == (None, None, None)


@pytest.mark.parametrize(("silent_s", "until"), [(119.0, "12:00:01"), (120.0, "12:00:00"), (500.0, "12:00:00")])
def test_the_time_of_giving_up_is_never_one_that_has_passed(silent_s: float, until: str) -> None:
    away = outage()
    assert f"until {until} UTC" in (away.silent(silent_s, NOON) or "")


def test_a_client_holds_what_the_promise_rests_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the file of settings says: these are refused there, and set here."""
    made: list[dict[str, Any]] = []
    for kind in ("Producer", "Consumer"):
        monkeypatch.setattr(clients, kind, made.append)
    connection = Connection("h:1", {"client.id": "me"})
    clients.producer(connection, "g:in:0", timeout_s=60.0, message_max_bytes=7)
    clients.consumer(connection, "g", "read_committed")
    writer, reader = made
    assert (
        writer.items()
        >= {
            "transactional.id": "g:in:0",
            "transaction.timeout.ms": 60_000,
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "allow.auto.create.topics": False,
            "metadata.recovery.strategy": "none",
            "message.max.bytes": 7,
            "client.id": "me",
        }.items()
    )
    assert (
        reader.items()
        >= {
            "group.id": "g",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "allow.auto.create.topics": False,
            "enable.partition.eof": True,
            "client.id": "me",
        }.items()
    )
