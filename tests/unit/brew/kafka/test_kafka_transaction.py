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

    def __init__(self) -> None:
        self.invalidated = 0

    def client(self) -> Group:
        return self

    def consumer_group_metadata(self) -> str:
        return "metadata"

    def committed(self, *_args: object) -> None: ...
    def confirm(self, *_args: object) -> None: ...

    def invalidate(self) -> None:
        self.invalidated += 1


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

    def __len__(self) -> int:
        return 1

    def poll(self, _timeout: float) -> None: ...

    def purge(self) -> None:
        self.calls.append("purge")

    def commit_transaction(self, _timeout: float) -> None: ...

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


def done() -> None: ...


@pytest.mark.parametrize(
    ("commit", "raised", "sent"),
    [
        (done, None, ["close"]),
        # The brokers may have applied it, and an abort behind it would contradict it.
        (failing(KafkaError._FAIL), Fatal, []),
        (failing(KafkaError._FENCED), Fenced, []),
        (failing(KafkaError.TRANSACTION_COORDINATOR_FENCED, abortable=True), Abortable, []),
    ],
)
def test_behind_a_commit_that_may_have_been_applied_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, commit: Callable[[], None], raised: type[Exception] | None, sent: list[str]
) -> None:
    """The next fence decides. A position that was the base of a failed one is asked for through new clients."""
    producer = Producer(done)
    producer.commit_transaction = lambda _timeout: commit()  # type: ignore[method-assign]
    kafka = begun(monkeypatch, producer)
    if raised is None:
        write(kafka)
    else:
        with pytest.raises(raised):
            write(kafka)
    kafka.close()
    kafka.close()
    assert producer.calls == sent
    assert kafka._locator.invalidated == (raised is not None)  # type: ignore[attr-defined]
    with pytest.raises(Fatal, match="the transaction's producer is closed"):
        kafka.produce("out", b"value")


def test_a_transaction_that_is_left_open_is_aborted_before_its_producer_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever leaves it behind an interrupt: the library's `close` alone waits for an abort without a limit."""
    producer = Producer()
    kafka = begun(monkeypatch, producer)
    kafka.begin()
    kafka.close()
    assert producer.calls == ["purge", "abort", "close"]
    assert kafka._locator.invalidated == 0, "no position was the base of it"  # type: ignore[attr-defined]


def test_an_offset_that_the_library_would_ignore_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it has sent it."""
    producer = Producer(done)
    kafka = begun(monkeypatch, producer)
    with pytest.raises(Fatal, match="send-offsets: -1 is not an offset"):
        kafka.send_offsets(-1, "", Deadline(5))
    kafka.send_offsets(0, "", Deadline(5))
    assert len(producer.timeouts) == 1


def test_records_that_stay_in_the_queue_end_the_step_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    left = [3, 2, 0]
    producer = Producer()
    producer.flush = lambda _timeout: left.pop(0) if left else 1  # type: ignore[method-assign]
    kafka = begun(monkeypatch, producer)
    kafka.flush(Deadline(5))
    assert left == []
    with pytest.raises(DeadlineExceeded, match=r"produce: 1 records undelivered after 0\.01 s"):
        kafka.flush(Deadline(0.01))


def test_a_querys_source_offsets_go_to_their_own_group_before_the_sinks_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lag tools tell by their metadata whose transaction a partition waits for."""

    class Named(Group):
        def __init__(self, _connection: Connection, group: str) -> None:
            super().__init__()
            self.group = group

        def consumer_group_metadata(self) -> str:
            return self.group

    sent: list[tuple[str, list[tuple[str, int, int, str]]]] = []
    producer = Producer()
    producer.send_offsets_to_transaction = lambda offsets, group, _timeout: sent.append(  # type: ignore[method-assign]
        (str(group), [(one.topic, one.partition, one.offset, one.metadata) for one in offsets])
    )
    kafka = begun(monkeypatch, producer)
    monkeypatch.setattr(transaction, "locator", Named)
    monkeypatch.setattr("brew.kafka.sink_transaction.locator", Named)
    settings = TransactionSettings(Connection("nowhere:1"), "revenue", 30)
    kafka = SinkTransaction(settings, "out", "lag", {"in": {0: 7, 1: 9}})
    kafka.send_offsets(5, "metadata", Deadline(5))
    ours = "revenue:out:sink"
    assert sent == [("lag", [("in", 0, 7, ours), ("in", 1, 9, ours)]), ("revenue", [("out", 0, 5, "metadata")])]
