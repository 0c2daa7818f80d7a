"""Brokers whose answer gets lost are asked again, and those that can not be talked to are told apart."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.secure import Secure
from harness.servers import Broker, Names, make_topics

from brew.connection import SCRAM, Connection, Secret
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Unreachable
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import AdminClient, admin, reach
from proof.wire.codec import Api
from proof.wire.proxy import WireProxy
from proof.wire.rules import Action, Rule, Side

Call = Callable[[AdminClient, Deadline], object]


@pytest.fixture
def calls(broker: Broker, names: Names) -> dict[int, Call]:
    make_topics(Connection(broker.bootstrap), names.input)
    user = {names.stem: Secret("no user of anybody")}
    return {
        Api.CreateTopics: lambda client, by: topics.create(client, [topics.TopicSpec(names.output, 1, {})], by),
        Api.DescribeConfigs: lambda client, by: topics.cleanup_policy(client, names.input, by),
        Api.IncrementalAlterConfigs: lambda client, by: cluster_admin.set_of_broker(
            client, 1, "num.io.threads", None, by
        ),
        Api.AlterUserScramCredentials: lambda client, by: cluster_admin.set_passwords(client, user, SCRAM, by),
    }


def test_an_answer_that_is_lost_is_asked_for_again(broker: Broker, calls: dict[int, Call], names: Names) -> None:
    """The first answer to each request never comes; a topic that was made by then counts as made by this call."""
    with WireProxy(broker.bootstrap) as proxy, ThreadPoolExecutor() as pool:
        rules = [proxy.add(Rule(api, Action.DROP, Side.REPLY)) for api in calls]
        futures = {api: pool.submit(call, admin(proxy.connection), Deadline(20)) for api, call in calls.items()}
        results = {api: future.result() for api, future in futures.items()}
        assert [rule.fired for rule in rules] == [1] * len(calls)
    assert results[Api.CreateTopics] == {names.output: True}
    assert results[Api.DescribeConfigs] == "delete"


def test_answers_that_never_come_end_with_the_deadline(broker: Broker, calls: dict[int, Call]) -> None:
    """By the step's name, not as a fatal error of the client."""
    with WireProxy(broker.bootstrap) as proxy, ThreadPoolExecutor() as pool:
        for api in calls:
            proxy.add(Rule(api, Action.DROP, Side.REPLY, times=0))
        futures = [pool.submit(call, admin(proxy.connection), Deadline(3)) for call in calls.values()]
        failures = [future.exception() for future in futures]
    assert [type(failure) for failure in failures] == [DeadlineExceeded] * len(calls)
    assert all("still failing after 3 s" in str(failure) for failure in failures)


REACH_S = 2.0


def refusal(connection: Connection) -> str:
    with pytest.raises(Unreachable) as caught:
        reach(connection, Deadline(REACH_S))
    return str(caught.value)


def test_a_client_of_tls_at_a_plaintext_broker_is_told_so(broker: Broker) -> None:
    """And not to start a broker: it runs."""
    message = refusal(Connection(broker.bootstrap, {"security.protocol": "SSL"}))
    assert f"{broker.bootstrap} does not speak TLS, and this client does (security.protocol is SSL)" in message
    assert "to PLAINTEXT" in message
    assert "make up" not in message


def test_a_plaintext_client_at_a_broker_of_tls_is_told_so(secure: Secure) -> None:
    """With the settings that it lacks."""
    bootstrap = secure.cluster.bootstrap
    message = refusal(Connection(bootstrap))
    assert f"{bootstrap} speaks TLS, and this client does not (security.protocol is PLAINTEXT)" in message
    assert "; set security.protocol to SSL or SASL_SSL in the file of --client-config" in message
