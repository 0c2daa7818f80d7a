"""One partition in a holder's hands: what it does with its turn."""

from __future__ import annotations

import threading

import pytest

from pipeline.direct import tenure
from pipeline.direct.terms import Grant, Terms
from pipeline.direct.turns import Desk, Turns
from pipeline.outcome import Outcome, Status
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


class FullTail:
    """Always has something; tells when it was asked."""

    asked = threading.Event()

    def __init__(self, *_: object) -> None: ...

    def take(self, *_: object) -> Taken:
        self.asked.set()
        return Taken([], START + 1, 0)

    def close(self) -> None: ...


def test_who_is_told_to_stop_while_it_waits_for_its_turn_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 partitions that each did one more transaction, one after another, would outlast the grace of a SIGTERM."""
    FullTail.asked.clear()
    attempts: list[Outcome] = []
    monkeypatch.setattr(tenure, "Tail", FullTail)
    monkeypatch.setattr(tenure, "attempt", lambda *_: Outcome(0, START, START + 1, Status.COMMITTED))
    stop, desk, positions = threading.Event(), Desk(), list[int]()
    desk.transactions = Turns(1, 60.0)
    grant = Grant(0, START, Targets("out", "dlq", 0, 0))

    def hold() -> None:
        positions.append(tenure.work(grant, TERMS, 1, lambda: None, attempts.append, stop, desk))

    with desk.transactions.one():
        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        assert FullTail.asked.wait(20)
        stop.set()
    thread.join(20)
    assert (positions, attempts) == ([START], [])


@pytest.mark.parametrize(
    ("share", "ahead_mib", "rest_ms"),
    [(1, 64, FULL_MS), (4, 16, FULL_MS), (32, 2, 32), (64, 1, 50), (1000, 1, 50)],
)
def test_many_readers_fetch_less_ahead_and_rest_longer(share: int, ahead_mib: int, rest_ms: int) -> None:
    """A lone busy one among them still gets 20 MiB a second."""
    ahead, rest = tenure.ahead_of(64 * 1024 * 1024, share)
    assert (ahead, rest) == (ahead_mib * 1024 * 1024, rest_ms)
    assert ahead / rest >= 20 * 1024 * 1024 / 1000
