"""The values that all sides agree on: ids, positions, deadlines, errors, and those of the client library."""

from __future__ import annotations

import logging
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from brew.acl import advice
from brew.deadline import Deadline, retry_until
from brew.errors import Abortable, DeadlineExceeded, Fatal, Fenced, KafkaFailure, Retriable, UsageError, classify
from brew.kafka.clients import mapped
from brew.kafka.transaction import AuthorizationFailures
from brew.names import SinkTransactionalId, TransactionalId, checked_topic
from brew.offsets import OffsetRange, SinkBatch, SourcePosition

_topics = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)


@given(group=st.text(min_size=1, max_size=20), topic=_topics, partition=st.integers(0, 10**6))
def test_a_transactional_id_is_read_back_whole(group: str, topic: str, partition: int) -> None:
    """Also where the group holds colons; a sink's is no pipeline's."""
    identity, sinks = TransactionalId(group, topic, partition), SinkTransactionalId(group, topic)
    assert TransactionalId.parse(str(identity)) == identity
    assert SinkTransactionalId.parse(str(sinks)) == sinks
    with pytest.raises(ValueError, match="not a transactional id of this pipeline"):
        TransactionalId.parse(str(sinks))


@pytest.mark.parametrize(
    ("kind", "reason", "texts"),
    [
        (TransactionalId, "", ["", "g", "g:t", "g:t:x", ":t:1", "g::1", "g:t:01", "g:t:-1", "g:a b:1", "g:t:²"]),
        (
            SinkTransactionalId,
            " of a sink",
            ["", "g", "g:sink", ":t:sink", "g::sink", "g:t:0", "g:t:sinks", "g:a b:sink"],
        ),
    ],
)
def test_what_is_not_one_of_our_ids_is_not_read_as_one(kind: Any, reason: str, texts: list[str]) -> None:
    """A prefix match would fence somebody else's producer."""
    for text in texts:
        with pytest.raises(ValueError, match=f"not a transactional id{reason}"):
            kind.parse(text)


@given(topic=_topics, partition=st.integers(0, 10**6), offset=st.integers(0, 2**62))
def test_a_source_position_survives_its_headers(topic: str, partition: int, offset: int) -> None:
    """And the last header of a name counts: the input may come from another pipeline."""
    position = SourcePosition(topic, partition, offset)
    older = SourcePosition("older", 1, 2).headers()
    assert SourcePosition.of([*older, ("x", None), *position.headers()]) == position


SINKS = [("brew.sink.name", b"revenue"), ("brew.sink.batch", b"17")]


@pytest.mark.parametrize(
    ("headers", "batch"),
    [
        # The last ones count: the query may have taken over those of its input, which may be a pipeline's.
        ([("a", None), *SourcePosition("in", 1, 2).headers(), *SINKS], SinkBatch("revenue", 17)),
        ([*SINKS, *SourcePosition("in", 1, 2).headers()], None),
        (None, None),
        ([], None),
        (SINKS[:1], None),
        (SINKS[1:], None),
        ([SINKS[0], ("brew.sink.batch", b"x")], None),
    ],
)
def test_a_sinks_record_names_its_batch(headers: list[tuple[str, bytes]] | None, batch: SinkBatch | None) -> None:
    """Another writer's names none, also that of a pipeline that read a sink's records and kept their headers."""
    assert SinkBatch.of(headers) == batch
    assert str(SinkBatch("revenue", 17)) == "batch 17 of sink revenue"


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("source.topic", b"t"), ("source.partition", b"x"), ("source.offset", b"1")],
        [("source.topic", b"t"), ("source.partition", b"1"), ("source.offset", b"1" * 5000)],
    ],
)
def test_headers_that_are_not_ours_are_no_position(headers: list[tuple[str, bytes]] | None) -> None:
    assert SourcePosition.of(headers) is None


@pytest.mark.parametrize(("start", "until"), [(-1, 1), (1, 1), (2, 1)])
def test_a_range_is_never_empty_or_backwards(start: int, until: int) -> None:
    with pytest.raises(ValueError, match="range"):
        OffsetRange("t", 0, start, until)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250])
def test_names_that_kafka_refuses_are_refused_first(name: str) -> None:
    with pytest.raises(UsageError, match="OUTPUT_TOPIC"):
        checked_topic(name, "OUTPUT_TOPIC")


def test_a_deadline_never_hands_out_a_negative_time_out() -> None:
    """A negative one blocks the client library for ever."""
    clock = [0.0]
    deadline = Deadline(10.0, now=lambda: clock[0])
    assert deadline.part(3.0).remaining_s() == 3.0
    assert deadline.part(30.0).remaining_s() == 10.0
    clock[0] = 9.9
    deadline.check("commit")
    assert 0 < deadline.remaining_s() < 0.2
    clock[0] = 11.0
    assert deadline.remaining_s() == 0.0
    with pytest.raises(DeadlineExceeded, match="commit: no end within 10 s"):
        deadline.check("commit")
    # The clock may pass the end between two lines: who asks then is told of the time, in the step's words.
    part = deadline.part(3.0)
    assert 0 < part.remaining_s() < 0.1
    clock[0] = 12.0
    with pytest.raises(DeadlineExceeded, match="locate"):
        part.check("locate")


def test_a_retriable_call_is_repeated_until_it_succeeds_or_time_is_up() -> None:
    """Same call, same arguments, within the deadline; any other error leaves at once."""
    assert retry_until(Mock(side_effect=[Retriable("a"), Retriable("b"), 7]), "fence", Deadline(5)) == 7
    with pytest.raises(DeadlineExceeded, match=r"fence: still failing after 0\.05 s"):
        retry_until(Mock(side_effect=Retriable("still")), "fence", Deadline(0.05))


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
