"""Errors of the client library at the one door: what may be done after each, and which topics a refusal names."""

from __future__ import annotations

import logging

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
    with pytest.raises(SystemError), mapped("produce"):
        raise SystemError("another one")


RETRIABLE, ABORTABLE = {"retriable": True}, {"txn_requires_abort": True}


@pytest.mark.parametrize(
    ("name", "flags", "leaf"),
    [
        ("INVALID_TXN_STATE", {}, Fatal),
        ("TOPIC_AUTHORIZATION_FAILED", {"fatal": True}, Fatal),
        ("UNKNOWN_PRODUCER_ID", RETRIABLE, Retriable),
        ("UNKNOWN_PRODUCER_ID", ABORTABLE, Abortable),
        ("UNKNOWN_PRODUCER_ID", RETRIABLE | ABORTABLE, Retriable),
        ("REQUEST_TIMED_OUT", RETRIABLE, Retriable),
        ("_FENCED", {"fatal": True}, Fenced),
        ("_FENCED", {"fatal": True} | RETRIABLE | ABORTABLE, Fenced),
        ("PRODUCER_FENCED", {}, Fenced),
        ("INVALID_PRODUCER_EPOCH", {"fatal": True}, Fenced),
        ("INVALID_PRODUCER_EPOCH", ABORTABLE, Fenced),
        ("NOT_COORDINATOR", {}, Retriable),
        ("NOT_COORDINATOR", ABORTABLE, Abortable),
        ("NOT_COORDINATOR", {"fatal": True}, Fatal),
        ("UNKNOWN_LEADER_EPOCH", {}, Retriable),
        ("FENCED_LEADER_EPOCH", {}, Retriable),
        # The protocol calls both retriable; the client's administrative calls bring them without the mark.
        ("NOT_CONTROLLER", {}, Retriable),
        ("REQUEST_TIMED_OUT", {}, Retriable),
    ],
)
def test_an_error_is_one_leaf_and_keeps_its_text(name: str, flags: dict[str, bool], leaf: type[KafkaFailure]) -> None:
    """Asked in the manual's order: fenced, retriable, abortable, known to pass; what no question covers is fatal."""
    error = KafkaError(getattr(KafkaError, name), "what it says", **flags)
    assert error.retriable() is ("retriable" in flags)
    with pytest.raises(leaf) as caught, mapped("send-offsets"):
        raise KafkaException(error)
    for failure in (caught.value, classify(error, "send-offsets")):
        assert (type(failure), str(failure)) == (leaf, f"send-offsets: what it says ({name})")


def test_no_code_of_the_library_is_left_unmapped() -> None:
    codes = [code for name in dir(KafkaError) if isinstance(code := getattr(KafkaError, name), int) and name.isupper()]
    assert len(codes) > 100
    for code in codes:
        for flags in range(8):
            error = KafkaError(code, "x", bool(flags & 1), bool(flags & 2), bool(flags & 4))
            with pytest.raises((Retriable, Abortable, Fenced, Fatal)), mapped("step"):
                raise KafkaException(error)


ERROR = "Failed to add partition(s) to transaction: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
LINE = 'ADDPARTS [rdkafka#producer-1]: TxnCoordinator/1: Failed to add partition "%s" [0] to transaction: %s'
NO, BESIDE = "Broker: Topic authorization failed", "Broker: Operation not attempted"


def test_what_the_client_logs_names_the_topics_in_the_step_and_in_the_advice(caplog: pytest.LogCaptureFixture) -> None:
    """Those that were not attempted because of them are none of them; whoever reads the log still gets all of it."""
    refusals = AuthorizationFailures()
    above = logging.getLogger("test.refusals")
    logger = refusals.logger(above)
    assert refusals.step("commit") == "commit"
    with caplog.at_level(logging.ERROR):
        for topic, why in (("g.deltas", NO), ("g.changelog", BESIDE), ("a.totals", NO), ("g.deltas", NO)):
            logger.error(LINE, topic, why)
    assert len(caplog.records) == 4
    step = refusals.step("send-offsets")
    assert step == "send-offsets (no Write on topic a.totals, g.deltas)"
    names = {"topic": "orders", "output": "a.totals", "written0": "a.totals", "group": "g"}
    text = f"orders[0]: no transaction succeeded there for 10 s, at last: Abortable: {step}: {ERROR}"
    message = advice(text, "User:me", names, None)
    named = [one for one in ("a.totals", "g.deltas", "orders") if f"Write on topic {one}: `" in message]
    assert named == ["a.totals", "g.deltas"]
    assert message.count("kafka-acls") == 2
