"""One partition in a holder's hands: what it does with its turn."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from pipeline.direct import tenure
from pipeline.direct.stretch import Stretch
from pipeline.direct.terms import Grant, Terms
from pipeline.direct.turns import Desk, Turns
from pipeline.outcome import Outcome, Status
from pipeline.pace import Pace
from pipeline.ports import Targets
from pipeline.settings import CrashSettings, DirectSettings, Limits
from protocol.connection import Connection
from protocol.kafka.clients import FULL_MS
from protocol.kafka.tail import Taken
from protocol.kafka.transaction import TransactionSettings

START = 100
TERMS = Terms(
    "127.0.0.1",
    0,
    "token",
    "orders",
    TransactionSettings(Connection("127.0.0.1:1"), "group", 60.0),
    Limits(),
    DirectSettings(),
    CrashSettings(),
    1000,
)


GRANT = Grant(0, START, Targets("out", "dlq", 0, 0))
PACE = Pace.at_most(1000, 60.0)
WAIT_S = 20.0


class FakeTail:
    """Has one record, or none where ``empty``. Tells when it was opened and asked."""

    opened: threading.Semaphore
    asked: threading.Event
    empty = False

    def __init__(self, *_: object) -> None:
        self._left = 0 if self.empty else 1
        self.opened.release()

    def take(self, *_: object) -> Taken | None:
        self.asked.set()
        self._left -= 1
        return Taken([], START + 1, 0) if self._left >= 0 else None

    def close(self) -> None: ...


@pytest.fixture
def tail(monkeypatch: pytest.MonkeyPatch) -> type[FakeTail]:
    class Fresh(FakeTail):
        opened, asked = threading.Semaphore(0), threading.Event()

    monkeypatch.setattr(tenure, "Tail", Fresh)
    monkeypatch.setattr(tenure, "attempt", lambda *_: Outcome(0, START, START + 1, Status.COMMITTED))
    return Fresh


class Held:
    """One partition, held in a thread of its own; what it reported, and where it ended."""

    def __init__(self, desk: Desk, grant: Grant) -> None:
        self.stop, self.reported, self.position = threading.Event(), list[Outcome](), list[int]()
        self._desk, self._grant = desk, grant
        self.thread = threading.Thread(target=self._hold, daemon=True)
        self.thread.start()

    def _hold(self) -> None:
        report = self.reported.append
        self.position.append(tenure.work(self._grant, TERMS, 1, lambda: None, report, self.stop, self._desk))

    def end(self) -> None:
        self.stop.set()
        self._desk.reading.wake()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def test_who_is_told_to_stop_while_it_waits_for_its_turn_begins_nothing(tail: type[FakeTail]) -> None:
    """64 partitions that each did one more transaction, one after another, would outlast the grace of a SIGTERM."""
    desk = Desk(PACE)
    desk.transactions = Turns(1, 60.0)
    with desk.transactions.one():
        held = Held(desk, GRANT)
        assert tail.asked.wait(WAIT_S)
        held.stop.set()
    held.end()
    assert (held.position, held.reported) == ([START], [])


def test_a_backlog_waits_for_its_turn_to_be_read(tail: type[FakeTail]) -> None:
    """A reader costs threads, and of 64 that are full 60 wait for a turn; it is opened when it is needed."""
    desk = Desk(PACE)
    desk.reading = Turns(1, 60.0)
    drained = replace(GRANT, goal=START + 1)
    with desk.reading.one():
        waiting, called_back = Held(desk, drained), Held(desk, drained)
        following = Held(desk, GRANT)
        assert tail.opened.acquire(timeout=WAIT_S), "who follows hears of news in every partition"
        called_back.end()
        assert called_back.position == [START]
        assert not tail.opened.acquire(timeout=0.1)
    waiting.thread.join(WAIT_S)
    assert waiting.position == [START + 1]
    following.end()


def test_a_reader_with_nothing_to_read_keeps_no_other_from_reading(tail: type[FakeTail]) -> None:
    """Upstream's open transaction may hold a partition back for minutes."""
    desk = Desk(PACE)
    desk.reading = Turns(1, 60.0)
    tail.empty = True
    both = [Held(desk, replace(GRANT, goal=START + 1)) for _ in range(2)]
    for _ in both:
        assert tail.opened.acquire(timeout=WAIT_S)
    for held in both:
        held.end()


def test_a_transaction_may_be_as_long_as_others_have_learned_when_its_turn_comes(
    tail: type[FakeTail], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, most = Desk(Pace.at_most(100_000, 60.0)), list[int]()
    desk.transactions = Turns(1, 60.0)
    stretch = tenure.Stretch

    def measured(*args: Any) -> Stretch:
        most.append(args[2])
        return stretch(*args)

    monkeypatch.setattr(tenure, "Stretch", measured)
    with desk.transactions.one():
        held = Held(desk, replace(GRANT, goal=START + 1))
        assert tail.asked.wait(WAIT_S)
        desk.paces.heed(Outcome(1, 0, 20_000, Status.COMMITTED, seconds=1.0))
    held.thread.join(WAIT_S)
    assert most == [40_000]


@pytest.mark.parametrize(
    ("share", "readers", "ahead_mib", "rest_ms"),
    [
        (1, 1, 64, FULL_MS),
        (4, 4, 16, FULL_MS),
        (64, 8, 1, FULL_MS),
        (32, 32, 2, 32),
        (64, 64, 1, 50),
        (999, 999, 1, 50),
    ],
)
def test_many_readers_fetch_less_ahead_and_rest_longer(share: int, readers: int, ahead_mib: int, rest_ms: int) -> None:
    """A lone busy one among them still gets 20 MiB a second."""
    ahead, rest = tenure.ahead_of(64 * 1024 * 1024, share, readers)
    assert (ahead, rest) == (ahead_mib * 1024 * 1024, rest_ms)
    assert ahead / rest >= 20 * 1024 * 1024 / 1000
