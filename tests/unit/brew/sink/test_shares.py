"""A sink whose tasks write: their reports, what a task needs of aiokafka, and the end of their transaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as client_errors
from harness.fakes import Broker, FakeTransaction
from hypothesis import given
from hypothesis import strategies as st
from py4j.protocol import Py4JError

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable, BrewError, DeadlineExceeded, Denied, Fatal, Fenced, Refused, Retriable, Unreachable
from brew.kafka import oauth, shared_transaction, shared_writer, sink_transaction
from brew.kafka.shared_transaction import SharedTransaction
from brew.kafka.shared_writer import Written, adopted
from brew.kafka.sink_transaction import SharedEpoch, check_brokers, last_in_topic, max_batch_bytes
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.names import SINK_BATCH, SINK_NAME
from brew.offsets import Committed, LogOffsets
from brew.sink import batch as batches
from brew.sink import query, shared, tasks
from brew.sink.batch import BatchJob, Result, Status, write_alone
from brew.sink.position import Batch, PositionBehind, PositionMetadata
from brew.sink.query import kafka_offsets
from brew.sink.shared import Overlap, SharedWriter, checked

WORDS = st.text(st.characters(exclude_categories=["Cs"]))
EPOCH = SharedEpoch(Connection("nowhere:1"), "revenue:out:sink", 4711, 7, 60.0)


def test_an_adopted_producer_writes_under_the_drivers_id_and_epoch_and_asks_for_none() -> None:
    """
    The one place that leans on a private attribute of aiokafka: `_txn_manager.set_pid_and_epoch`.

    When this is red after an upgrade, pin the version before, and look how its producer gets its id now.
    """

    async def look() -> tuple[AIOKafkaProducer, bool, int, int, bool]:
        producer = adopted(EPOCH)
        await producer._sender._maybe_wait_for_pid()  # would ask the coordinator without the id
        await producer.begin_transaction()
        manager = producer._txn_manager
        return producer, manager.has_pid(), manager.producer_id, manager.producer_epoch, manager.is_in_transaction()

    producer, has_id, producer_id, epoch, begun = asyncio.run(look())
    assert (has_id, producer_id, epoch, begun) == (True, 4711, 7, True)
    assert producer._txn_manager.transactional_id == "revenue:out:sink"
    producer._closed = True  # it was never started, and would say so


def test_an_adopted_producer_logs_in_with_the_processs_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same that librdkafka and kafka-python get, and the extensions beside it."""
    settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"}
    settings |= {"sasl.oauthbearer.client.id": "sink", "sasl.oauthbearer.extensions": "logicalCluster=lkc-1"}
    now = time.time()
    monkeypatch.setattr(oauth, "_fetched", lambda *_: oauth.Token("a-token", now + 60, now + 60))

    async def look() -> tuple[str, dict[str, str]]:
        producer = adopted(replace(EPOCH, connection=Connection("nowhere:1", settings)))
        producer._closed = True
        provider = producer.client._sasl_oauth_token_provider
        return await provider.token(), provider.extensions()

    try:
        assert asyncio.run(look()) == ("a-token", {"logicalCluster": "lkc-1"})
    finally:
        oauth.forget()


def test_an_adopted_producer_takes_servers_and_client_id_as_librdkafka_does() -> None:
    """Quotas and brokers' metrics go by the id; most of a sink's traffic is that of its tasks."""
    connection = Connection("PLAINTEXT://one:1, two:2,[::1]:3", {"client.id": "revenue"})

    async def look() -> tuple[str, list[tuple[str, int]]]:
        producer = adopted(replace(EPOCH, connection=connection))
        producer._closed = True
        return str(producer.client._client_id), sorted((host, port) for host, port, _ in producer.client.hosts)

    assert asyncio.run(look()) == ("revenue", [("::1", 3), ("one", 1), ("two", 2)])


def wrote(*partitions: str) -> Result:
    return Result(Status.WRITTEN, len(partitions), partitions=[*partitions])


OUT_OF_ORDER = Abortable(f"produce: [Error 45] x ({client_errors.OutOfOrderSequenceNumber.__name__})")


@pytest.mark.parametrize(
    ("results", "error", "expected"),
    [
        # Both tasks' sequence numbers began at 0, so brokers took the second one's records for duplicates,
        ([wrote("out/0", "out/1"), wrote("out/1")], Overlap, "two tasks wrote to out/1"),
        ([wrote("out/0", "out/1"), wrote(), wrote("out/2"), wrote("out/2")], Overlap, "two tasks wrote to out/2"),
        # or refused them: attempted without a shuffle again, five times, that ended a query (cell F39-rand-tasks).
        ([wrote("out/0"), Result.of(OUT_OF_ORDER)], Overlap, r"OutOfOrderSequenceNumber\) \(1 of 2 tasks\)"),
        ([Result.of(Abortable("produce: gone"))], Abortable, "produce: gone"),
        ([wrote(), Result.of(Fenced("produce: gone"))], Abortable, r"Fenced: produce: gone \(1 of 2 tasks\)"),
        ([Result.of(Fenced("x")), Result.of(Refused("no such topic"))], Refused, r"^no such topic$"),
    ],
)
def test_a_failed_task_or_two_in_one_partition_end_the_batch_with_the_reason(
    results: list[Result], error: type[Exception], expected: str
) -> None:
    """A refusal goes before a failure."""
    checked([wrote("out/0", "out/1"), wrote(), wrote("out/2")])
    with pytest.raises(error, match=expected) as caught:
        checked(results)
    assert isinstance(caught.value, Overlap) is (error is Overlap)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Refused("a"), Status.REFUSED),
        (Denied("b"), Status.REFUSED),
        (PositionBehind("an old answer"), Status.BEHIND),
        (Fenced("c"), Status.FAILED),
        (Abortable("d"), Status.FAILED),
        (Unreachable("brokers come back"), Status.FAILED),
        (Fatal("fence: InvalidTransactionTimeoutError for transactional id x"), Status.REFUSED),
        (Fatal("fence: larger than the maximum value (INVALID_TRANSACTION_TIMEOUT)"), Status.REFUSED),
        (Abortable("produce: [Error 87] INVALID_RECORD (InvalidRecordError)"), Status.REFUSED),
        (Abortable("commit: Broker failed to validate record (INVALID_RECORD)"), Status.REFUSED),
        (Fatal("send-offsets of group x in topic t: OffsetMetadataTooLargeError for id x"), Status.REFUSED),
        (Abortable("send-offsets: Offset metadata string too large (OFFSET_METADATA_TOO_LARGE)"), Status.REFUSED),
        (Fenced("fence: ProducerFencedError for transactional id x:InvalidRecords:sink: a newer"), Status.FAILED),
        (Retriable("send-offsets of group x in topic MSG_SIZE_TOO_LARGE: (NOT_COORDINATOR)"), Status.FAILED),
    ],
)
def test_refusals_end_the_query_and_other_errors_the_attempt(error: Exception, status: Status) -> None:
    """A topic's name may contain that of an error."""
    assert Result.of(error).status is status  # type: ignore[arg-type]


def test_advice_that_a_task_gave_is_not_given_again() -> None:
    once = Result.of(Abortable("produce: x (MessageSizeTooLargeError)")).detail.partition(": ")[2]
    assert once.count("raise that") == 1
    assert Result.of(Refused(once)).detail == f"Refused: {once}"


@given(st.sampled_from(Status), st.integers(0, 2**53), WORDS, st.lists(WORDS), st.integers(-1, 2**31))
def test_a_result_is_read_back_as_it_was_written(
    status: Status, rows: int, detail: str, partitions: list[str], stage: int
) -> None:
    result = Result(status, rows, detail, partitions, stage)
    assert Result.decoded(result.encoded()) == result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"in":{"0":10,"1":20}}', {"in": {0: 10, 1: 20}}),
        ('{"offset":4,"timestamp":1000}', {}),
        ('{"logOffset":3}', {}),
        ("17", {}),
        ('"x"', {}),
    ],
)
def test_only_kafkas_source_offsets_are_read(text: str, expected: dict[str, dict[int, int]]) -> None:
    assert kafka_offsets(text) == expected


NOT_COORDINATOR, CONCURRENT, OLD_EPOCH, FENCED, STATE, ID_DENIED, INVALID = 16, 51, 47, 90, 48, 53, 42


class Coordinator:
    """Answers with these error codes, one after another, the last one for ever; an exception is raised."""

    def __init__(self, *answers: int | BrewError) -> None:
        self.answers, self.calls, self.forgotten = list(answers), 0, 0
        self.allowed_s: list[tuple[float, float]] = []
        self.confirmation = self
        self._request_s = 0.0

    def client(self, deadline: Deadline, request_s: float) -> Coordinator:
        if deadline.remaining_s() <= 0:
            raise Unreachable("no Kafka broker answered")
        self._request_s = request_s
        return self

    def forget(self, _client: Coordinator) -> None:
        self.forgotten += 1

    def ask(self, _step: str, _call: Any, deadline: Deadline) -> Any:
        self.calls += 1
        self.allowed_s.append((self._request_s, deadline.budget_s))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BrewError):
            raise answer
        return SimpleNamespace(error_code=answer, producer_id=4711, producer_epoch=7)


def driver(monkeypatch: pytest.MonkeyPatch, *answers: int | BrewError) -> tuple[SharedTransaction, Coordinator]:
    coordinator = Coordinator(*answers)
    monkeypatch.setattr(shared_transaction, "locator", lambda *_: coordinator)
    return SharedTransaction(TransactionSettings(Connection("nowhere:1"), "revenue", 60.0), "out"), coordinator


def test_tasks_get_the_last_fences_id_and_epoch_and_the_driver_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, _ = driver(monkeypatch, 0)
    kafka.fence(Deadline(5))
    epoch = kafka.epoch
    values = (epoch.transactional_id, epoch.producer_id, epoch.epoch, epoch.timeout_s)
    assert values == ("revenue:out:sink", 4711, 7, 60.0)
    with pytest.raises(Fatal):
        kafka.produce("out", b"value")
    with pytest.raises(Fatal):
        kafka.make_room(Deadline(1))


@pytest.mark.parametrize(
    ("answers", "anew"),
    [
        ([CONCURRENT, CONCURRENT], 0),
        *(([answer], 1) for answer in (NOT_COORDINATOR, Retriable("cut off"), DeadlineExceeded("no answer"))),
    ],
)
def test_an_ending_transaction_is_waited_for_and_a_lost_coordinator_looked_for_anew(
    monkeypatch: pytest.MonkeyPatch, answers: list[int | BrewError], anew: int
) -> None:
    kafka, coordinator = driver(monkeypatch, *answers, 0)
    kafka.fence(Deadline(5))
    assert (coordinator.calls, coordinator.forgotten) == (len(answers) + 1, anew)


def test_a_distant_coordinator_gets_more_time_with_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt is a new client's, with its connections and logins: a fixed time might never be enough."""
    kafka, coordinator = driver(monkeypatch, *[DeadlineExceeded("no answer")] * 4, 0)
    kafka.fence(Deadline(100))
    assert coordinator.allowed_s == [(s, s) for s in (5.0, 10.0, 20.0, 20.0, 20.0)]


@pytest.mark.parametrize(
    ("code", "leaf"), [(OLD_EPOCH, Fenced), (FENCED, Fenced), (STATE, Abortable), (ID_DENIED, Denied), (INVALID, Fatal)]
)
def test_other_answers_end_the_attempt(monkeypatch: pytest.MonkeyPatch, code: int, leaf: type[BrewError]) -> None:
    kafka, coordinator = driver(monkeypatch, code)
    with pytest.raises(leaf, match="transactional id revenue:out:sink"):
        kafka.commit(Deadline(5))
    assert coordinator.calls == 1


def test_a_coordinator_that_may_not_be_asked_for_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers tell it to those who may describe the id."""
    kafka, coordinator = driver(monkeypatch, Fatal("fence: (TransactionalIdAuthorizationFailedError)"), 0)
    with pytest.raises(Denied):
        kafka.fence(Deadline(5))
    assert coordinator.calls == 1


@pytest.mark.parametrize(
    "step",
    [lambda kafka, deadline: kafka.commit(deadline), lambda kafka, deadline: kafka.send_offsets(8, "", deadline)],
)
def test_an_end_without_an_answer_is_an_open_question(
    monkeypatch: pytest.MonkeyPatch, step: Callable[[SharedTransaction, Deadline], None]
) -> None:
    """The next attempt's locate answers it, and not after the day that a batch's job may take."""
    monkeypatch.setattr(shared_transaction, "_END_S", 0.1)
    kafka, coordinator = driver(monkeypatch, Retriable("cut off"))
    with pytest.raises((DeadlineExceeded, Unreachable)):  # Unreachable: a last attempt began at the deadline
        step(kafka, Deadline(2))
    assert max(budget_s for _, budget_s in coordinator.allowed_s) <= 0.1


def test_what_brokers_answered_last_is_the_reason_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last attempt has no time left for a client of its own, and "no broker answered" sends people elsewhere."""
    kafka, coordinator = driver(monkeypatch, NOT_COORDINATOR)
    with pytest.raises(DeadlineExceeded, match="NotCoordinatorError"):
        kafka.fence(Deadline(1))
    assert coordinator.calls > 1
    with pytest.raises(Unreachable, match="no Kafka broker answered"):
        kafka.fence(Deadline(1e-9))


class Group:
    """A group's locator, connection and coordinator in one: notes what is sent to whom, and answers with no error."""

    def __init__(self, *codes: int) -> None:
        self.confirmation = self._manager = self
        self.codes = codes or (0,)
        self.sent: list[tuple[Any, ...]] = []

    def committed(self, *_: object) -> Committed:
        return Committed(3, "m")

    def client(self, *_: object) -> Group:
        return self

    def forget(self, _client: object) -> None: ...

    def ask(self, _step: str, call: Callable[[Any], Awaitable[Any]], _deadline: Deadline) -> Any:
        return asyncio.run(call(self))  # type: ignore[arg-type]

    async def _find_coordinator_id(self, key: str, kind: int) -> tuple[str, int]:
        return key, kind

    async def send(self, request: Any, node_id: tuple[str, int]) -> Any:
        self.sent.append((type(request).__name__, node_id, request))
        if hasattr(request, "topics"):
            partitions = [SimpleNamespace(error_code=code) for code in self.codes]
            return SimpleNamespace(topics=[SimpleNamespace(partitions=[]), SimpleNamespace(partitions=partitions)])
        return SimpleNamespace(error_code=0, producer_id=4711, producer_epoch=7)

    def confirm(self, topic: str, partition: int, located: Committed | None, _deadline: Deadline) -> None:
        self.sent.append(("confirm", (topic, partition), located))


def sent_with(monkeypatch: pytest.MonkeyPatch, group: Group) -> SharedTransaction:
    """A transaction behind its second step that commits a query's source offsets, too."""
    monkeypatch.setattr(shared_transaction, "locator", lambda *_: group)
    kafka = SharedTransaction(TransactionSettings(Connection("nowhere:1"), "revenue", 60.0), "out")
    kafka.fence(Deadline(5))
    kafka.locate(Deadline(5))
    kafka.source = ("lag", {"in": {0: 5, 1: 9}})
    return kafka


def test_both_groups_offsets_are_sent_and_the_sinks_position_is_confirmed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that is cut off located an old position; the broker counts the time-out in milliseconds."""
    group = Group()
    sent_with(monkeypatch, group).send_offsets(8, "metadata", Deadline(5))
    (_, to, fence), *offsets = group.sent
    ours = ("revenue:out:sink", 1)
    assert (to, fence.transaction_timeout_ms) == (ours, 60_000)
    assert [(name, to) for name, to, _ in offsets] == [
        ("AddOffsetsToTxnRequest", ours),
        ("TxnOffsetCommitRequest", ("lag", 0)),
        ("AddOffsetsToTxnRequest", ours),
        ("TxnOffsetCommitRequest", ("revenue", 0)),
        ("confirm", ("out", 0)),
    ]
    commits = [request for name, _, request in offsets if name == "TxnOffsetCommitRequest"]
    assert [
        (topic.name, one.partition_index, one.committed_offset, one.committed_metadata)
        for request in commits
        for topic in request.topics
        for one in topic.partitions
    ] == [("in", 0, 5, "revenue:out:sink"), ("in", 1, 9, "revenue:out:sink"), ("out", 0, 8, "metadata")]
    assert offsets[-1][2] == Committed(3, "m")


def test_an_offset_that_is_refused_ends_the_attempt_whichever_partitions_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the transaction would commit without it."""
    kafka = sent_with(monkeypatch, group := Group(0, 0, FENCED))
    with pytest.raises(Fenced):
        kafka.send_offsets(8, "metadata", Deadline(5))
    assert group.sent[-1][0] == "TxnOffsetCommitRequest"


@pytest.mark.parametrize(
    ("raised", "error", "expected"),
    [
        (TimeoutError(), DeadlineExceeded, "records undelivered after 60 s"),
        (client_errors.ProducerFenced(), Fenced, "ProducerFenced: a newer attempt has transactional id revenue:out"),
        (client_errors.InvalidProducerEpoch(), Fenced, "InvalidProducerEpoch: a newer attempt"),
        (client_errors.TopicAuthorizationFailedError("out"), Denied, r"\(TopicAuthorizationFailedError\)"),
        (client_errors.TransactionalIdAuthorizationFailed(), Denied, r"\(TransactionalIdAuthorizationFailed\)"),
        (client_errors.KafkaConnectionError("gone"), Abortable, r"produce: .*gone \(KafkaConnectionError\)"),
        (client_errors.OutOfOrderSequenceNumber(), Abortable, r"\(OutOfOrderSequenceNumber\)"),
        (AssertionError(), Abortable, r"\(AssertionError\)"),
    ],
)
def test_what_a_tasks_client_raises_is_one_of_ours(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, error: type[BrewError], expected: str
) -> None:
    """The names are those by which `Result.of` and `checked` tell refusals and overlaps."""
    reached = Mock()
    monkeypatch.setattr(shared_writer, "reach", reached)
    monkeypatch.setattr(shared_writer, "adopted", Mock(side_effect=raised))
    with pytest.raises(error, match=expected) as caught:
        shared_writer.write(EPOCH, iter([ROWS]))
    assert type(caught.value) is error
    # It looks alike to aiokafka whether a login is refused or nobody is there.
    assert reached.called is isinstance(raised, client_errors.KafkaConnectionError)


def test_a_task_without_rows_opens_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 tasks behind a shuffle, most may have none."""
    monkeypatch.setattr(shared_writer, "adopted", Mock(side_effect=AssertionError))
    assert shared_writer.write(EPOCH, iter(())) == Written(0, set())


@pytest.mark.parametrize(("version", "refused"), [((3, 5, 2), True), ((3, 6), False), ((4, 1), False)])
def test_brokers_before_3_6_are_refused(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], refused: bool
) -> None:
    data = SimpleNamespace(broker_version=version)
    client = SimpleNamespace(_manager=SimpleNamespace(broker_version_data=data))
    monkeypatch.setattr("brew.kafka.kafka_python.kafka_python_admin", lambda *_: nullcontext(client))
    if refused:
        with pytest.raises(Refused, match=r"speak the protocol of Kafka 3\.5\.2; the sink needs 3\.6 or later"):
            check_brokers(EPOCH.connection, Deadline(5))
    else:
        check_brokers(EPOCH.connection, Deadline(5))


DENIED = Fatal("configuration of out: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)")


@pytest.mark.parametrize(("limit", "size"), [(5000, 5000), (10**9, 1_000_000), (DENIED, 1_000_000)])
def test_a_batch_is_no_larger_than_its_topic_takes_where_that_may_be_read(
    monkeypatch: pytest.MonkeyPatch, limit: Any, size: int
) -> None:
    """A sink does without DescribeConfigs."""
    answer = Mock(side_effect=[limit])
    monkeypatch.setattr(sink_transaction, "admin", lambda _: None)
    monkeypatch.setattr(sink_transaction.topics, "max_message_bytes", answer)
    assert max_batch_bytes(EPOCH.connection, "out", Deadline(5)) == size
    answer.side_effect = DeadlineExceeded("no answer")
    with pytest.raises(DeadlineExceeded):
        max_batch_bytes(EPOCH.connection, "out", Deadline(5))


def test_the_evidence_of_a_lost_position_is_the_highest_batch_at_the_end_of_any_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of this sink, and visible; what another program wrote under these names is none."""
    asked: list[Any] = []
    logs = {0: LogOffsets(5, 9, 12), 1: LogOffsets(0, 5000, 5001)}
    mine, other = (SINK_NAME, b"revenue"), (SINK_NAME, b"else")
    found = [[mine, (SINK_BATCH, b"7")], [mine, (SINK_BATCH, b"12")], [other, (SINK_BATCH, b"99")]]
    found += [[mine], [mine, (SINK_BATCH, None)], [mine, (SINK_BATCH, b"-3")], [], [(SINK_BATCH, b"50")]]

    def scan_rows(_connection: object, topic: str, ranges: Any, isolation: str, *_: object, group: str) -> Any:
        asked.append((topic, ranges, isolation, group))
        return iter([[(0, n, b"k", b"v", headers, None) for n, headers in enumerate(found)], []])

    monkeypatch.setattr(sink_transaction, "admin", lambda _: None)
    monkeypatch.setattr(sink_transaction, "described", lambda *_: Topic("out", "id", 2, 1))
    monkeypatch.setattr(
        sink_transaction, "log_offsets", lambda _client, _topic, asked, _deadline: {p: logs[p] for p in asked}
    )
    monkeypatch.setattr(sink_transaction, "scan_rows", scan_rows)
    look = (EPOCH.connection, "out", "revenue", SINK_BATCH, mine)
    assert last_in_topic(*look) == 12
    assert asked == [("out", {0: (5, 9), 1: (3000, 5000)}, "read_committed", "revenue")]
    found[:] = [[other]]
    assert last_in_topic(*look) is None


METADATA = PositionMetadata("query", "offsets", "topic-id")
JOB = BatchJob(Batch("revenue", "out", 2, METADATA), EPOCH.connection, 60.0, "out", headers=True, counts={"out": 3})
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROWS = pa.record_batch(
    {
        "value": pa.array([b"a", None, b"c"], pa.binary()),
        "key": pa.array([None, b"k", b""], pa.binary()),
        "partition": pa.array([0, 2, None], pa.int32()),
        "headers": pa.array([[{"key": "h", "value": None}], [], None], PAIRS),
    }
)
OURS = [(SINK_NAME, b"revenue"), (SINK_BATCH, b"2")]


class Writer(FakeTransaction):
    """Also the driver's half of a transaction that tasks write in."""

    @property
    def epoch(self) -> int:
        return self._epoch

    def invalidate(self) -> None:
        self.steps.append("invalidate")

    def close(self) -> None:
        self.steps.append("close")


def test_a_batch_is_written_once_where_its_rows_say_and_a_repeated_task_only_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The producer's buffer is full at the second row. A batch that is out is read to its end for the state stores."""
    broker = Broker(Committed(2, str(METADATA)))
    monkeypatch.setattr(batches, "SinkTransaction", lambda *_: Writer(broker, queue=1))
    late = write_alone(replace(JOB, timeout_s=1e-9), iter([ROWS]))
    assert (late.status, broker.visible(), broker.committed) == (Status.FAILED, [], Committed(2, str(METADATA)))
    for status in (Status.WRITTEN, Status.ALREADY_OUT):
        left = iter([ROWS.slice(0, 1), ROWS.slice(1)])
        assert write_alone(JOB, left).status is status
        assert list(left) == []
        assert broker.committed == Committed(3, str(METADATA))
        assert [(one.partition, one.key, one.value, one.headers) for one in broker.visible()] == [
            (0, None, b"a", [("h", None), *OURS]),
            (2, b"k", None, OURS),
            (-1, b"", b"c", OURS),
        ]


def test_a_lost_position_is_noticed_by_the_records_of_the_topic_that_rows_go_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The position may be kept under a topic of its own, which has no records."""
    asked = Mock(return_value=7)
    monkeypatch.setattr(batches, "SinkTransaction", lambda *_: Writer(Broker()))
    monkeypatch.setattr(batches, "last_in_topic", asked)
    result = write_alone(replace(JOB, batch=replace(JOB.batch, topic="positions")), iter([ROWS]))
    assert (result.status, "records up to batch 7" in result.detail) == (Status.REFUSED, True)
    asked.assert_called_once_with(JOB.connection, "out", "revenue", SINK_BATCH, OURS[0])


def test_tasks_write_in_the_epoch_of_their_attempts_fence_and_an_overlap_shuffles_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch that is out runs its plan for its state stores; an attempt that failed leaves no connection behind."""
    kafka, seen = Writer(Broker(Committed(2, str(METADATA)))), []
    answers = iter([Overlap("two tasks"), Abortable("gone"), 7])

    def run_tasks(self: SharedWriter, _frame: object, _job: BatchJob, epoch: int) -> int:
        seen.append((epoch, self._always_shuffle))
        if isinstance(answer := next(answers), BrewError):
            raise answer
        return answer

    monkeypatch.setattr(shared, "SharedTransaction", lambda *_: kafka)
    monkeypatch.setattr(SharedWriter, "_run_tasks", run_tasks)
    writer, frame = SharedWriter(JOB), Mock()
    results = [writer.write(frame, JOB) for _ in range(4)]
    assert [one.status for one in results] == [Status.FAILED, Status.FAILED, Status.WRITTEN, Status.ALREADY_OUT]
    assert (seen, kafka.steps.count("invalidate")) == ([(1, False), (2, True), (3, True)], 2)
    assert (results[2].rows, kafka.broker.committed) == (7, Committed(3, str(METADATA)))
    frame.write.format.assert_called_once_with("noop")


def test_a_stage_that_spark_ran_twice_or_has_forgotten_or_whose_reports_are_not_all_there_ends_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers drop a repeated task's records as duplicates, whatever they hold; a failure is only in its report."""
    found = {
        1: SimpleNamespace(currentAttemptId=0, numTasks=1),
        2: SimpleNamespace(currentAttemptId=1, numTasks=1),
        4: SimpleNamespace(currentAttemptId=0, numTasks=2),
    }
    frame = Mock(columns=["value"])
    frame.sparkSession.sparkContext.getConf.return_value.get.return_value = "false"
    frame.sparkSession.sparkContext.statusTracker.return_value.getStageInfo = found.get
    monkeypatch.setattr(shared, "_stays", lambda _: True)
    monkeypatch.setattr(shared, "SharedTransaction", Mock())
    errors = {2: "repeated stage 2", 3: "repeated stage 3", 4: "1 of 2 tasks of stage 4 reported"}
    for stage in (1, 2, 3, 4):
        result = SimpleNamespace(result=Result(Status.WRITTEN, 4, stage=stage).encoded())
        frame.mapInArrow.return_value.collect.return_value = [result]
        if stage not in errors:
            assert SharedWriter(JOB)._run_tasks(frame, JOB, EPOCH) == 4
        else:
            with pytest.raises(Abortable, match=errors[stage]):
                SharedWriter(JOB)._run_tasks(frame, JOB, EPOCH)


def test_a_repeated_task_writes_nothing_and_a_first_one_tells_its_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(attemptNumber=lambda: 1, stageId=lambda: 3)
    monkeypatch.setattr(tasks, "TaskContext", SimpleNamespace(get=lambda: context))
    written = SimpleNamespace(destinations={("out", 1), ("in", 0)}, records=5)
    write = Mock(return_value=written)
    monkeypatch.setattr(shared_writer, "write", write)
    again = tasks._written(JOB, EPOCH, iter(()), speculation=False)
    assert (again.status, again.stage, write.called) == (Status.FAILED, 3, False)
    # Spark ends a copy that it began on speculation as soon as the first one has ended: it must not fail before.
    waited = Mock()
    monkeypatch.setattr(tasks, "threading", SimpleNamespace(Event=lambda: waited))
    assert tasks._written(JOB, EPOCH, iter(()), speculation=True) == again
    waited.wait.assert_called_once_with(JOB.timeout_s / 2)
    context.attemptNumber = lambda: 0
    first = tasks._written(JOB, EPOCH, iter(()), speculation=False)
    assert first == Result(Status.WRITTEN, 5, partitions=["in/0", "out/1"], stage=3)


def test_no_row_is_left_out_between_chunks_and_a_row_that_can_not_be_written_is_refused_by_the_writing_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Encoding and writing may be two tasks, with a shuffle between: the refusal travels as a row."""
    monkeypatch.setattr(tasks, "_CHUNK_BYTES", 1)

    def encoded(rows: pa.RecordBatch, count: Any) -> int:
        made = tasks.encoded_rows(JOB, count, iter([rows]))
        return sum(sum(batch.column("count").to_pylist()) for batch in tasks._checked(made))

    assert encoded(ROWS, lambda _: 3) == 3
    nameless = ROWS.set_column(3, "headers", pa.array([[{"key": None, "value": b"x"}], None, None], PAIRS))
    for rows, count, why in ((ROWS, 2, "partition 2 of topic 'out', which has 2"), (nameless, 3, "header whose key")):
        with pytest.raises(Refused, match=why):
            encoded(rows, lambda _, count=count: count)
    with pytest.raises(Abortable, match=r"^brokers are away$"):
        encoded(ROWS, Mock(side_effect=Unreachable("brokers are away")))


def test_a_topic_that_rows_name_is_described_again_in_the_next_epoch() -> None:
    """It may have gained partitions; until then, one answer holds for all rows of a process."""
    job: Any = SimpleNamespace(connection=EPOCH.connection, partitions=Mock(side_effect=[3, 4]))
    epochs = [EPOCH, EPOCH, replace(EPOCH, epoch=8)]
    assert [tasks.partition_count(job, epoch, {"out": 9}, "late") for epoch in epochs] == [3, 3, 4]
    assert tasks.partition_count(job, EPOCH, {"out": 9}, "out") == 9


def test_of_two_sources_of_one_topic_the_offset_that_both_have_passed_is_committed() -> None:
    """The higher one would hide what the other has yet to read."""
    found = [
        SimpleNamespace(isDefined=lambda: True, get=lambda text=text: SimpleNamespace(json=lambda: text))
        for text in ('{"in":{"0":10,"1":20}}', '{"in":{"0":15,"1":5,"2":1}}')
    ]
    offsets = SimpleNamespace(size=lambda: 2, apply=found.__getitem__)
    entry = SimpleNamespace(version=lambda: 1, offsets=lambda: offsets)
    assert query._ends(entry) == {"in": {0: 10, 1: 5, 2: 1}}


@pytest.mark.parametrize(
    ("of_query", "active", "stopping"), [(None, True, False), ("q", True, False), ("q", False, True)]
)
def test_only_a_query_that_was_stopped_gives_its_batch_up(
    monkeypatch: pytest.MonkeyPatch, of_query: str | None, active: bool, stopping: bool
) -> None:
    """A batch job has no query that could be stopped: all its attempts are made."""
    frame = Mock()
    frame.sparkSession.sparkContext.getLocalProperty.return_value = of_query
    monkeypatch.setattr(query, "_execution", lambda *_: SimpleNamespace(isActive=lambda: active))
    assert query.is_stopping(frame) is stopping


@pytest.mark.parametrize("behind", [False, True])
def test_a_stage_of_which_spark_can_not_tell_yet_counts_as_repeated(behind: bool) -> None:
    """Its events come late under load: without them, a first attempt is all that is known."""
    frame, first = Mock(), SimpleNamespace(currentAttemptId=0)
    context = frame.sparkSession.sparkContext
    context._jsc.sc.return_value.listenerBus.return_value.waitUntilEmpty.side_effect = (
        Py4JError("10 s") if behind else None
    )
    context.statusTracker.return_value.getStageInfo.return_value = first
    assert query.was_repeated(frame, 3) is behind


@pytest.mark.parametrize(
    ("of_query", "plans", "narrow"),
    [
        (None, ["Scan"], True),
        (None, ["Exchange hashpartitioning"], False),
        ("q", ["Scan", "Project"], True),
        ("q", ["Scan", "Exchange"], False),
    ],
)
def test_a_frame_is_narrow_if_neither_it_nor_its_query_shuffles(
    monkeypatch: pytest.MonkeyPatch, of_query: str | None, plans: list[str], narrow: bool
) -> None:
    """What `foreachBatch` passes does not show where it comes from: two tasks would write to one partition."""
    executions = [
        SimpleNamespace(executedPlan=lambda text=text: SimpleNamespace(toString=lambda: text)) for text in plans
    ]
    frame = Mock()
    frame.sparkSession.sparkContext.getLocalProperty.return_value = of_query
    frame._jdf.queryExecution.return_value = executions[0]
    monkeypatch.setattr(query, "_execution", lambda *_: SimpleNamespace(lastExecution=lambda: executions[1]))
    assert query.is_narrow(frame) is narrow
