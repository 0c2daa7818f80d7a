"""Driver and worker on their connection: messages arrive whole, unknown and silent callers are disconnected."""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from harness.waiting import until

from brew.deadline import Deadline
from brew.outcome import Outcome, Status
from brew.range_transaction import Targets
from brew.readers.direct import lease_server, messages
from brew.readers.direct.lease_server import LeaseServer
from brew.readers.direct.messages import (
    Grant,
    MessageConnection,
    grant_message,
    outcome_message,
    parse_grant,
    parse_outcome,
    released_message,
)

TARGETS = Targets("out", "dead", -1, 3, "topic-id=x", 1000)
GRANT = Grant(3, 70, TARGETS, goal=90, first_time=True, exempt_from_crash=True)
OUTCOME = Outcome(3, 70, 80, Status.OFFSET_GAP, 60, 5, 1, 0.25, "moved")


@contextlib.contextmanager
def opened(silence_s: float) -> Iterator[LeaseServer]:
    server = LeaseServer("127.0.0.1", silence_s)
    try:
        yield server
    finally:
        server.close()
        while _connections:
            _connections.pop().close()


@pytest.fixture
def server() -> Iterator[LeaseServer]:
    """Neither hangs up nor renews while a test runs, however slowly it does."""
    with opened(60) as server:
        yield server


_connections: list[MessageConnection] = []


def connection(server: LeaseServer) -> MessageConnection:
    _connections.append(MessageConnection.to("127.0.0.1", server.port, 5.0, Deadline(5)))
    return _connections[-1]


def hello(server: LeaseServer, slot: int = 2) -> MessageConnection:
    caller = connection(server)
    caller.send({"hello": {"token": server.token, "slot": slot}})
    assert "hello" in (server.received.get(timeout=5).message or {})
    return caller


def test_grants_and_outcomes_arrive_as_they_were(server: LeaseServer) -> None:
    caller = hello(server)
    caller.send(outcome_message(OUTCOME))
    received = server.received.get(timeout=5)
    assert parse_outcome(received.message or {}) == OUTCOME
    received.session.connection.send({**grant_message(GRANT), "share": 4})
    heard = caller.receive() or {}
    assert (parse_grant(heard), heard["share"], received.session.slot) == (GRANT, 4, 2)
    assert parse_grant(released_message(3, 80, "why")) is None
    assert parse_outcome(released_message(3, 80)) is None


def test_an_outcome_arrives_whatever_the_exception_of_a_function_says(server: LeaseServer) -> None:
    """It may quote a record that is not UTF-8; an outcome that was not sent hid the exception behind another one."""
    caller = hello(server)
    caller.send(outcome_message(replace(OUTCOME, detail="raised ValueError: caf\u00e9 \udcff")))
    received = parse_outcome(server.received.get(timeout=5).message or {})
    assert received == replace(OUTCOME, detail="raised ValueError: caf\u00e9 ?")


def test_an_outcome_arrives_however_long_its_reasons_are(server: LeaseServer) -> None:
    """A function may reject a record with all of it; the driver hung up on its worker, and counted nothing."""
    caller, long = hello(server), "x" * 30_000
    reasons = {f"{long}{n}": n for n in range(48)} | {"no-url": 3}
    examples = {reason: 70 + n for n, reason in enumerate(reasons)}
    caller.send(outcome_message(replace(OUTCOME, reasons=reasons, examples=examples, detail="d" * 2_000_000)))
    received = parse_outcome(server.received.get(timeout=5).message or {})
    assert received is not None
    assert (received.reasons, received.examples) == (
        {long[:100]: sum(range(48)), "no-url": 3},
        {long[:100]: 70, "no-url": 70 + 48},
    )
    assert received.detail == "d" * 10_000


def test_a_worker_that_hangs_up_or_says_nothing_is_gone() -> None:
    with opened(0.3) as server:
        hello(server).close()
        assert server.received.get(timeout=5).message is None
        silent = hello(server)
        assert server.received.get(timeout=5).message is None, "0.3 s without a word"
        while (message := silent.receive()) is not None:
            assert message == {"renew": True}, "all that a driver says by itself"


def test_leases_are_renewed_whatever_the_driver_does() -> None:
    """It may wait half a minute for brokers; a worker that answers is kept, far beyond its silence."""
    with opened(1.2) as server:
        caller = hello(server)
        for _ in range(6):
            assert caller.receive() == {"renew": True}
            caller.send({"alive": True})
            assert server.received.get(timeout=5).message == {"alive": True}
        assert server.received.empty()


@pytest.mark.parametrize(
    "words",
    [
        b'{"hello":{"token":"guessed","slot":0}}\n',
        '{"hello":{"token":"café","slot":0}}\n'.encode(),
        b"GET / HTTP/1.1\r\n\r\n",
        b"[1]\n",
        b"\n",
        b'{"outcome":{}}\n',
    ],
)
def test_unknown_callers_are_disconnected(server: LeaseServer, words: bytes) -> None:
    with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), 5)) as unknown:
        unknown.sendall(words)
        assert unknown.recv(10) == b""
    with pytest.raises(queue.Empty):
        server.received.get_nowait()


def test_a_caller_that_could_not_be_accepted_does_not_shut_out_the_others(
    server: LeaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may run out of file descriptors for a moment; Linux also reports here that a caller has given up."""
    failures = iter([OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()])

    class Listener:
        def accept(self) -> Any:
            if error := next(failures, None):
                raise error
            return listener.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(listener, name)

    listener = server._listener
    monkeypatch.setattr(server, "_listener", Listener())
    hello(server)  # it may still come through the listener as it was
    assert hello(server).send({"alive": True})
    assert server.received.get(timeout=5).message == {"alive": True}


def test_a_closed_server_hangs_up_on_everyone(server: LeaseServer) -> None:
    caller, *_ = [hello(server, slot) for slot in range(3)]
    server.close()
    received = [server.received.get(timeout=5) for _ in range(3)]
    assert {(one.session.slot, one.message) for one in received} == {(slot, None) for slot in range(3)}  # type: ignore[comparison-overlap]
    assert caller.receive() is None
    assert not caller.send({"alive": True}) or caller.receive() is None
    with pytest.raises(OSError, match="refused"):
        connection(server)


def test_a_driver_that_falls_silent_ends_the_lease() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent_server:
        caller = MessageConnection.to("127.0.0.1", silent_server.getsockname()[1], 0.2, Deadline(5))
        assert caller.receive() is None
        caller.close()


Tcp = tuple[MessageConnection, socket.socket]


@pytest.fixture
def tcp() -> Iterator[Tcp]:
    """A connection, and the other end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = socket.create_connection(server.getsockname(), 5)
        driver_end, _ = server.accept()
    caller = MessageConnection(connection, 5.0)
    with contextlib.closing(driver_end):
        yield caller, driver_end
        caller.close()


@pytest.mark.parametrize(
    "pieces",
    [
        [b'{"n":1}\n{"n":2}\n{"n":3}\n'],
        [b'{"n":1}\n{"n":', b'2}\n{"n":3}\n'],
        [b'{"n"', b":1}", b'\n{"n":2}\n', b'{"n":3}', b"\n"],
    ],
)
def test_messages_arrive_one_by_one_however_the_network_cuts_them(tcp: Tcp, pieces: list[bytes]) -> None:
    """A release that comes in one packet with a renewal must not be lost."""
    caller, driver = tcp
    for one in pieces:
        driver.sendall(one)
    assert [caller.receive() for _ in range(3)] == [{"n": 1}, {"n": 2}, {"n": 3}]


class Slow:
    """A socket whose sending takes a while; how many sent at once, at most."""

    now, most = 0, 0

    def setsockopt(self, *_: object) -> None: ...
    def settimeout(self, _seconds: float) -> None: ...

    def sendall(self, _data: bytes) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        threading.Event().wait(0.02)
        self.now -= 1


def test_messages_of_many_threads_are_not_mixed() -> None:
    """Each partition has a thread, and an outcome may be longer than what a socket takes at once."""
    slow: Any = Slow()
    one = MessageConnection(slow, 1.0)
    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(one.send, [{"alive": True}] * 4))
    assert slow.most == 1


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError(), TimeoutError(), OSError(9, "closed")])
def test_however_a_line_dies_who_speaks_on_it_is_told_and_works_on(error: OSError) -> None:
    """An outcome that can't be told must not end the partition's thread: Kafka knows it, too."""
    dead = Mock(sendall=Mock(side_effect=error))
    assert MessageConnection(dead, 1.0).send({"alive": True}) is False
    assert dead.close.called


@pytest.mark.parametrize(("size", "arrives"), [(1000, True), (200_000, False)])
def test_an_endless_message_is_not_kept(tcp: Tcp, monkeypatch: pytest.MonkeyPatch, size: int, arrives: bool) -> None:
    """Whoever finds the port could else fill the driver's memory."""
    monkeypatch.setattr(messages, "_MAX_MESSAGE", 100_000)
    caller, driver = tcp
    text = b'{"text":"' + b"x" * size + b'"}'
    sender = threading.Thread(target=driver.sendall, args=[text], daemon=True)
    sender.start()
    if arrives:
        sender.join(5)
        driver.sendall(b"\n")
    caller._socket.settimeout(60.0)
    got = list[object]()
    receiver = threading.Thread(target=lambda: got.append(caller.receive()), daemon=True)
    receiver.start()
    receiver.join(20)
    assert [one is not None for one in got] == [arrives], "no answer before the silence of a minute"
    caller.close()
    sender.join(5)


def test_what_is_said_on_a_dead_line_is_told_to_be_lost(tcp: Tcp) -> None:
    caller, driver = tcp
    assert caller.send({"alive": True}) is True
    driver.close()
    until(lambda: not caller.send({"alive": True}), "the connection is known to be dead", 5)
    assert caller.receive() is None


def test_every_worker_is_renewed_until_its_line_is_dead() -> None:
    with opened(0.9) as server:
        callers = [hello(server, slot) for slot in range(3)]
        for caller in callers:
            assert caller.receive() == {"renew": True}
        callers[0].close()
        until(lambda: len(server._sessions) == 2, "the dead one is forgotten", 5)
        for caller in callers[1:]:
            caller.send({"alive": True})
            assert caller.receive() == {"renew": True}
        server.close()
        for caller in callers[1:]:
            while (message := caller.receive()) is not None:
                assert message == {"renew": True}


def test_a_caller_that_never_says_hello_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a thread of the driver; what bounds the hello does not bound what comes behind it."""
    monkeypatch.setattr(lease_server, "_HELLO_S", 0.2)
    with opened(3.0) as server:
        caller = hello(server)
        with contextlib.closing(socket.create_connection(("127.0.0.1", server.port), 5)) as silent_client:
            assert silent_client.recv(10) == b""
        with pytest.raises(queue.Empty):
            server.received.get(timeout=0.6)
        assert caller.send({"alive": True})
        assert server.received.get(timeout=5).message == {"alive": True}
