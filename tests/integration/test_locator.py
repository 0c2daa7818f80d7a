"""The second step: who is asked for the committed offset, one transaction after another, and when a client hangs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.transactions import make_topics

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.kafka import committed_offset as locating
from brew.kafka.committed_offset import Locator, locator
from proof.wire.codec import Api
from proof.wire.proxy import WireProxy
from proof.wire.rules import NetworkConditions, Rule, Side


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
    rule = proxy.add(Rule(Api.OFFSET_FETCH, side=Side.REPLY))
    assert group_locator.committed(names.input, 0, Deadline(20)) is None
    assert rule.fired == 1
    assert group_locator.client() is not client
    rule.drop()


def test_the_deadline_is_the_callers_and_the_next_one_gets_its_answer(
    proxy: WireProxy, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was new when it failed is not kept either: nothing waits behind its answer that never comes."""
    group_locator = Locator(proxy.connection, names.group)
    rule = proxy.add(Rule(Api.OFFSET_FETCH, side=Side.REPLY))
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
    proxy.reshape(NetworkConditions(latency_s=0.3))
    assert Locator(proxy.connection, names.group).committed(names.input, 0, Deadline(20)) is None
