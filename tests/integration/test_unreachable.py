"""What `reach` says of real brokers that it can't talk to."""

from __future__ import annotations

import pytest
from harness.secure import Secure
from harness.servers import Broker

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Unreachable
from brew.kafka.clients import reach

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


def test_a_refused_port_and_an_unknown_name_are_told_apart() -> None:
    """Each with a next step of its own."""
    assert refusal(Connection("127.0.0.1:1")).endswith(
        "127.0.0.1:1 refuses connections: nothing listens there; "
        "start one with `make up`, or point BOOTSTRAP (--bootstrap) at yours"
    )
    assert "the name 'kafka.invalid' has no address" in refusal(Connection("kafka.invalid:9092"))
