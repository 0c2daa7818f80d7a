"""Who is asked where the group stands: at the second step, and behind send-offsets."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from harness.servers import STEP_S, Broker, Names, begun, make_topics

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable, DeadlineExceeded
from brew.kafka import cluster_admin, committed_offset, group_requests
from brew.kafka import committed_offset as locating
from brew.kafka.committed_offset import Locator, PositionConfirmation, locator
from brew.kafka.kafka_python import KafkaAdminClient, open_admin
from brew.kafka.transaction import KafkaTransaction
from brew.offsets import Committed
from proof.wire.codec import Api
from proof.wire.proxy import WireProxy
from proof.wire.rules import Action, NetworkConditions, Rule, Side

Begin = Callable[[Connection], KafkaTransaction]


@pytest.fixture
def begin(broker: Broker, names: Names) -> Iterator[Begin]:
    """A transaction with one record, behind its flush; those that a test leaves open end with it."""
    transactions = list[KafkaTransaction]()
    make_topics(Connection(broker.bootstrap), names.input, names.output)

    def begin(connection: Connection) -> KafkaTransaction:
        transactions.append(begun(connection, names))
        return transactions[-1]

    yield begin
    for kafka in transactions:
        kafka.close()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[KafkaAdminClient]:
    """Every client that is made to ask where a group stands."""
    clients = list[KafkaAdminClient]()

    def open_and_remember(connection: Connection, deadline: Deadline, request_s: float) -> KafkaAdminClient:
        clients.append(open_admin(connection, deadline, request_s))
        return clients[-1]

    monkeypatch.setattr(group_requests, "open_admin", open_and_remember)
    return clients


def committed(broker: Broker, names: Names) -> Committed | None:
    return locator(Connection(broker.bootstrap), names.group).committed(names.input, 0, Deadline(STEP_S))


def send_offsets_and_commit(kafka: KafkaTransaction, position: int) -> None:
    kafka.send_offsets(position, "", Deadline(STEP_S))
    kafka.commit(Deadline(STEP_S))


@pytest.mark.parametrize(("before", "shown_as"), [(None, "nowhere"), (3, "3")])
def test_a_transaction_on_a_position_that_has_moved_is_not_committed(
    broker: Broker, names: Names, begin: Begin, before: int | None, shown_as: str
) -> None:
    """Whoever moved it; the next one begins where the group stands, through clients of its own."""
    connection, moved = Connection(broker.bootstrap), 7
    if before is not None:
        cluster_admin.set_offsets(connection, names.group, names.input, {0: before}, Deadline(STEP_S))
    kafka = begin(connection)
    client = locator(connection, names.group).client()
    cluster_admin.set_offsets(connection, names.group, names.input, {0: moved}, Deadline(STEP_S))
    with pytest.raises(Abortable, match=f"stood at {shown_as} in .* and stands at {moved}: .*nothing was committed"):
        kafka.send_offsets(10, "", Deadline(STEP_S))
    kafka.abort(Deadline(STEP_S))
    kafka.close()
    group_locator = locator(connection, names.group)
    assert group_locator.client() is not client
    assert group_locator.committed(names.input, 0, Deadline(STEP_S)) == Committed(moved, "")


def test_transactions_that_commit_ask_through_one_client(
    broker: Broker, names: Names, begin: Begin, clients: list[KafkaAdminClient]
) -> None:
    """One after another; the position is confirmed each time."""
    for until in (1, 2, 3):
        kafka = begin(Connection(broker.bootstrap))
        send_offsets_and_commit(kafka, until)
        kafka.close()
    assert len(clients) == 1
    assert committed(broker, names) == Committed(3, "")


def test_looks_of_many_threads_at_once_are_all_answered_by_one_client(
    broker: Broker, names: Names, begin: Begin
) -> None:
    """A process has a transaction for each of its partitions; kafka-python refuses a sixth request by itself."""
    connection = Connection(broker.bootstrap)
    begin(connection)  # the coordinator is there; it sends no offset
    client = group_requests.OffsetFetchClient(connection, names.group, Deadline(STEP_S), STEP_S)
    try:
        with ThreadPoolExecutor(32) as threads:
            answers = threads.map(lambda _: client.fetch("look", (names.input, 0), Deadline(STEP_S)), range(320))
            assert Counter(answers) == {group_requests.CoordinatorAnswer(None, aware=False): 320}
    finally:
        client.end()


def test_who_knows_nothing_of_the_offset_sent_is_not_believed(
    broker: Broker, names: Names, begin: Begin, clients: list[KafkaAdminClient]
) -> None:
    """However right the position is: one that is cut off says so, too. Each further client may find another one."""
    connection = Connection(broker.bootstrap)
    begin(connection)  # its topics are there; it sends no offset
    with pytest.raises(Abortable, match="can't be confirmed: the coordinator does not know the offset"):
        PositionConfirmation(connection, names.group).confirm(names.input, 0, None, Deadline(STEP_S))
    assert len(clients) == committed_offset.MAX_UNAWARE_ANSWERS > 1
    assert all(client._closed for client in clients)


def test_an_answer_that_is_lost_costs_a_second_look_and_no_transaction(
    broker: Broker, names: Names, begin: Begin, clients: list[KafkaAdminClient]
) -> None:
    """The question goes out again through a new client."""
    with WireProxy(broker.bootstrap) as proxy:
        kafka = begin(proxy.connection)
        rule = proxy.add(Rule(Api.OffsetFetch, Action.DROP, Side.REPLY))
        send_offsets_and_commit(kafka, 5)
        assert (rule.fired, [client._closed for client in clients]) == (1, [True, False])
        kafka.close()
    assert committed(broker, names) == Committed(5, "")


def test_a_bootstrap_server_that_is_cut_off_costs_one_attempt(
    broker: Broker, names: Names, begin: Begin, clients: list[KafkaAdminClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not even refused, as from behind a cut; the next attempt goes to another one."""
    monkeypatch.setattr(committed_offset, "_OPEN_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        port = silent.getsockname()[1]

        def silent_first(servers: list[Any]) -> Any:
            """kafka-python picks one by chance."""
            picked.append(next(server for server in servers if (server.port == port) is not bool(picked)))
            return picked[-1]

        picked, kafka = list[Any](), begin(Connection(f"127.0.0.1:{port},{broker.bootstrap}"))
        fake_random = SimpleNamespace(choice=silent_first, shuffle=random.shuffle, uniform=random.uniform)
        monkeypatch.setattr("kafka.net.manager.random", fake_random)
        send_offsets_and_commit(kafka, 5)
        kafka.close()
    assert [server.port == port for server in picked][:2] == [True, False]
    assert len(clients) == 1
    assert committed(broker, names) == Committed(5, "")


def test_a_distant_coordinator_confirms_all_the_same(
    broker: Broker, names: Names, begin: Begin, clients: list[KafkaAdminClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 ms there and back: a new client takes longer than the first attempt may, and a fixed time is never enough."""
    monkeypatch.setattr(committed_offset, "_OPEN_S", 1.0)
    with WireProxy(broker.bootstrap) as proxy:
        kafka = begin(proxy.connection)
        proxy.shape = NetworkConditions(latency_s=0.3)
        send_offsets_and_commit(kafka, 5)
        kafka.close()
    assert [client._closed for client in clients] == [False]
    assert committed(broker, names) == Committed(5, "")


def test_answers_that_never_come_end_the_transaction_within_the_deadline(
    broker: Broker, begin: Begin, clients: list[KafkaAdminClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the step's name, and so that it is aborted: readers wait behind it. No client, with its thread, is left."""
    monkeypatch.setattr(committed_offset, "_CONFIRM_S", 3.0)  # beside busy cores its client alone has taken 0.5 s
    with WireProxy(broker.bootstrap) as proxy:
        kafka = begin(proxy.connection)
        proxy.add(Rule(Api.OffsetFetch, Action.DROP, Side.REPLY, times=0))
        with pytest.raises(Abortable, match=r"position of group .* can't be confirmed: send-offsets: "):
            kafka.send_offsets(5, "", Deadline(STEP_S))
        kafka.abort(Deadline(STEP_S))
        kafka.close()
    assert [client._closed for client in clients] == [True] * len(clients)
    assert clients != []


def test_an_open_transaction_whose_brokers_are_gone_is_closed_all_the_same(broker: Broker, begin: Begin) -> None:
    """Whoever leaves it behind an interrupt. librdkafka's `close` waits for its abort without a limit."""
    with WireProxy(broker.bootstrap) as proxy:
        kafka = begin(proxy.connection)
    closing = threading.Thread(target=kafka.close, daemon=True)
    closing.start()
    closing.join(STEP_S)
    assert not closing.is_alive()


@pytest.fixture
def proxy(broker: Broker, names: Names) -> Iterator[WireProxy]:
    make_topics(Connection(broker.bootstrap), names.input)
    with WireProxy(broker.bootstrap) as proxy:
        yield proxy


def test_transactions_of_one_process_ask_through_one_client(broker: Broker, names: Names) -> None:
    """Another group, and another way to the brokers, have another."""
    connection = Connection(broker.bootstrap)
    first = locator(connection, names.group)
    assert locator(Connection(broker.bootstrap), names.group) is first
    assert locator(connection, names.group + "x") is not first
    assert locator(Connection(broker.bootstrap, {"client.id": "me"}), names.group) is not first
    assert first.client() is first.client()


def test_a_forked_process_asks_through_its_own(broker: Broker, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's threads do not live on in a fork."""
    parents = locator(Connection(broker.bootstrap), names.group)
    monkeypatch.setattr("os.getpid", lambda: parents.process + 1)
    assert locator(Connection(broker.bootstrap), names.group) is not parents


def test_a_group_that_others_have_crowded_out_is_not_asked_about_any_more(
    broker: Broker, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients, with their threads, end at once; it may be asked about anew."""
    monkeypatch.setattr(locating, "_locators", deque())
    connection, forgotten = Connection(broker.bootstrap), list[str]()
    first, *others = (locator(connection, f"{names.group}.{n}") for n in range(locating._MAX_LOCATORS))
    first.client()
    monkeypatch.setattr(first.confirmation, "forget", lambda: forgotten.append(first.group))
    newest = locator(connection, names.group)
    assert (list(locating._locators), forgotten, first._client) == ([*others, newest], [first.group], None)
    assert locator(connection, first.group) is not first


def test_a_kept_client_that_hangs_is_given_up_for_a_new_one(proxy: WireProxy, names: Names) -> None:
    """The answer comes while the kept one still waits for its own."""
    group_locator = Locator(proxy.connection, names.group)
    assert group_locator.committed(names.input, 0, Deadline(20)) is None
    client = group_locator.client()
    rule = proxy.add(Rule(Api.OffsetFetch, side=Side.REPLY))
    assert group_locator.committed(names.input, 0, Deadline(20)) is None
    assert rule.fired == 1
    assert group_locator.client() is not client
    rule.drop()


def test_the_deadline_is_the_callers_and_the_next_one_gets_its_answer(
    proxy: WireProxy, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was new when it failed is not kept either: nothing waits behind its answer that never comes."""
    group_locator = Locator(proxy.connection, names.group)
    rule = proxy.add(Rule(Api.OffsetFetch, side=Side.REPLY))
    with pytest.raises(DeadlineExceeded, match="locate"):
        group_locator.committed(names.input, 0, Deadline(0.3))
    monkeypatch.setattr(locating, "_CACHED_CLIENT_S", 20.0)  # one that was kept would take all the time there is
    assert group_locator.committed(names.input, 0, Deadline(20)) is None
    rule.drop()


def test_a_distant_coordinator_is_located_all_the_same(
    proxy: WireProxy, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 ms there and back: a new client takes longer than the first attempt may, and a fixed time is never enough."""
    monkeypatch.setattr(locating, "_NEW_CLIENT_S", 1.0)
    proxy.shape = NetworkConditions(latency_s=0.3)
    assert Locator(proxy.connection, names.group).committed(names.input, 0, Deadline(20)) is None
