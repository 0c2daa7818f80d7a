"""The driver's side of a shared transaction: which answers are asked again, and what the others mean."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable, BrewError, DeadlineExceeded, Denied, Fatal, Fenced, Retriable, Unreachable
from brew.kafka import shared_transaction
from brew.kafka.shared_transaction import SharedTransaction
from brew.kafka.transaction import TransactionSettings

NOT_COORDINATOR, CONCURRENT, EPOCH, FENCED, STATE, ID_DENIED, INVALID = 16, 51, 47, 90, 48, 53, 42


class Coordinator:
    """Answers with these error codes, one after another, the last one for ever; an exception is raised."""

    def __init__(self, *answers: int | BrewError) -> None:
        self.answers, self.calls, self.forgotten = list(answers), 0, 0
        self.allowed_s: list[tuple[float, float]] = []
        self.confirmation = self
        self._request_s = 0.0

    def client(self, deadline: Deadline, request_s: float) -> Coordinator:
        if deadline.remaining_s() <= 0:
            raise Unreachable("no Kafka broker answered")
        self._request_s = request_s
        return self

    def forget(self, _client: Coordinator) -> None:
        self.forgotten += 1

    def ask(self, _step: str, _call: Any, deadline: Deadline) -> Any:
        self.calls += 1
        self.allowed_s.append((self._request_s, deadline.budget_s))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BrewError):
            raise answer
        return SimpleNamespace(error_code=answer, producer_id=4711, producer_epoch=7)


def driver(monkeypatch: pytest.MonkeyPatch, *answers: int | BrewError) -> tuple[SharedTransaction, Coordinator]:
    coordinator = Coordinator(*answers)
    monkeypatch.setattr(shared_transaction, "locator", lambda *_: coordinator)
    return SharedTransaction(TransactionSettings(Connection("nowhere:1"), "revenue", 60.0), "out"), coordinator


def test_tasks_get_the_last_fences_id_and_epoch_and_the_driver_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, _ = driver(monkeypatch, 0)
    kafka.fence(Deadline(5))
    epoch = kafka.epoch
    values = (epoch.transactional_id, epoch.producer_id, epoch.epoch, epoch.timeout_s)
    assert values == ("revenue:out:sink", 4711, 7, 60.0)
    with pytest.raises(Fatal):
        kafka.produce("out", b"value")
    with pytest.raises(Fatal):
        kafka.make_room(Deadline(1))


@pytest.mark.parametrize(
    ("answers", "anew"),
    [
        ([CONCURRENT, CONCURRENT], 0),
        *(([answer], 1) for answer in (NOT_COORDINATOR, Retriable("cut off"), DeadlineExceeded("no answer"))),
    ],
)
def test_an_ending_transaction_is_waited_for_and_a_lost_coordinator_looked_for_anew(
    monkeypatch: pytest.MonkeyPatch, answers: list[int | BrewError], anew: int
) -> None:
    kafka, coordinator = driver(monkeypatch, *answers, 0)
    kafka.fence(Deadline(5))
    assert (coordinator.calls, coordinator.forgotten) == (len(answers) + 1, anew)


def test_a_distant_coordinator_gets_more_time_with_each_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt is a new client's, with its connections and logins: a fixed time might never be enough."""
    kafka, coordinator = driver(monkeypatch, *[DeadlineExceeded("no answer")] * 4, 0)
    kafka.fence(Deadline(100))
    assert coordinator.allowed_s == [(s, s) for s in (5.0, 10.0, 20.0, 20.0, 20.0)]


@pytest.mark.parametrize(
    ("code", "leaf"), [(EPOCH, Fenced), (FENCED, Fenced), (STATE, Abortable), (ID_DENIED, Denied), (INVALID, Fatal)]
)
def test_other_answers_end_the_attempt(monkeypatch: pytest.MonkeyPatch, code: int, leaf: type[BrewError]) -> None:
    kafka, coordinator = driver(monkeypatch, code)
    with pytest.raises(leaf, match="transactional id revenue:out:sink"):
        kafka.commit(Deadline(5))
    assert coordinator.calls == 1


def test_a_coordinator_that_may_not_be_asked_for_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers tell it to those who may describe the id."""
    kafka, coordinator = driver(monkeypatch, Fatal("fence: (TransactionalIdAuthorizationFailedError)"), 0)
    with pytest.raises(Denied):
        kafka.fence(Deadline(5))
    assert coordinator.calls == 1


def test_a_commit_without_an_answer_is_an_open_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt's locate answers it."""
    kafka, _ = driver(monkeypatch, Retriable("cut off"))
    with pytest.raises(DeadlineExceeded, match="commit: still failing"):
        kafka.commit(Deadline(0.1))


def test_what_brokers_answered_last_is_the_reason_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last attempt has no time left for a client of its own, and "no broker answered" sends people elsewhere."""
    kafka, coordinator = driver(monkeypatch, NOT_COORDINATOR)
    with pytest.raises(DeadlineExceeded, match="NotCoordinatorError"):
        kafka.fence(Deadline(0.1))
    assert coordinator.calls > 1
    with pytest.raises(Unreachable, match="no Kafka broker answered"):
        kafka.fence(Deadline(1e-9))
