"""A record, what a transformation answers, and how `apply` reads the answer."""

from __future__ import annotations

import enum
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brew
from brew.record import Record, Reject, apply, checked_reject, shortened


class Reason(enum.StrEnum):
    NO_URL = "no-url"


CLICK = Record("clicks", 3, 17, b"k", b'{"url":"http://a.example/x"}', (("h", b"1"),), 1_700_000_000_000)


def test_each_method_changes_one_thing_in_a_copy() -> None:
    """All else stays, the source position above all: outputs are proven by it."""
    assert (brew.Record, brew.Reject) == (Record, Reject)
    routed = CLICK.to("clicks.late")
    assert routed == replace(CLICK, destination="clicks.late")
    assert routed.with_value(b"v") == replace(routed, value=b"v")
    assert routed.with_json({"a": 1}) == replace(routed, value=b'{"a":1}')
    assert routed.with_key(b"x") == replace(routed, key=b"x")
    assert routed.with_headers({"a": b"b"}) == replace(routed, headers=(("a", b"b"),))
    assert routed.with_headers([("a", None), ("a", b"2")]).headers == (("a", None), ("a", b"2"))
    with pytest.raises(AttributeError):
        CLICK.value = b""  # type: ignore[misc]


def test_a_value_is_read_as_json_and_of_headers_the_last_of_a_name_counts() -> None:
    assert CLICK.json() == {"url": "http://a.example/x"}
    record = CLICK.with_headers([("a", b"1"), ("a", b"2")])
    assert (record.header("a"), record.header("b")) == (b"2", None)


@pytest.mark.parametrize(
    ("value", "reason", "message"),
    [
        (None, "no-value", "tombstone"),
        (b"{", "not-json", "not JSON: unexpected end of data"),
        (b'"\xff"', "not-json", "not UTF-8: byte 0xff at 1 of 3"),
    ],
)
def test_a_value_that_is_no_json_is_rejected_and_ends_no_run(value: bytes | None, reason: str, message: str) -> None:
    rejected = apply(lambda record: record.with_json(record.json()), CLICK.with_value(value))
    assert isinstance(rejected, Reject)
    assert (rejected.reason, message in rejected.message) == (reason, True)


def test_a_rejection_survives_the_way_from_a_worker() -> None:
    """Executors pickle what they raise."""
    again = pickle.loads(pickle.dumps(Reject("no-url", "no url in it")))
    assert (again.reason, again.message, str(again)) == ("no-url", "no url in it", "no-url: no url in it")
    assert again.args == ("no-url", "no url in it")
    assert str(Reject("no-url")) == "no-url"
    assert pickle.loads(pickle.dumps(CLICK)) == CLICK


def test_a_rejection_s_reason_and_message_are_text_that_kafka_can_hold() -> None:
    """`Reject(404)` failed where the dead letter was encoded, and was repeated as if the brokers had failed."""
    assert (Reject(404).reason, Reject("x", ValueError("no")).message) == ("404", "no")  # type: ignore[arg-type]
    assert (Reject("a\ud800").reason, Reject("x", "\udfffä").message) == ("a?", "?ä")
    kept = Reason.NO_URL
    assert Reject(kept).reason is kept, "an application compares its own enum by identity"


def test_the_sources_own_headers_are_not_checked_again() -> None:
    """Spark's reader may hand over what a client can't write: that is not the function's fault."""
    record = replace(CLICK, headers=(("a\0b", b""),))
    assert apply(lambda one: one.with_value(b"x"), record) == (record.with_value(b"x"),)
    assert apply(lambda one: [one, one], record) == (record, record)
    assert apply(lambda one: replace(one, timestamp=-(2**63)), record)
    assert apply(lambda one: replace(one, timestamp=2**63 - 1, headers=[("ä", None)]), record)  # type: ignore[arg-type]


def _twice(record: Record) -> Iterator[Record]:
    yield record
    yield record.to("b")


def _rejecting_late(record: Record) -> Iterator[Record]:
    yield record
    raise Reject("late")


def test_every_answer_becomes_a_tuple_or_a_rejection_and_other_exceptions_pass_through() -> None:
    def raising(_record: Record) -> None:
        raise Reject("no-url")

    assert apply(lambda record: record, CLICK) == (CLICK,)
    assert apply(lambda _record: None, CLICK) == ()
    assert apply(lambda _record: [], CLICK) == ()
    assert apply(lambda record: [record, record.to("b")], CLICK) == (CLICK, CLICK.to("b"))
    assert apply(_twice, CLICK) == (CLICK, CLICK.to("b"))
    assert str(apply(raising, CLICK)) == "no-url"
    assert str(apply(_rejecting_late, CLICK)) == "late", "an output before the rejection is not written"
    with pytest.raises(ZeroDivisionError):
        apply(lambda _record: 1 / 0, CLICK)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"bytes", "returned bytes"),
        ({"a": 1}, "returned dict"),
        ([CLICK, None], "holds None; each"),
        ([b"bytes"], "holds bytes; each"),
        (Record(value="text"), "a value of type str"),  # type: ignore[arg-type]
        (Record(key=7), "a key of type int"),  # type: ignore[arg-type]
        (CLICK.with_headers([("a", "text")]), "header"),  # type: ignore[list-item]
        (CLICK.with_headers([("a",)]), "header"),  # type: ignore[list-item]
        (CLICK.with_headers([("a\0b", b"")]), "header name 'a\\x00b'"),
        (CLICK.with_headers([("\ud800", b"")]), "header name '\\ud800'"),
        (Record(headers=(pair for pair in [("a", b"")])), "headers of type generator"),  # type: ignore[arg-type]
        (replace(CLICK, timestamp="now"), "timestamp 'now'"),  # type: ignore[arg-type]
        (replace(CLICK, timestamp=1.5), "timestamp 1.5"),  # type: ignore[arg-type]
        (replace(CLICK, timestamp=2**63), f"timestamp {2**63}"),
        (replace(CLICK, timestamp=-(2**63) - 1), "timestamp -"),
        (CLICK.to(["late"]), "destination ['late']"),  # type: ignore[arg-type]
    ],
)
def test_an_answer_that_kafka_can_not_hold_is_a_type_error_that_says_what_came(answer: Any, message: str) -> None:
    """confluent-kafka would encode a str by itself: the checker then compares other bytes than were written."""
    with pytest.raises(TypeError, match=re.escape(message)):
        apply(lambda _record: answer, CLICK)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(-3, 60))
def test_a_text_is_cut_to_its_limit_in_bytes_and_says_so(text: str, limit: int) -> None:
    cut, size = shortened(text, limit), len(text.encode())
    assert len(cut.encode()) <= max(0, limit)
    mark = f" ... (cut: {size} bytes)"
    if size <= limit:
        assert cut == text
    elif limit >= len(mark):
        assert cut.endswith(mark)
        assert text.startswith(cut.removesuffix(mark))
        assert len(cut.encode()) > limit - 4, "a character has four bytes at most"
    else:
        assert mark.startswith(cut)


class OwnReject(Reject):
    """Sets its fields by itself, or does not."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


@pytest.mark.parametrize(
    "fields", [{}, {"reason": "a"}, {"reason": 7, "message": ""}, {"reason": "\udc80", "message": ""}]
)
def test_a_rejection_of_ones_own_without_texts_says_what_its_class_has_to_call(fields: dict[str, Any]) -> None:
    with pytest.raises(
        TypeError, match=r"^OwnReject has the .*; a class derived from brew\.Reject has to call super\(\)"
    ):
        checked_reject(OwnReject(**fields))
    assert checked_reject(OwnReject(reason="a", message="b")).message == "b"
