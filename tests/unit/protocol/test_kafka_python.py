"""The kafka-python client: what it leaves behind when nobody answers, and what older brokers can't answer."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from collections.abc import Iterator

import pytest
from kafka import KafkaAdminClient
from kafka.errors import KafkaTimeoutError

from brew.errors import Refused
from brew.kafka import kafka_python
from brew.kafka.kafka_python import KafkaPythonAdmin, Unsupported

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
