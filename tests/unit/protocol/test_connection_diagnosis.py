"""Why no broker answers, the next step for a checkout and an installed program, and what is said of an outage."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from brew.connection import Connection
from brew.kafka import connection_diagnosis
from brew.kafka.cluster import Outage
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


def test_a_refused_port_is_told_with_what_starts_a_broker(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkout it is `make up`; an installed wheel has no Makefile beside it."""
    diagnosis = cause(Connection(refusing))
    assert diagnosis.found == f"{refusing} refuses connections: nothing listens there"
    assert diagnosis.next == "start one with `make up`, or point BOOTSTRAP (--bootstrap) at yours"
    monkeypatch.setattr(connection_diagnosis, "_CHECKOUT", Path("/nowhere"))
    assert cause(Connection(refusing)).next.startswith("start one with `brew-sandbox up`, or point BOOTSTRAP")


def test_a_name_without_an_address_is_told_as_that() -> None:
    """Names below .invalid never have one (RFC 2606); to start a broker would not help."""
    diagnosis = cause(Connection("kafka.invalid:9092"))
    assert diagnosis.found.startswith("the name 'kafka.invalid' has no address (")
    assert diagnosis.next.startswith("correct the name in BOOTSTRAP")
    assert "make up" not in diagnosis.next


def test_a_server_may_be_written_as_the_clients_take_it(refusing: str) -> None:
    """With a scheme it was told that its name has no address."""
    for server in (f"PLAINTEXT://{refusing}", f" {refusing} ", f"SASL_SSL://{refusing}"):
        assert cause(Connection(server)).found == f"{server.strip()} refuses connections: nothing listens there"


def test_a_server_that_hangs_up_is_told_by_what_the_client_speaks(refusing: str, hangs_up: str) -> None:
    """To start another broker on the port would not work; of several servers the one that tells more is told."""
    diagnosis = cause(Connection(hangs_up, TLS, source="client.properties"))
    assert diagnosis.found == f"{hangs_up} does not speak TLS, and this client does (security.protocol is SASL_SSL)"
    assert diagnosis.next.endswith("at the broker's TLS port, since a login goes over TLS only")
    diagnosis = cause(Connection(hangs_up, {"security.protocol": "SSL"}, source="client.properties"))
    assert diagnosis.next.endswith("set security.protocol in client.properties to PLAINTEXT")
    diagnosis = cause(Connection(hangs_up))
    assert diagnosis.found == f"{hangs_up} accepts connections and answers nothing"
    assert diagnosis.next.startswith("check whether that broker hangs")
    assert hangs_up in cause(Connection(f"{refusing},{hangs_up}", TLS)).found


def test_words_that_end_a_clause_stand_in_no_cause(refusing: str, hangs_up: str) -> None:
    """What comes behind the last semicolon of a refusal is its next step."""
    for connection in (Connection(refusing), Connection("kafka.invalid:1"), Connection(hangs_up, TLS)):
        assert ";" not in "".join(cause(connection))


NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def outage(patience_s: float | None = 120.0) -> Outage:
    """Brokers that answered at 0."""
    new = Outage("k:9092", "the run waits", patience_s)
    assert new.answered(0.0) is None
    return new


def test_an_outage_is_said_once_when_it_begins_and_once_when_it_is_over() -> None:
    """With what waits, until when, and how long it lasted: counted from the last answer before it."""
    away = outage()
    assert away.answered(100.0) is None
    assert away.silent(104.0, NOON) == (
        "brokers-away: k:9092 has not answered for 4 s; the run waits, at least until 12:01:56 UTC (120 s)"
    )
    assert [away.silent(seconds, NOON) for seconds in (105.0, 120.0, 135.0)] == [None] * 3
    assert away.answered(136.0) == "brokers-back: k:9092 answers again; it was away for 36 s"
    assert [away.answered(seconds) for seconds in (138.0, 140.0)] == [None] * 2
    assert "has not answered for 20 s" in (away.silent(160.0, NOON) or "")
    assert away.answered(170.0) == "brokers-back: k:9092 answers again; it was away for 30 s"
    assert (outage(None).silent(4.0) or "").endswith("the run waits, until it answers or this program is stopped")
    never = Outage("k:9092", "the run waits", 120.0)  # the program's own first question ends it with what to do
    assert (never.silent(0.0), never.silent(100.0), never.answered(101.0)) == (None, None, None)


@pytest.mark.parametrize(("silent_s", "until"), [(119.0, "12:00:01"), (120.0, "12:00:00"), (500.0, "12:00:00")])
def test_the_time_of_giving_up_is_never_one_that_has_passed(silent_s: float, until: str) -> None:
    away = outage()
    assert f"until {until} UTC" in (away.silent(silent_s, NOON) or "")
