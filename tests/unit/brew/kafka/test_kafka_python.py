"""The kafka-python client: what it leaves behind, what older brokers can't answer, requests to a coordinator."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from harness.waiting import until
from kafka import KafkaAdminClient
from kafka.errors import GroupAuthorizationFailedError, KafkaTimeoutError, NotCoordinatorError
from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from brew.cluster import ENDING, ONGOING, OpenTransaction, ReadBounds
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused, Retriable
from brew.kafka import group_requests, kafka_python
from brew.kafka.group_requests import CoordinatorAnswer, FetchedOffset, OffsetFetchClient
from brew.kafka.kafka_python import KafkaPythonAdmin, NoSuchId, Unsupported
from brew.kafka.transactions_admin import TransactionsAdmin, bounds

_ENOUGH_MS = 400


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address where nobody listens, and nobody will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield "{}:{}".format(*taken.getsockname())


@pytest.fixture
def silent() -> Iterator[str]:
    """An address whose queue is full: connections to it are neither made nor refused."""
    with contextlib.ExitStack() as held:
        full = held.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(2):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        yield "{}:{}".format(*full.getsockname())


@pytest.fixture
def _uncollected() -> Iterator[None]:
    """What is in a cycle stays, as it does for long in a program that makes few objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.usefixtures("_uncollected")
@pytest.mark.parametrize("address", ["refusing", "silent"])
def test_a_client_that_nobody_answers_leaves_nothing(address: str, request: pytest.FixtureRequest) -> None:
    where = request.getfixturevalue(address)
    sockets, threads = _sockets(), set(threading.enumerate())
    _open(KafkaPythonAdmin, where)
    assert _sockets() - sockets == set()
    assert set(threading.enumerate()) - threads == set()


@pytest.mark.usefixtures("_uncollected")
def test_the_library_alone_leaves_a_socket_for_each_refusal(refusing: str) -> None:
    """Once this fails, `brew.kafka.kafka_python` needs no sockets of its own any more."""
    sockets = _sockets()
    with _ended_clients():
        _open(KafkaAdminClient, refusing)
    left = _sockets() - sockets
    for one in left:
        one.close()
    assert left != set()


def _open(client: type[KafkaAdminClient], where: str) -> None:
    with pytest.raises(KafkaTimeoutError, match="Unable to bootstrap"):
        client(bootstrap_servers=[where], bootstrap_timeout_ms=_ENOUGH_MS)


@contextlib.contextmanager
def _ended_clients() -> Iterator[None]:
    """Let the thread of a library's client that failed end."""
    known = set(map(id, _clients()))
    yield
    for one in _clients():
        if id(one) not in known:
            one._closed = False
            one.close()


def _clients() -> list[KafkaAdminClient]:
    return [one for one in gc.get_objects() if isinstance(one, KafkaAdminClient) and hasattr(one, "_net")]


def _sockets() -> set[socket.socket]:
    """The open ones, apart from pairs that wake a thread up."""
    sockets = {one for one in gc.get_objects() if isinstance(one, socket.socket)}
    return {one for one in sockets if one.family == socket.AF_INET and one.fileno() >= 0}


@pytest.mark.parametrize("kind", ["UnsupportedVersionError", "IncompatibleBrokerVersion"])
def test_an_unsupported_request_is_refused_with_the_version_that_knows_it(kind: str) -> None:
    """Kafka 3.0 brought KIP-664."""
    import kafka.errors  # noqa: PLC0415 - `introspect` imports the library first, warnings silenced

    error = kafka_python._to_brew_error(getattr(kafka.errors, kind)("ListTransactions"), "list transactions")
    assert isinstance(error, Unsupported)
    assert isinstance(error, Refused)
    assert "Kafka 3.0 or later" in str(error)
    assert str(error).startswith("list transactions")


WANTED = {"orders": [0, 1]}
_Topic = OffsetFetchResponse.OffsetFetchResponseTopic
_Group = OffsetFetchResponse.OffsetFetchResponseGroup


def _topic(kind: Any, *codes: int) -> Any:
    part = kind.OffsetFetchResponsePartition if kind is _Topic else kind.OffsetFetchResponsePartitions
    parts = [part(partition_index=p, committed_offset=7 - 8 * p, error_code=code) for p, code in enumerate(codes)]
    return kind(name="orders", partitions=parts)


def _answer(*codes: int, many: bool, error_code: int = 0) -> OffsetFetchResponse:
    """Partition 0 stands at 7, partition 1 nowhere."""
    if not many:
        return OffsetFetchResponse(topics=[_topic(_Topic, *codes)], error_code=error_code)
    topics = [_topic(_Group.OffsetFetchResponseTopics, *codes)]
    return OffsetFetchResponse(groups=[_Group(group_id="g", topics=topics, error_code=error_code)])


@pytest.mark.parametrize(("many", "version"), [(False, 7), (True, 9)])
@pytest.mark.parametrize("stable", [False, True])
def test_a_question_names_group_partitions_and_whether_it_waits(many: bool, version: int, stable: bool) -> None:
    """Brokers since 2.5 and since 3.0 are asked in different words."""
    request = group_requests._request("g", WANTED, stable, multi_group=many)
    read = OffsetFetchRequest.decode(request.encode(version=version), version=version)
    group = read.groups[0] if many else read
    topics = [(one.name, list(one.partition_indexes)) for one in group.topics]
    assert (group.group_id, topics, read.require_stable) == ("g", [("orders", [0, 1])], stable)


@pytest.mark.parametrize("many", [False, True])
def test_an_answer_tells_where_the_group_stands_and_what_is_pending(many: bool) -> None:
    responses = [_answer(code, code, many=many) for code in (0, 88)]
    stable, pending = (group_requests._parsed_response(one, multi_group=many) for one in responses)
    none = FetchedOffset(None, unstable=False)
    assert stable == {("orders", 0): FetchedOffset(7, unstable=False), ("orders", 1): none}
    assert pending["orders", 1] == FetchedOffset(None, unstable=True)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("codes", "error_code"), [((0, 16), 0), ((), 16)])
def test_an_error_is_not_taken_for_a_position(many: bool, codes: tuple[int, ...], error_code: int) -> None:
    with pytest.raises(NotCoordinatorError):
        group_requests._parsed_response(_answer(*codes, many=many, error_code=error_code), multi_group=many)


PLACE = ("orders", 0)


class Admin:
    """A client, and whether it has ended."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.may_close = threading.Event()
        self.may_close.set()

    def close(self) -> None:
        self.may_close.wait(20)
        self.closed.set()


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> Iterator[threading.Event]:
    """Looks are answered once it is set."""
    allowed = threading.Event()

    def ask(*_: object) -> list[dict[tuple[str, int], FetchedOffset]]:
        assert allowed.wait(20)
        return [{PLACE: FetchedOffset(None, unstable=True)}, {PLACE: FetchedOffset(5, unstable=False)}]

    monkeypatch.setattr(group_requests, "open_admin", lambda *_: admin)
    monkeypatch.setattr(group_requests, "ask", ask)
    yield allowed
    allowed.set()


def _fetch_client() -> OffsetFetchClient:
    return OffsetFetchClient(Connection("nowhere:1"), "g", Deadline(5), 1.0)


def test_a_connection_that_is_given_up_ends_behind_the_looks_of_others(admin: Admin, answer: threading.Event) -> None:
    client = _fetch_client()
    with ThreadPoolExecutor() as others:
        looks = [others.submit(client.fetch, "step", PLACE, Deadline(20)) for _ in range(2)]
        until(lambda: client._in_use == 2, "both looks")
        client.end()
        assert not admin.closed.is_set()
        with pytest.raises(Retriable, match="step: another transaction has closed this connection"):
            client.fetch("step", PLACE, Deadline(20))
        answer.set()
        assert [look.result(20) for look in looks] == [CoordinatorAnswer(5, aware=True)] * 2
    assert admin.closed.is_set()


@pytest.mark.usefixtures("answer")
def test_a_connection_that_nobody_uses_or_that_is_forgotten_ends_at_once_and_once(admin: Admin) -> None:
    """Forgotten with a group that this process has not asked about for long."""
    client = _fetch_client()
    client.end()
    assert admin.closed.is_set()
    admin.closed.clear()
    client.end()
    del client
    assert not admin.closed.is_set()
    client = _fetch_client()
    del client
    assert admin.closed.is_set()


@pytest.mark.usefixtures("answer")
@pytest.mark.parametrize("name", ["kafka-io-1", "worker"])
def test_an_end_that_takes_long_is_not_waited_for(name: str, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own thread would wait for itself; others may wait for an address that nobody tells."""
    monkeypatch.setattr(group_requests, "_CLOSE_S", 0.05)
    admin.may_close.clear()
    ending = threading.Thread(target=_fetch_client().end, name=name)
    ending.start()
    ending.join(20)
    assert (ending.is_alive(), admin.closed.is_set()) == (False, False)
    admin.may_close.set()
    assert admin.closed.wait(20)


ROOT = Path(__file__).resolve().parents[4]
PRODUCT = ("brew", "pipeline", "operations", "downstream", "proof", "sandbox", "benchmarks", "scripts")
ALLOWED = {"list_consumer_groups", "list_groups"}
"""Every broker is asked for itself; no coordinator is looked for."""
FORBIDDEN = {
    "alter_consumer_group_offsets",
    "delete_consumer_groups",
    "describe_consumer_groups",
    "list_consumer_group_offsets",
}


def test_no_program_asks_a_coordinator_through_librdkafka_s_admin_client() -> None:
    """
    It ends the process when the coordinator moves or restarts (assertion `eonce->refcnt > 0`, or SIGSEGV); ask through
    `brew.kafka.cluster`, `cluster_admin` or `group_requests`.

    A later version of the client may have more calls for groups: each has to be looked at.
    """
    named = {name for name in dir(AdminClient) if "group" in name and not name.startswith("_")}
    assert named - ALLOWED == FORBIDDEN
    assert [folder for folder in PRODUCT if not any((ROOT / folder).rglob("*.py"))] == [], "nothing would be looked at"
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py") if "build" not in path.parts]
    assert [place for path in files for place in _calls(path)] == []  # `make bench-peers` builds a peer's own packages


def _calls(path: Path) -> list[str]:
    """Attributes, and names as text: `getattr(client, "describe_consumer_groups")` is a call, too."""
    calls, source = [], path.read_text()
    if not any(name in source for name in FORBIDDEN):
        return []
    for node in ast.walk(ast.parse(source)):
        name = node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else None
        if name in FORBIDDEN:
            calls.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}")
    return calls


@pytest.mark.parametrize(("count", "most"), [(10_000, 3), (16, 17)])
def test_ids_of_which_most_are_unknown_take_few_requests(count: int, most: int) -> None:
    """A new pipeline on 10,000 partitions: one request for each took longer than `lag` waits."""
    known = {"g:in:3", "g:in:7"}
    asked: list[object] = []

    class Coordinators(TransactionsAdmin):
        def _ask(self, step: str, _call: object, *arguments: Any) -> Any:
            asked.append(step)
            if step == "list transactions":
                return {1: [SimpleNamespace(transactional_id=name) for name in ("other", *known)]}
            if not known >= set(arguments[0]):
                raise NoSuchId("no")
            return dict.fromkeys(arguments[0], described())

    found = Coordinators(Mock(), Deadline(5)).named(f"g:in:{p}" for p in range(count))
    assert {one.transactional_id for one in found} == known
    assert len(asked) <= most


class Cluster(TransactionsAdmin):
    """Answers each step with what it has, and notes what it was asked."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(Mock(), Deadline(5))
        self.answers, self.asked = answers, list[tuple[Any, ...]]()

    def _ask(self, step: str, _call: object, *arguments: Any) -> Any:
        self.asked.append(arguments)
        return self.answers.get(step.partition(" ")[2])


def producing(first_offset: int, producer_id: int = 7, coordinator_epoch: int = -1) -> SimpleNamespace:
    """A producer that a leader knows; -1: it has no open transaction."""
    return SimpleNamespace(
        current_transaction_start_offset=first_offset,
        producer_id=producer_id,
        producer_epoch=3,
        last_timestamp=1000,
        coordinator_epoch=coordinator_epoch,
    )


def test_a_transaction_at_a_logs_first_offset_is_held_and_ended_with_a_marker_that_its_leader_takes() -> None:
    """A leader that has seen no marker reports the epoch -1, and Kafka's own tool sends 0 then."""
    partition = kafka_python.AdminPartition("out", 2)
    states = {partition: SimpleNamespace(active_producers=[producing(0), producing(-1, 8), producing(7, 9, 4)])}
    cluster = Cluster(producers=states)
    held = cluster.held([("out", 2)])
    assert [(one.first_offset, one.producer_id) for one in held] == [(0, 7), (7, 9)]
    for one in held:
        cluster.write_abort_marker(one)
    assert [(spec.producer_id, spec.producer_epoch, spec.coordinator_epoch) for [spec] in cluster.asked[1:]] == [
        (7, 3, 0),
        (9, 3, 4),
    ]


def described(began_ms: int = 0, state: str = "Empty", producer_id: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        state=SimpleNamespace(value=state),
        producer_id=producer_id,
        producer_epoch=0,
        transaction_timeout_ms=1,
        transaction_start_time_ms=began_ms,
        topic_partitions=[],
    )


def test_transactions_that_are_ending_are_listed_among_the_open_ones_and_only_an_open_one_has_begun() -> None:
    """The markers of an ending one may still be missing: it holds readers back, too."""
    listed = {0: [SimpleNamespace(transactional_id=name) for name in ("b", "a")]}
    transactions = {"a": described(5, ONGOING), "b": described(0)}
    cluster = Cluster(transactions=listed)
    cluster._described = lambda names: [transactions[name] for name in names]  # type: ignore[method-assign]
    assert cluster.ongoing() == [transactions["a"], transactions["b"]]
    [(_, ids, states)] = cluster.asked
    assert (ids, set(states)) == (None, {ONGOING, *ENDING})
    began = Cluster(transactions=transactions).named(["a", "b"])
    assert [(one.transactional_id, one.began_ms) for one in began] == [("a", 5), ("b", None)]


def test_a_record_written_between_two_requests_is_no_transaction_that_holds_readers_back() -> None:
    """The end is read first; a partition whose leader does not answer is told with its error."""
    ends, levels = iter([10, 12]), list[IsolationLevel]()
    lost = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))

    def list_offsets(wanted: dict[Any, Any], *, isolation_level: IsolationLevel, **_more: Any) -> dict[Any, Any]:
        levels.append(isolation_level)
        found = SimpleNamespace(offset=next(ends))
        results = {0: Mock(return_value=found), 1: Mock(side_effect=lost)}
        return {place: SimpleNamespace(result=results[place.partition]) for place in wanted}

    places = [("out", 0), ("out", 1)]
    read, unread = bounds(SimpleNamespace(list_offsets=list_offsets), places, Deadline(5))  # type: ignore[arg-type]
    assert (read, unread) == ({("out", 0): ReadBounds(12, 10)}, {("out", 1): "LEADER_NOT_AVAILABLE"})
    assert not read["out", 0].held
    assert levels == [IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED]


def test_groups_whose_coordinator_does_not_answer_are_told_and_those_without_an_offset_or_a_right_are_not() -> None:
    """`doctor` says which groups wait for a transaction: one that may be waiting is not left out in silence."""
    offset = {("out", 0): FetchedOffset(7, unstable=False), ("out", 1): FetchedOffset(None, unstable=False)}
    answers: dict[str, Any] = {
        "reads": [offset],
        "elsewhere": [dict.fromkeys(offset, FetchedOffset(None, unstable=False))],
        "moving": NotCoordinatorError("moved"),
        "secret": GroupAuthorizationFailedError("no"),
    }

    async def wait_for(group: str, timeout_ms: float) -> Any:
        assert 0 < timeout_ms <= 5000
        if isinstance(answers[group], Exception):
            raise answers[group]
        return answers[group]

    def call_soon(_call: object, _admin: object, group: str, places: object, stable: object) -> str:
        assert (places, stable) == (list(offset), False)
        return group

    admin: Any = SimpleNamespace(_manager=SimpleNamespace(call_soon=call_soon, wait_for=wait_for))
    asking = group_requests.offsets_of_groups(admin, answers, iter(offset), Deadline(5))
    offsets, unanswered = asyncio.run(asking)
    assert offsets == {"reads": {("out", 0): 7}}
    assert list(unanswered) == ["moving"]


def test_an_open_transactions_age_is_that_of_its_coordinator_and_none_where_nobody_knows_its_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By this machine's clock in seconds, which may be behind; an id may be gone when it is asked for."""
    producers = {0: [producing(9, 11), producing(4, 12), producing(-1, 15)], 1: [producing(0, 13), producing(2, 14)]}
    began_ms = {"g:in:0": 995_000, "g:in:1": 1_000_500, "g:in:2": 0}
    listed = [SimpleNamespace(transactional_id=f"g:in:{n}", producer_id=11 + n) for n in range(4)]

    def ask(_admin: object, _deadline: object, step: str, _call: object, *given: Any) -> Any:
        if step == "describe producers":
            return {one: SimpleNamespace(active_producers=producers[one.partition]) for one in given[0]}
        if step == "list transactions":
            assert given == (None, [11, 12, 13, 14])
            return {0: listed}
        [[name]] = given
        if name not in began_ms:
            raise NoSuchId("no")
        return {name: described(began_ms[name])}

    monkeypatch.setattr(kafka_python, "kafka_python_admin", lambda *_: contextlib.nullcontext(Mock()))
    monkeypatch.setattr(kafka_python, "ask", ask)
    monkeypatch.setattr(kafka_python.time, "time", lambda: 1000.0)
    found = kafka_python.open_transactions(Connection("nowhere:1"), "out", [1, 0], Deadline(5))
    assert found == [
        OpenTransaction(0, 12, 3, 4, "g:in:1", 0.0),
        OpenTransaction(0, 11, 3, 9, "g:in:0", 5.0),
        OpenTransaction(1, 13, 3, 0, "g:in:2", None),
        OpenTransaction(1, 14, 3, 2, None, None),
    ]
