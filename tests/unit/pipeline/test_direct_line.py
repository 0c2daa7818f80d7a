"""Driver and holder on their line: what is said arrives as it was, strangers and silence are hung up on."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Iterator

import pytest

from pipeline.direct.line import Line
from pipeline.direct.office import Office
from pipeline.direct.terms import Grant, granted, granting, leaving, telling, told
from pipeline.outcome import Outcome, Status
from pipeline.ports import Targets
from protocol.deadline import Deadline

GRANT = Grant(3, 70, Targets("out", "dead", -1, 3, "topic-id=x", 1000), goal=90, first_time=True, spared=True)
OUTCOME = Outcome(3, 70, 80, Status.OFFSET_GAP, 60, 5, 1, 0.25, "moved")


@contextlib.contextmanager
def opened(silence_s: float) -> Iterator[Office]:
    office = Office("127.0.0.1", silence_s)
    try:
        yield office
    finally:
        office.close()
        while _lines:
            _lines.pop().close()


@pytest.fixture
def office() -> Iterator[Office]:
    """Neither hangs up nor renews while a test runs, however slowly it does."""
    with opened(60) as office:
        yield office


_lines: list[Line] = []


def line(office: Office) -> Line:
    _lines.append(Line.to("127.0.0.1", office.port, 5.0, Deadline(5)))
    return _lines[-1]


def hello(office: Office, slot: int = 2) -> Line:
    caller = line(office)
    caller.send({"hello": {"token": office.token, "slot": slot}})
    assert "hello" in (office.said.get(timeout=5).message or {})
    return caller


def test_grants_and_outcomes_arrive_as_they_were(office: Office) -> None:
    caller = hello(office)
    caller.send(telling(OUTCOME))
    said = office.said.get(timeout=5)
    assert told(said.message or {}) == OUTCOME
    said.desk.line.send({**granting(GRANT), "share": 4})
    heard = caller.receive() or {}
    assert (granted(heard), heard["share"], said.desk.slot) == (GRANT, 4, 2)
    assert granted(leaving(3, 80, "why")) is None
    assert told(leaving(3, 80)) is None


def test_a_holder_that_hangs_up_is_gone(office: Office) -> None:
    hello(office).close()
    assert office.said.get(timeout=5).message is None


def test_a_holder_that_says_nothing_is_gone() -> None:
    with opened(0.3) as office:
        silent = hello(office)
        assert office.said.get(timeout=5).message is None, "0.3 s without a word"
        while (message := silent.receive()) is not None:
            assert message == {"renew": True}, "all that a driver says by itself"


def test_leases_are_renewed_whatever_the_driver_does() -> None:
    """It may wait half a minute for brokers; a holder that answers is kept, far beyond its silence."""
    with opened(1.2) as office:
        caller = hello(office)
        for _ in range(6):
            assert caller.receive() == {"renew": True}
            caller.send({"alive": True})
            assert office.said.get(timeout=5).message == {"alive": True}
        assert office.said.empty()


@pytest.mark.parametrize(
    "words",
    [b'{"hello":{"token":"guessed","slot":0}}\n', b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\n", b'{"outcome":{}}\n'],
)
def test_strangers_are_hung_up_on(office: Office, words: bytes) -> None:
    with contextlib.closing(socket.create_connection(("127.0.0.1", office.port), 5)) as stranger:
        stranger.sendall(words)
        assert stranger.recv(10) == b""
    with pytest.raises(queue.Empty):
        office.said.get_nowait()


def test_a_closed_office_hangs_up_on_everyone(office: Office) -> None:
    caller = hello(office)
    office.close()
    assert caller.receive() is None
    assert not caller.send({"alive": True}) or caller.receive() is None
    with pytest.raises(OSError, match="refused"):
        line(office)


def test_a_driver_that_falls_silent_ends_the_lease() -> None:
    """What makes an orphan stop: its line gives up by itself."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        caller = Line.to("127.0.0.1", mute.getsockname()[1], 0.2, Deadline(5))
        assert caller.receive() is None
        caller.close()
