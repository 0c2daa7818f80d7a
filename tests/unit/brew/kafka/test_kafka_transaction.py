"""Fences that call again soon, and `send_offsets_to_transaction` that may hang (librdkafka issues 5456, 5511)."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable, DeadlineExceeded, Fatal, Fenced
from brew.kafka import transaction
from brew.kafka.sink_transaction import SinkTransaction
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.transaction import Write, transact


class Group:
    """As much of a `Locator` as sending offsets needs."""

    confirmation = property(lambda self: self)

    def client(self) -> Group:
        return self

    def consumer_group_metadata(self) -> str:
        return "metadata"

    def committed(self, *_args: object) -> None: ...
    def confirm(self, *_args: object) -> None: ...
    def invalidate(self) -> None: ...


LIBRDKAFKAS_PAUSE_S = 0.5


class Producer:
    """``answers``: what each call of `send_offsets_to_transaction` does; ``busy``: code and number of failed fences."""

    def __init__(self, *answers: Callable[[], None], busy: tuple[int, int] = (0, 0)) -> None:
        self.answers, self.busy = list(answers), busy
        self.timeouts, self.fences, self.calls = list[float](), list[float](), list[str]()

    def send_offsets_to_transaction(self, _offsets: object, group: object, timeout: float) -> None:
        assert group == "metadata"
        self.timeouts.append(timeout)
        self.answers.pop(0)()

    def init_transactions(self, timeout: float) -> None:
        self.fences.append(timeout)
        if len(self.fences) <= self.busy[1]:
            failing(self.busy[0], retriable=True)()

    def produce(self) -> None: ...
    def begin_transaction(self) -> None: ...

    def flush(self, _timeout: float) -> int:
        return 0

    def poll(self, _timeout: float) -> None: ...

    def purge(self) -> None:
        self.calls.append("purge")

    def abort_transaction(self, _timeout: float) -> None:
        self.calls.append("abort")

    def close(self) -> None:
        self.calls.append("close")


def failing(code: int, *, abortable: bool = False, retriable: bool = False) -> Callable[[], None]:
    def fail() -> None:
        raise KafkaException(KafkaError(code, "no", False, retriable, abortable))

    return fail


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A call that waits for it hangs until the test ends; a call is given up after 50 ms."""
    monkeypatch.setattr(transaction, "_SEND_OFFSETS_S", 0.04)
    monkeypatch.setattr(transaction, "_RETURN_S", 0.01)
    event = threading.Event()
    yield event
    event.set()


def begun(monkeypatch: pytest.MonkeyPatch, producer: Producer, kind: type = KafkaTransaction) -> KafkaTransaction:
    monkeypatch.setattr(transaction, "producer", lambda *_args, **_settings: producer)
    monkeypatch.setattr(transaction, "locator", lambda *_args: Group())
    settings = TransactionSettings(Connection("nowhere:1"), "group", 30)
    if kind is SinkTransaction:
        monkeypatch.setattr("brew.kafka.sink_transaction.locator", lambda *_args: Group())
        return SinkTransaction(settings, "out", "source", {"orders": {0: 7}})
    return kind(settings, "orders", 0)


def write(kafka: KafkaTransaction) -> None:
    transact(kafka, lambda _committed: Write(lambda _by: None, lambda: 5, "", Deadline(30)), Deadline(30))


@pytest.mark.parametrize("code", [KafkaError.CONCURRENT_TRANSACTIONS, KafkaError._TIMED_OUT])
def test_a_fence_calls_again_long_before_the_library_looks_again(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """While the transaction before is being completed, or no connection is up, librdkafka waits half a second."""
    producer = Producer(busy=(code, 5))
    begun(monkeypatch, producer).fence(Deadline(20))
    assert len(producer.fences) == 6
    assert sum(producer.fences) < LIBRDKAFKAS_PAUSE_S / 3


def test_the_calls_of_a_fence_grow_longer_and_end_with_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that are away for long are not asked a hundred times a second."""
    producer = Producer(busy=(KafkaError._TIMED_OUT, 60))
    begun(monkeypatch, producer).fence(Deadline(20))
    assert (producer.fences[0], producer.fences[-1]) == (0.01, 3.0)
    assert producer.fences == sorted(producer.fences)
    with pytest.raises(DeadlineExceeded, match="fence"):
        begun(monkeypatch, Producer(busy=(KafkaError.CONCURRENT_TRANSACTIONS, 10**9))).fence(Deadline(0.05))


@pytest.mark.parametrize("kind", [KafkaTransaction, SinkTransaction])
def test_a_call_that_hangs_ends_the_attempt_and_nothing_more_is_sent(
    monkeypatch: pytest.MonkeyPatch, released: threading.Event, kind: type[KafkaTransaction]
) -> None:
    """Any further call of the producer would hang as well, or contradict what the hanging one still sends."""
    producer = Producer(released.wait)
    kafka = begun(monkeypatch, producer, kind)
    expected = r"send-offsets.*: the client did not return within its time-out of 0.04 s"
    with pytest.raises(DeadlineExceeded, match=expected):
        write(kafka)
    with pytest.raises(DeadlineExceeded, match="abort: the producer has not returned"):
        kafka.abort(Deadline(30))
    kafka.close()
    assert producer.calls == []


def test_a_call_gets_the_time_that_is_left_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(lambda: None, lambda: None)
    kafka = begun(monkeypatch, producer)
    kafka.send_offsets(5, "", Deadline(300))
    kafka.send_offsets(5, "", Deadline(3))
    assert producer.timeouts[0] == 20
    assert 2 < producer.timeouts[1] <= 3


@pytest.mark.parametrize("step", ["init_transactions", "begin_transaction"])
@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError.INVALID_TRANSACTION_TIMEOUT])
def test_after_a_fatal_error_the_library_is_not_told_to_abort(
    monkeypatch: pytest.MonkeyPatch, step: str, code: int
) -> None:
    """Its `close` does, and prints a RuntimeWarning that the abort failed."""
    producer = Producer()
    setattr(producer, step, lambda *_timeout: failing(code)())
    kafka = begun(monkeypatch, producer)
    with pytest.raises((Fatal, Fenced)):
        write(kafka)
    kafka.close()
    assert producer.calls == []


def test_its_errors_are_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = failing(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, retriable=True)
    producer = Producer(busy, failing(KafkaError.UNKNOWN_MEMBER_ID, abortable=True), failing(KafkaError._FENCED))
    kafka = begun(monkeypatch, producer)
    with pytest.raises(Abortable, match="send-offsets"):
        write(kafka)
    assert (len(producer.timeouts), producer.calls) == (2, ["purge", "abort"])
    with pytest.raises(Fenced):
        kafka.send_offsets(5, "", Deadline(30))


def test_an_error_keeps_no_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have 1,024 of them, and an error in a cycle would keep each until the next collection."""
    producer = Producer(failing(KafkaError.UNKNOWN_MEMBER_ID, abortable=True))
    kafka = begun(monkeypatch, producer)
    gc.disable()
    try:
        with pytest.raises(Abortable):
            kafka.send_offsets(5, "", Deadline(30))
        kafka.close()
        left = weakref.ref(producer)
        monkeypatch.undo()
        del producer, kafka
        assert left() is None
    finally:
        gc.enable()
