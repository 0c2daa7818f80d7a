"""Behind send-offsets: does the group still stand where the transaction located it, and who says so."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.transactions import STEP_S, begun, make_topics

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable
from brew.kafka import cluster_admin, committed_offset, group_requests
from brew.kafka.committed_offset import PositionConfirmation, locator
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
    made = list[KafkaTransaction]()
    make_topics(Connection(broker.bootstrap), names.input, names.output)

    def begin(through: Connection) -> KafkaTransaction:
        made.append(begun(through, names))
        return made[-1]

    yield begin
    for one in made:
        one.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[KafkaAdminClient]:
    """Every client that is made to ask where a group stands."""
    clients = list[KafkaAdminClient]()

    def keeping(connection: Connection, deadline: Deadline, request_s: float) -> KafkaAdminClient:
        clients.append(open_admin(connection, deadline, request_s))
        return clients[-1]

    monkeypatch.setattr(group_requests, "open_admin", keeping)
    return clients


@pytest.mark.parametrize(("before", "stood"), [(None, "nowhere"), (3, "3")])
def test_a_transaction_on_a_position_that_has_moved_is_not_committed(
    broker: Broker, names: Names, begin: Begin, before: int | None, stood: str
) -> None:
    """Whoever moved it; the next one begins where the group stands, through clients of its own."""
    connection, moved = Connection(broker.bootstrap), 7
    if before is not None:
        cluster_admin.set_offsets(connection, names.group, names.input, {0: before}, Deadline(STEP_S))
    kafka = begin(connection)
    kept = locator(connection, names.group).client()
    cluster_admin.set_offsets(connection, names.group, names.input, {0: moved}, Deadline(STEP_S))
    with pytest.raises(Abortable, match=f"stood at {stood} in .* and stands at {moved}: .*nothing was committed"):
        kafka.send_offsets(10, "", Deadline(STEP_S))
    kafka.abort(Deadline(STEP_S))
    kafka.close()
    asked = locator(connection, names.group)
    assert asked.client() is not kept
    assert asked.committed(names.input, 0, Deadline(STEP_S)) == Committed(moved, "")


def test_transactions_that_commit_ask_through_one_client(
    broker: Broker, names: Names, begin: Begin, made: list[KafkaAdminClient]
) -> None:
    """One after another; the position is confirmed each time."""
    for until in (1, 2, 3):
        kafka = begin(Connection(broker.bootstrap))
        kafka.send_offsets(until, "", Deadline(STEP_S))
        kafka.commit(Deadline(STEP_S))
        kafka.close()
    assert len(made) == 1
    found = locator(Connection(broker.bootstrap), names.group).committed(names.input, 0, Deadline(STEP_S))
    assert found == Committed(3, "")


def test_looks_of_many_threads_at_once_are_all_answered_by_one_client(
    broker: Broker, names: Names, begin: Begin
) -> None:
    """A process has a transaction for each of its partitions; kafka-python refuses a sixth request by itself."""
    connection = Connection(broker.bootstrap)
    begin(connection)  # the coordinator is there; it sends no offset
    one = group_requests.OffsetFetchClient(connection, names.group, Deadline(STEP_S), STEP_S)
    try:
        with ThreadPoolExecutor(32) as threads:
            told = threads.map(lambda _: one.fetch("look", (names.input, 0), Deadline(STEP_S)), range(320))
            assert Counter(told) == {group_requests.CoordinatorAnswer(None, aware=False): 320}
    finally:
        one.end()


def test_who_knows_nothing_of_the_offset_sent_is_not_believed(
    broker: Broker, names: Names, begin: Begin, made: list[KafkaAdminClient]
) -> None:
    """However right the position is: one that is cut off says so, too. Each further client may find another one."""
    connection = Connection(broker.bootstrap)
    begin(connection)  # its topics are there; it sends no offset
    with pytest.raises(Abortable, match="can't be confirmed: the coordinator does not know the offset"):
        PositionConfirmation(connection, names.group).confirm(names.input, 0, None, Deadline(STEP_S))
    assert len(made) == committed_offset.MAX_UNAWARE_ANSWERS > 1
    assert all(one._closed for one in made)


def test_an_answer_that_is_lost_costs_a_second_look_and_no_transaction(
    broker: Broker, names: Names, begin: Begin, made: list[KafkaAdminClient]
) -> None:
    """The question goes out again through a new client."""
    with WireProxy(broker.bootstrap) as proxy:
        kafka = begin(proxy.connection)
        lost = proxy.add(Rule(Api.OFFSET_FETCH, Action.DROP, Side.REPLY))
        kafka.send_offsets(5, "", Deadline(STEP_S))
        kafka.commit(Deadline(STEP_S))
        assert (lost.fired, [one._closed for one in made]) == (1, [True, False])
        kafka.close()
    found = locator(Connection(broker.bootstrap), names.group).committed(names.input, 0, Deadline(STEP_S))
    assert found == Committed(5, "")


def test_a_bootstrap_server_that_is_cut_off_costs_one_attempt(
    broker: Broker, names: Names, begin: Begin, made: list[KafkaAdminClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not even refused, as from behind a cut; the next attempt goes to another one."""
    monkeypatch.setattr(committed_offset, "_OPEN_S", 0.5)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        port = silent.getsockname()[1]

        def silent_first(servers: list[Any]) -> Any:
            """kafka-python picks one by chance."""
            picks.append(next(one for one in servers if (one.port == port) is not bool(picks)))
            return picks[-1]

        picks, kafka = list[Any](), begin(Connection(f"127.0.0.1:{port},{broker.bootstrap}"))
        dice = SimpleNamespace(choice=silent_first, shuffle=random.shuffle, uniform=random.uniform)
        monkeypatch.setattr("kafka.net.manager.random", dice)
        kafka.send_offsets(5, "", Deadline(STEP_S))
        kafka.commit(Deadline(STEP_S))
        kafka.close()
    assert ([one.port == port for one in picks], len(made)) == ([True, False], 1)
    found = locator(Connection(broker.bootstrap), names.group).committed(names.input, 0, Deadline(STEP_S))
    assert found == Committed(5, "")


def test_a_distant_coordinator_confirms_all_the_same(
    broker: Broker, names: Names, begin: Begin, made: list[KafkaAdminClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 ms there and back: a new client takes longer than the first attempt may, and a fixed time is never enough."""
    monkeypatch.setattr(committed_offset, "_OPEN_S", 1.0)
    with WireProxy(broker.bootstrap) as proxy:
        kafka = begin(proxy.connection)
        proxy.reshape(NetworkConditions(latency_s=0.3))
        kafka.send_offsets(5, "", Deadline(STEP_S))
        kafka.commit(Deadline(STEP_S))
        kafka.close()
    assert [one._closed for one in made] == [False]
    found = locator(Connection(broker.bootstrap), names.group).committed(names.input, 0, Deadline(STEP_S))
    assert found == Committed(5, "")


def test_answers_that_never_come_end_the_transaction_within_the_deadline(
    broker: Broker, begin: Begin, made: list[KafkaAdminClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the step's name, and so that it is aborted: readers wait behind it. No client, with its thread, is left."""
    monkeypatch.setattr(committed_offset, "_CONFIRM_S", 3.0)  # beside busy cores its client alone has taken 0.5 s
    with WireProxy(broker.bootstrap) as proxy:
        kafka = begin(proxy.connection)
        proxy.add(Rule(Api.OFFSET_FETCH, Action.DROP, Side.REPLY, times=0))
        with pytest.raises(Abortable, match=r"position of group .* can't be confirmed: send-offsets: "):
            kafka.send_offsets(5, "", Deadline(STEP_S))
        kafka.abort(Deadline(STEP_S))
        kafka.close()
    assert [one._closed for one in made] == [True] * len(made)
    assert made != []


def test_an_open_transaction_whose_brokers_are_gone_is_closed_all_the_same(broker: Broker, begin: Begin) -> None:
    """Whoever leaves it behind an interrupt. librdkafka's `close` waits for its abort without a limit."""
    with WireProxy(broker.bootstrap) as proxy:
        kafka = begin(proxy.connection)
    closing = threading.Thread(target=kafka.close, daemon=True)
    closing.start()
    closing.join(STEP_S)
    assert not closing.is_alive()
