"""Topics that a transaction may not write to: the client's log names them, its error does not."""

from __future__ import annotations

import logging

import pytest

from brew.acl import advice
from brew.kafka.transaction import AuthorizationFailures

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
    assert [one for one in ("a.totals", "g.deltas", "orders") if f"Write on topic {one}: `" in said] == [
        "a.totals",
        "g.deltas",
    ]
    assert said.count("kafka-acls") == 2
