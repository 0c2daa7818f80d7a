"""Requests to receivers that answer slowly: a socket's time-out starts anew with each byte."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from unittest.mock import MagicMock, Mock
from unittest.mock import call as given

import pytest
from harness.records import FakeRecord as Record

from brew.connection import Connection
from brew.deadline import Deadline
from brew.fault_injection import StoreCrash
from downstream import http_pool
from downstream.address import RequestOutcome
from downstream.postgres import DatabaseSettings
from downstream.receive.command import DemoServer
from downstream.receive.postgres import CallSettings, Deliverer
from downstream.virtual import call

TIMEOUT_S = 0.5
HEAD = b"HTTP/1.1 200 OK\r\n"
DRIPPING = {"head": HEAD + b"X-Slow: " + b"x" * 100, "body": HEAD + b"Content-Length: 100\r\n\r\n" + b"x" * 100}


@pytest.fixture(params=DRIPPING)
def dripping(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a receiver that answers with one byte every 0.1 s, for ten seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_drip, args=[server, DRIPPING[request.param]], daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/x"


def _drip(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        for byte in answer:
            try:
                connection.sendall(bytes([byte]))
            except OSError:
                return
            time.sleep(0.1)


def called(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(call, "producer", lambda *_given, **_settings: None)
    caller = call.Caller(url, TIMEOUT_S, Connection("nowhere"), "out", "out.dlq", 1)
    with pytest.raises(call.CallFailedError) as failed:
        caller.handle(Record(0, value=b"{}"))
    caller.close()
    return str(failed.value)


def sent(url: str, _monkeypatch: pytest.MonkeyPatch) -> str:
    settings = DatabaseSettings("postgresql://h/d", "receive")
    deliverer = Deliverer("g", settings, CallSettings(url, TIMEOUT_S), StoreCrash())
    assert deliverer._send(MagicMock(), 1, "m", b"{}", 0) is RequestOutcome.LATER
    return deliverer._requests.reason


@pytest.mark.parametrize(("request_by", "setting"), [(called, " (--timeout-s)"), (sent, "")])
def test_a_receiver_that_drips_its_answer_does_not_hold_the_request(
    dripping: str,
    request_by: Callable[[str, pytest.MonkeyPatch], str],
    setting: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It took as long as the receiver liked; in the outbox it held rows and their transaction, too."""
    began = time.monotonic()
    reason = request_by(dripping, monkeypatch)
    assert time.monotonic() - began < 10 * TIMEOUT_S
    assert f"no complete answer within 0.5 s{setting}" in reason


def test_each_read_waits_for_what_is_left_of_the_whole_time() -> None:
    """A receiver that falls silent after half an answer had its whole time once more."""
    sock, now = Mock(gettimeout=lambda: 5.0), [0.0]
    reader = http_pool._UntilDeadline(sock, Mock())
    reader._deadline, now[0] = Deadline(5.0, lambda: now[0]), 3.0
    reader.readinto(memoryview(bytearray(1)))
    assert sock.settimeout.call_args_list == [given(2.0), given(5.0)]


def test_a_connection_is_used_again_with_the_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "producer", lambda *_given, **_settings: None)
    with DemoServer() as server:
        server.serving()
        caller = call.Caller(server.url, TIMEOUT_S, Connection("nowhere"), "out", "out.dlq", 1)
        for offset in range(3):
            caller.handle(Record(offset, value=b"{}"))
            time.sleep(0.6 * TIMEOUT_S)
        [pool] = caller._http.pools._container.values()
        assert (pool.num_connections, pool.num_requests) == (1, 3)
        caller.close()
        server.shutdown()


def test_an_interim_answer_is_not_the_answer_and_the_next_request_does_not_get_it() -> None:
    """Answers were one request late: with `102 Processing`, a request that failed got the 200 of the one before."""
    ok, failed = (b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status for status in (b"200 OK", b"503 Busy"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        interim = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
        threading.Thread(target=_answer, args=[server, [interim, ok, failed]], daemon=True).start()
        pool, url = http_pool.http_pool(10 * TIMEOUT_S), f"http://127.0.0.1:{server.getsockname()[1]}/x"
        assert [pool.request("POST", url).status for _ in range(2)] == [200, 503]
        pool.clear()


def _answer(server: socket.socket, answers: list[bytes]) -> None:
    """Send interim and final answer to the first request, and the last one to the second."""
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(answers[0])
        time.sleep(0.2)  # the receiver is at work
        connection.sendall(answers[1])
        connection.recv(65_536)
        connection.sendall(answers[2])
