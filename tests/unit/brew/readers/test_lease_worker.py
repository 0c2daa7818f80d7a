"""The worker's side of a lease, over a real connection: the driver speaks, falls silent, or hangs up."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest
from harness.lease_coordinator import worker_settings
from harness.waiting import until

from brew.errors import Fatal, Unreachable
from brew.outcome import Outcome, Status
from brew.range_transaction import Targets
from brew.readers.direct import worker
from brew.readers.direct.messages import Grant, MessageConnection, grant_message
from brew.readers.direct.worker import ConcurrencyLimit, SharedLimits
from brew.settings import DirectSettings
from brew.transaction_sizing import TransactionSize

WAIT_S = 20.0
LEASE_S = 0.3
Message = dict[str, Any]


def grant(partition: int, start: int = 100) -> Grant:
    return Grant(partition, start, Targets("out", "dlq", 0, 0))


@dataclass
class Work:
    """Stands for a partition's transactions: works until it is told to stop, or does what the test says."""

    acts: dict[int, Callable[..., int]] = field(default_factory=dict)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    stopped: list[int] = field(default_factory=list)
    shares: list[int] = field(default_factory=list)
    now: int = 0
    most: int = 0

    def __call__(self, grant: Grant, _options: Any, share: int, begun: Any, report: Any, stop: Any, limits: Any) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        self.shares.append(share)
        begun()
        self.begun.release()
        try:
            act = self.acts.get(grant.partition)
            if act is not None:
                return act(report, stop, limits)
            assert stop.wait(WAIT_S), "nobody told it to stop"
            self.stopped.append(grant.partition)
            return grant.start + 7
        finally:
            self.now -= 1


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    fake = Work()
    monkeypatch.setattr(worker, "transact_partition", fake)
    return fake


class Driver:
    """The driver's end of one lease, played by the test."""

    def __init__(self, connection: MessageConnection, task: threading.Thread) -> None:
        self.connection, self.task = connection, task

    def grants(self, *grants: Grant, share: int = 1) -> None:
        for one in grants:
            self.connection.send({**grant_message(one), "share": share})

    def hears(self, *, begins: bool = False) -> Message:
        """Return the next message; that a transaction begins only if ``begins`` is set."""
        while True:
            message = self.connection.receive()
            assert message is not None, "the worker hung up"
            if begins or "begun" not in message:
                return message

    def ended(self) -> bool:
        self.task.join(WAIT_S)
        return not self.task.is_alive()


@contextlib.contextmanager
def leased(lease_s: float = 60.0, **more: Any) -> Iterator[Driver]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = worker_settings(server.getsockname()[1], direct=DirectSettings(lease_s), **more)
        task = threading.Thread(target=worker.run_lease_worker, args=[settings, 3], daemon=True)
        task.start()
        driver = Driver(MessageConnection(server.accept()[0], WAIT_S), task)
        try:
            assert driver.hears() == {"hello": {"token": "token", "slot": 3}}
            yield driver
        finally:
            driver.connection.close()
            assert driver.ended()


def begin(driver: Driver, work: Work, *grants: Grant) -> None:
    """Grant these; the first one's work has begun then."""
    driver.grants(*grants)
    assert work.begun.acquire(timeout=WAIT_S)


def left(partition: int, position: int = 107, why: str = "") -> Message:
    return {"released": {"partition": partition, "position": position, "why": why}}


def test_a_worker_whose_driver_falls_silent_stops_its_partitions_when_the_lease_is_over(work: Work) -> None:
    """By then another driver may have granted them again; without this end only fences would keep them apart."""
    with leased(LEASE_S) as driver:
        driver.grants(grant(0), grant(1))
        assert driver.ended(), "the connection stays open, and nobody says anything"
    assert sorted(work.stopped) == [0, 1]


def test_a_lease_that_is_renewed_goes_on_and_each_renewal_is_answered(work: Work) -> None:
    """The answer is what the driver renews its own half by; silence behind the last one ends it."""
    with leased(LEASE_S) as driver:
        begin(driver, work, grant(0))
        for _ in range(5):
            driver.task.join(LEASE_S / 2)
            driver.connection.send({"renew": True})
            assert driver.hears() == {"alive": True}
        assert work.stopped == []
        assert driver.hears() == left(0), "said when it was silent for too long"


@pytest.mark.parametrize("goodbye", ["end", "hang up", "nonsense"])
def test_a_worker_that_is_sent_away_ends_when_its_transactions_have(work: Work, goodbye: str) -> None:
    stopping, go, made = threading.Event(), threading.Event(), Mock()

    def act(_report: object, stop: threading.Event, _limits: object) -> int:
        assert stop.wait(WAIT_S)
        stopping.set()
        assert go.wait(WAIT_S)
        return 108

    work.acts[0] = act
    with leased(transformation=made) as driver:
        begin(driver, work, grant(0))
        if goodbye == "hang up":
            driver.connection.close()
        else:
            driver.connection.send({"end": True} if goodbye == "end" else [1])  # type: ignore[arg-type]
        assert stopping.wait(WAIT_S)
        driver.task.join(0.1)
        assert driver.task.is_alive(), "its transaction is still under way"
        until(lambda: made.release.called, "the end of a load, for which the transaction may wait")
        made.release.assert_called_once_with(loading_only=True)
        go.set()
        assert driver.ended()


def test_what_is_called_back_is_left_where_it_stands_and_nothing_else(work: Work) -> None:
    with leased() as driver:
        driver.grants(grant(0), grant(1, 200), share=2)
        driver.connection.send({"release": 9})  # never granted: nothing to leave
        driver.connection.send({"release": 1})
        assert driver.hears() == left(1, 207)
        assert (work.stopped, work.shares) == ([1], [2, 2])
        driver.connection.send({"end": True})
        assert driver.hears() == left(0)


def test_a_partition_that_was_left_and_granted_again_can_be_called_back_again(work: Work) -> None:
    """Two leases of it never work at once: they would fence each other, for ever."""
    with leased() as driver:
        for start in (100, 200, 300):
            begin(driver, work, grant(0, start))
            assert not work.stopped, "its stop is a new one"
            driver.connection.send({"release": 0})
            assert driver.hears() == left(0, start + 7)
            work.stopped.clear()
        begin(driver, work, grant(0))
        driver.connection.send({"release": 0})
        driver.grants(grant(0))
        assert driver.hears() == left(0)
        assert work.begun.acquire(timeout=WAIT_S)
        assert work.most == 1


def test_the_second_lease_waits_for_the_first_ones_transaction(work: Work) -> None:
    """A grant that comes too early, say from a driver that is wrong, begins nothing beside what still runs."""
    go = threading.Event()

    def act(_report: object, _stop: threading.Event, _limits: object) -> int:
        assert go.wait(WAIT_S)
        return 101

    work.acts[0] = act
    with leased() as driver:
        begin(driver, work, grant(0), grant(0))
        assert not work.begun.acquire(timeout=0.1)
        go.set()
        assert work.begun.acquire(timeout=WAIT_S)
        assert work.most == 1


def one_reader(first: TransactionSize) -> SharedLimits:
    session = SharedLimits(first)
    session.reading = ConcurrencyLimit(1, 60.0)
    return session


def test_who_waits_for_its_turn_leaves_when_it_is_called_back(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """And when all are sent away: others may read for minutes."""
    waiting, go = threading.Event(), threading.Event()

    def reads(_report: object, _stop: threading.Event, session: SharedLimits) -> int:
        with session.reading.turn():
            assert go.wait(WAIT_S)
        return 101

    def waits(_report: object, stop: threading.Event, session: SharedLimits) -> int:
        waiting.set()
        with session.reading.turn(stop):
            return 102

    work.acts |= {0: reads, 1: waits, 2: waits}
    monkeypatch.setattr(worker, "SharedLimits", one_reader)
    with leased() as driver:
        begin(driver, work, grant(0))
        driver.grants(grant(1), grant(2))
        assert waiting.wait(WAIT_S)
        driver.task.join(0.1)
        driver.connection.send({"release": 1})
        assert driver.hears() == left(1, 102)
        driver.task.join(0.1)
        driver.connection.send({"end": True})
        assert driver.hears() == left(2, 102), "the one that reads has not ended"
        go.set()
        assert driver.hears() == left(0, 101)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Fatal("read of orders[0]: gone"), "Fatal: read of orders[0]: gone"),
        (ZeroDivisionError("a bug"), "ZeroDivisionError: a bug"),
    ],
)
def test_a_partition_that_fails_is_left_with_its_reason_alone(work: Work, error: Exception, why: str) -> None:
    work.acts[0] = Mock(side_effect=error)
    with leased() as driver:
        driver.grants(grant(1), grant(0))
        released = driver.hears()["released"]
        assert (released["partition"], released["position"]) == (0, 100)
        assert released["why"].rstrip().endswith(why)
        assert work.stopped == []


@pytest.mark.parametrize("status", Status)
def test_every_outcome_is_told_before_its_partition_is_left(work: Work, status: Status) -> None:
    """Who hears first that it was left would plan from what is known without the outcome."""

    def act(report: Callable[[Outcome], None], *_: object) -> int:
        report(Outcome(0, 100, 105, status))
        return 105

    work.acts[0] = act
    with leased() as driver:
        driver.grants(grant(0))
        assert driver.hears()["outcome"]["status"] == status
        # One that crashed on purpose is not left, as if it had died: nobody gets it.
        if status is Status.CRASHED:
            driver.connection.send({"renew": True})
            assert driver.hears() == {"alive": True}, "nothing in between"
        else:
            assert driver.hears() == left(0, 105)


@pytest.mark.parametrize("watched", [True, False])
def test_each_begin_is_told_to_who_watches_and_to_everybody_else_the_first_one(work: Work, watched: bool) -> None:
    """A message for each transaction costs; the first one shows that the brokers can be reached from there."""
    with leased(watched=watched) as driver:
        for partition, told in ((5, True), (6, watched)):
            begin(driver, work, grant(partition))
            driver.connection.send({"release": partition})
            messages = [{"begun": partition}, left(partition)] if told else [left(partition)]
            assert [driver.hears(begins=True) for _ in messages] == messages


def test_a_driver_that_is_not_there_is_named_with_what_to_look_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        settings = worker_settings(server.getsockname()[1])
    with pytest.raises(Unreachable, match=r"driver at 127\.0\.0\.1:\d+ .* spark\.driver\.host"):
        worker.run_lease_worker(settings, 0)


def test_behind_a_lease_a_process_collects_garbage_as_often_as_before() -> None:
    """A worker in somebody's own process would leave clients in cycles there, until no thread-local key is left."""
    before = gc.get_threshold()
    with leased():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before
