"""Why no broker answers, told from what listens there; and the next step for a checkout and for an installed wheel."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brew.connection import Connection
from brew.kafka import connection_diagnosis
from brew.kafka.connection_diagnosis import cause

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


def test_a_refused_port_is_told_with_the_command_that_starts_a_broker(refusing: str) -> None:
    """From a checkout it is `make up`."""
    told = cause(Connection(refusing))
    assert told.found == f"{refusing} refuses connections: nothing listens there"
    assert told.next == "start one with `make up`, or point BOOTSTRAP (--bootstrap) at yours"


def test_an_installed_wheel_names_its_own_command(
    refusing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no Makefile beside it."""
    monkeypatch.setattr(connection_diagnosis, "_CHECKOUT", tmp_path)
    assert cause(Connection(refusing)).next.startswith("start one with `brew-sandbox up`, or point BOOTSTRAP")


def test_a_name_without_an_address_is_told_as_that() -> None:
    """Names below .invalid never have one (RFC 2606); to start a broker would not help."""
    told = cause(Connection("kafka.invalid:9092"))
    assert told.found.startswith("the name 'kafka.invalid' has no address (")
    assert told.next.startswith("correct the name in BOOTSTRAP")
    assert "make up" not in told.next


def test_a_server_that_hangs_up_on_tls_is_told_to_a_client_of_tls(hangs_up: str) -> None:
    """With the setting and its value, and what it may be instead."""
    told = cause(Connection(hangs_up, TLS, source="client.properties"))
    assert told.found == f"{hangs_up} does not speak TLS, and this client does (security.protocol is SASL_SSL)"
    assert told.next.endswith("set security.protocol in client.properties to SASL_PLAINTEXT")


def test_a_plaintext_server_that_answers_nothing_is_told_to_a_plaintext_client(hangs_up: str) -> None:
    """Somebody is there; to start another one on the port would not work."""
    told = cause(Connection(hangs_up))
    assert told.found == f"{hangs_up} accepts connections and answers nothing"
    assert told.next.startswith("check whether that broker hangs")


def test_of_several_servers_the_one_that_tells_more_is_told(refusing: str, hangs_up: str) -> None:
    """A broker that is down is usual; a wrong protocol is not."""
    assert hangs_up in cause(Connection(f"{refusing},{hangs_up}", TLS)).found


def test_words_that_end_a_clause_stand_in_no_cause(refusing: str, hangs_up: str) -> None:
    """What comes behind the last semicolon of a refusal is its next step."""
    for connection in (Connection(refusing), Connection("kafka.invalid:1"), Connection(hangs_up, TLS)):
        assert ";" not in "".join(cause(connection))
