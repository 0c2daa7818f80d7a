"""When a connection that is kept for looks at a group's offset ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Retriable
from brew.kafka import group_requests
from brew.kafka.group_requests import CoordinatorAnswer, FetchedOffset, OffsetFetchClient

PLACE = ("orders", 0)


class Admin:
    """A client, and whether it has ended."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.may_close = threading.Event()
        self.may_close.set()

    def close(self) -> None:
        self.may_close.wait(20)
        self.closed.set()


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, admin: Admin) -> Iterator[threading.Event]:
    """Looks are answered once it is set."""
    may = threading.Event()

    def ask(*_: object) -> list[dict[tuple[str, int], FetchedOffset]]:
        assert may.wait(20)
        return [{PLACE: FetchedOffset(None, unstable=True)}, {PLACE: FetchedOffset(5, unstable=False)}]

    monkeypatch.setattr(group_requests, "open_admin", lambda *_: admin)
    monkeypatch.setattr(group_requests, "ask", ask)
    yield may
    may.set()


def _asker() -> OffsetFetchClient:
    return OffsetFetchClient(Connection("nowhere:1"), "g", Deadline(5), 1.0)


def test_a_connection_that_is_given_up_ends_behind_the_looks_of_others(admin: Admin, answer: threading.Event) -> None:
    one = _asker()
    with ThreadPoolExecutor() as others:
        looks = [others.submit(one.fetch, "step", PLACE, Deadline(20)) for _ in range(2)]
        until(lambda: one._in_use == 2, "both looks")
        one.end()
        assert not admin.closed.is_set()
        with pytest.raises(Retriable, match="step: another transaction has closed this connection"):
            one.fetch("step", PLACE, Deadline(20))
        answer.set()
        assert [look.result(20) for look in looks] == [CoordinatorAnswer(5, aware=True)] * 2
    assert admin.closed.is_set()


@pytest.mark.usefixtures("answer")
def test_a_connection_that_nobody_uses_ends_at_once_and_once(admin: Admin) -> None:
    one = _asker()
    one.end()
    assert admin.closed.is_set()
    admin.closed.clear()
    one.end()
    del one
    assert not admin.closed.is_set()


@pytest.mark.usefixtures("answer")
def test_a_connection_that_is_forgotten_ends_too(admin: Admin) -> None:
    """With a group that this process has not asked about for long."""
    one = _asker()
    del one
    assert admin.closed.is_set()


@pytest.mark.usefixtures("answer")
@pytest.mark.parametrize("name", ["kafka-io-1", "worker"])
def test_an_end_that_takes_long_is_not_waited_for(name: str, admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own thread would wait for itself; others may wait for an address that nobody tells."""
    monkeypatch.setattr(group_requests, "_CLOSE_S", 0.05)
    admin.may_close.clear()
    ending = threading.Thread(target=_asker().end, name=name)
    ending.start()
    ending.join(20)
    assert (ending.is_alive(), admin.closed.is_set()) == (False, False)
    admin.may_close.set()
    assert admin.closed.wait(20)
