"""Errors of the client library at the one door: what may be done after each, and which topics a refusal names."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaError, KafkaException

from brew.acl import advice
from brew.errors import Abortable, Fatal, Fenced, KafkaFailure, Retriable, classify
from brew.kafka.clients import mapped
from brew.kafka.transaction import AuthorizationFailures


def test_a_fence_that_strikes_while_the_client_logs_is_still_a_fence() -> None:
    """The client calls the logger with its exception pending; Python makes a SystemError of that (seen in `flush`)."""
    fenced = KafkaException(KafkaError(KafkaError._FENCED, "fenced by a newer instance", True))
    with pytest.raises(Fenced), mapped("produce"):
        raise SystemError("LogRecord returned a result with an exception set") from fenced


def test_a_system_error_of_somebody_else_stays_what_it_is() -> None:
    with pytest.raises(SystemError), mapped("produce"):
        raise SystemError("another one")


@pytest.mark.parametrize("code", [KafkaError.NOT_CONTROLLER, KafkaError.REQUEST_TIMED_OUT])
def test_what_passes_while_a_controller_is_elected_is_asked_again(code: int) -> None:
    """The protocol calls both retriable; the client's administrative calls bring them without the mark."""
    error = KafkaError(code)
    assert not error.retriable()
    with pytest.raises(Retriable), mapped("make topics"):
        raise KafkaException(error)


@dataclass
class Answer:
    """librdkafka's error object."""

    code: str
    is_retriable: bool = False
    is_abortable: bool = False
    is_fatal: bool = False

    def retriable(self) -> bool:
        return self.is_retriable

    def txn_requires_abort(self) -> bool:
        return self.is_abortable

    def fatal(self) -> bool:
        return self.is_fatal

    def name(self) -> str:
        return self.code

    def str(self) -> str:
        return "what it says"


@pytest.mark.parametrize(
    ("answer", "leaf"),
    [
        (Answer("X"), Fatal),
        (Answer("X", is_fatal=True), Fatal),
        (Answer("X", is_retriable=True), Retriable),
        (Answer("X", is_abortable=True), Abortable),
        (Answer("X", is_retriable=True, is_abortable=True), Retriable),
        (Answer("_FENCED", is_retriable=True, is_abortable=True, is_fatal=True), Fenced),
        (Answer("PRODUCER_FENCED"), Fenced),
        (Answer("INVALID_PRODUCER_EPOCH", is_abortable=True), Fenced),
        (Answer("NOT_COORDINATOR"), Retriable),
        (Answer("NOT_COORDINATOR", is_abortable=True), Abortable),
        (Answer("NOT_COORDINATOR", is_fatal=True), Fatal),
    ],
)
def test_an_error_is_exactly_one_leaf_and_keeps_its_text(answer: Answer, leaf: type[KafkaFailure]) -> None:
    """Fenced first, then retriable, abortable, known to pass; what is left is fatal."""
    error = classify(answer, "send-offsets")
    assert type(error) is leaf
    assert str(error) == f"send-offsets: what it says ({answer.code})"


ERROR = "Failed to add partition(s) to transaction: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
LINE = 'ADDPARTS [rdkafka#producer-1]: TxnCoordinator/1: Failed to add partition "%s" [0] to transaction: %s'
NO, BESIDE = "Broker: Topic authorization failed", "Broker: Operation not attempted"


def test_what_the_client_logs_names_the_topics_in_the_step_and_in_the_advice(caplog: pytest.LogCaptureFixture) -> None:
    """Those that were not attempted because of them are none of them; whoever reads the log still gets all of it."""
    refusals = AuthorizationFailures()
    above = logging.getLogger("test.refusals")
    told = refusals.logger(above)
    assert refusals.step("commit") == "commit"
    with caplog.at_level(logging.ERROR):
        for topic, why in (("g.deltas", NO), ("g.changelog", BESIDE), ("a.totals", NO), ("g.deltas", NO)):
            told.error(LINE, topic, why)
    assert len(caplog.records) == 4
    step = refusals.step("send-offsets")
    assert step == "send-offsets (no Write on topic a.totals, g.deltas)"
    names = {"topic": "orders", "output": "a.totals", "written0": "a.totals", "group": "g"}
    text = f"orders[0]: no transaction succeeded there for 10 s, at last: Abortable: {step}: {ERROR}"
    said = advice(text, "User:me", names, None)
    assert said is not None
    named = [one for one in ("a.totals", "g.deltas", "orders") if f"Write on topic {one}: `" in said]
    assert named == ["a.totals", "g.deltas"]
    assert said.count("kafka-acls") == 2
