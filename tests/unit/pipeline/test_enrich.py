"""Enrichment is pure: numbers keep their value, bad records get their reason; and the seam that it plugs into."""

from __future__ import annotations

import json
import pickle
import random
import re
import subprocess
import sys
import time
from dataclasses import replace
from decimal import Decimal

import pytest
from harness.pages import ROOT
from hypothesis import example, given
from hypothesis import strategies as st

from brew.connection import Connection
from brew.errors import UsageError
from brew.orders import DISCOUNTS, Reason
from brew.record import Reject
from brew.settings import Limits, PipelineSettings, ProfilesSettings
from brew.transformation import transformation
from pipeline.enrichment import NumberPlaceholders, depth, enricher, may_round
from pipeline.transformation import ORDERS, OrderEnrichment

ENRICH = enricher(Limits(max_bytes=1000, max_depth=5))


def exact(text: bytes) -> object:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("key", "tier"),
    [
        (b"gold-000017", "gold"),
        (b"silver-1", "silver"),
        (b"bronze-", "bronze"),
        (b"standard-9", "standard"),
        (b"gold", "gold"),
        (b"golden-1", "standard"),
        (b"Gold-1", "standard"),
        (b"-gold", "standard"),
        (b"\xff\xfe-1", "standard"),
        (b"", "standard"),
        (None, "standard"),
    ],
)
def test_the_tier_is_the_keys_prefix_before_the_first_dash(key: bytes | None, tier: str) -> None:
    order = json.loads(ENRICH(key, b'{"customer_id":"c","x":[1]}'))
    assert order == {"customer_id": "c", "x": [1], "loyalty_tier": tier, "loyalty_discount": DISCOUNTS[tier]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, Reason.NO_VALUE),
        (b"", Reason.NOT_JSON),
        (b"{", Reason.NOT_JSON),
        (b'{"customer_id":"\xff"}', Reason.NOT_JSON),
        (b'{"customer_id":NaN}', Reason.NOT_JSON),
        (b'{"customer_id":1,12345678901234567890:2}', Reason.NOT_JSON),
        (b"[1]", Reason.NOT_AN_OBJECT),
        (b"12345678901234567890", Reason.NOT_AN_OBJECT),
        (b"1e400", Reason.NOT_AN_OBJECT),
        (b"null", Reason.NOT_AN_OBJECT),
        (b"{}", Reason.NO_CUSTOMER_ID),
        (b'{"customer_id":null}', Reason.NO_CUSTOMER_ID),
        (b'{"customer_id":""}', Reason.NO_CUSTOMER_ID),
        (b'{"customer_id":"' + b"x" * 1000 + b'"}', Reason.TOO_LARGE),
        (b"[" * 1001, Reason.TOO_LARGE),
        (b'{"customer_id":1,"a":' + b"[" * 5 + b"]" * 5 + b"}", Reason.TOO_DEEP),
    ],
)
def test_a_record_that_is_no_order_is_rejected_with_its_reason(value: bytes | None, reason: Reason) -> None:
    """The reason is a code; the message names value and limit. Bytes are held before anything else."""
    rejected = ENRICH(b"gold-1", value)
    assert isinstance(rejected, Reject)
    assert rejected.reason is reason
    assert rejected.message


_numbers = st.one_of(
    st.integers().map(str),
    st.decimals(allow_nan=False, allow_infinity=False).map(lambda d: format(d, "E").replace("E+", "e")),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**6), max_value=10**6).map("{:f}".format),
)
_characters = st.characters(exclude_categories=["Cs"])
_texts = st.one_of(st.text(_characters, max_size=30), st.from_regex(r'[0-9eE.,:"\\\[]{5,40}'))


@given(
    numbers=st.lists(_numbers, max_size=4), texts=st.lists(_texts, max_size=3), spaces=st.sampled_from(["", " ", "\n "])
)
@example(["12345678901234567890123", "1e400", "-0.1000000000000000055", "5E-400"], ["1234567890123456789"], "")
def test_every_number_and_text_keeps_its_exact_value(numbers: list[str], texts: list[str], spaces: str) -> None:
    """A double can't hold most of these; they pass through digit by digit."""
    written = ",".join([f"{spaces}{n}{spaces}" for n in numbers] + [json.dumps(t, ensure_ascii=False) for t in texts])
    value = f'{{"customer_id":"c","all":[{written}]}}'.encode()
    enriched = enricher(Limits())(b"gold-1", value)
    assert exact(enriched) == {**exact(value), "loyalty_tier": "gold", "loyalty_discount": Decimal("0.15")}


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    assert len(dict(pairs)) == len(pairs), f"a name stands twice: {pairs}"
    return dict(pairs)


_names = st.text(_characters, max_size=4) | st.sampled_from(
    ["a", "loyalty_tier", "loyalty_discount", '":', '" :', "x ", " y", "\\", "\n"]
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=8,
)
_commas = ",", ", ", " ,", ",\n", "\n, "
_styles = st.tuples(st.sampled_from(_commas), st.sampled_from([":", ": ", " :", "\t:\t", ":\r\n", "\r:", "\n:"]))


@given(
    order=st.dictionaries(_names, _values, max_size=4),
    again=st.dictionaries(_names, _values, max_size=2),
    style=_styles,
    ascii_only=st.booleans(),
    around=st.sampled_from([("", ""), (" ", ""), ("", "\n"), ("\t", " ")]),
)
@example(order={"a": {"x": 1}}, again={"a": 2}, style=(",", ":"), ascii_only=False, around=("", ""))
@example(order={"loyalty_tier": 1}, again={}, style=(",", ":"), ascii_only=False, around=("", ""))
def test_however_an_order_is_written_its_values_stay_and_no_name_stands_twice(
    order: dict, again: dict, style: tuple[str, str], ascii_only: bool, around: tuple[str, str]
) -> None:
    """Spaces, escapes, names that stand twice (the last one counts), our own fields, names that look like syntax."""
    inside = [{**order, "customer_id": "c"}, again]
    texts = [json.dumps(one, separators=style, ensure_ascii=ascii_only)[1:-1] for one in inside]
    text = around[0] + "{" + style[0].join(one for one in texts if one) + "}" + around[1]
    value = text.encode()
    expected = {**exact(value), "loyalty_tier": "silver", "loyalty_discount": Decimal("0.1")}
    enriched = enricher(Limits())(b"silver-7", value)
    if expected["customer_id"] in {None, ""}:
        assert isinstance(enriched, Reject)
        return
    assert json.loads(enriched, parse_float=Decimal, parse_int=Decimal, object_pairs_hook=unique) == expected


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\r", "\r\n", " \r"])
@pytest.mark.parametrize(
    "text",
    [
        '{"customer_id":"c","a":1,"a"BLANK:2}',
        '{"customer_id":"c","a"BLANK:1,"a":2}',
        '{"customer_id":"c","x":{"a":1,"a"BLANK:2}}',
        '{"customer_id":"c","x":[{"a":1},{"a":1,"a"BLANK:2}]}',
    ],
)
def test_no_blank_behind_a_name_hides_that_it_stands_twice(text: str, blank: str) -> None:
    """JSON knows four blanks. Readers differ on which of two members counts, so the output holds one: the last."""
    value = text.replace("BLANK", blank).encode()
    enriched = enricher(Limits())(b"gold-1", value)
    assert isinstance(enriched, bytes)
    expected = {**json.loads(value), "loyalty_tier": "gold", "loyalty_discount": 0.15}
    assert json.loads(enriched, object_pairs_hook=unique) == expected


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (b'{"customer_id":1,"a":' + b"[" * 4 + b"]" * 4 + b"}", 30),
        (b'{"customer_id":1,"b":[],"a":' + b"[" * 4 + b"]" * 4 + b"}", 37),
        (b'{"customer_id":"%b"}', 1000),
        (b'{"customer_id":0}', 17),
    ],
)
def test_the_limits_themselves_are_still_accepted(value: bytes, length: int) -> None:
    largest = value.replace(b"%b", b"x" * (1000 - 18))
    assert len(largest) == length
    assert isinstance(ENRICH(None, largest), bytes)


def test_the_usual_order_keeps_its_very_text() -> None:
    """What an order says about money is not written anew: 1.50 stays 1.50. Nobody brings a discount along."""
    value = b'{"customer_id": "c", "total": 1.50, "big": 12345678901234567890123, "note": "\\u00e9"}'
    assert ENRICH(b"gold-1", value) == value[:-1] + b',"loyalty_tier":"gold","loyalty_discount":0.15}'
    order = exact(ENRICH(b"standard-1", b'{"loyalty_discount":0.9,"customer_id":1,"loyalty_tier":"gold"}'))
    assert (order["loyalty_tier"], order["loyalty_discount"]) == ("standard", Decimal(0))
    brought = ENRICH(b"standard-1", b'{"loyalty_discount":0.9,"customer_id":1}')
    assert json.loads(brought, object_pairs_hook=unique)["loyalty_discount"] == 0
    enrich = enricher(Limits(), lambda _key, order: str(order["tier_hint"]))  # the seam for customer profiles
    assert json.loads(enrich(b"gold-1", b'{"customer_id":"c","tier_hint":"bronze"}'))["loyalty_discount"] == 0.05


def test_a_value_that_is_not_utf_8_is_called_that() -> None:
    """With the byte and its place, and not "surrogates not allowed", which is the parser's own business."""
    answer = ENRICH(b"gold-1", b'{"customer_id":"c-\xff"}')
    assert isinstance(answer, Reject)
    assert answer.message.startswith("not UTF-8: byte 0xff at 18 of 21")


_SIZE = 1_000_000
_LIMIT_S = 2.0
"""For a megabyte; the slow ones took an hour."""


ENDLESS = {
    "quotes-without-an-end": b"[" * 101 + b'"' + b'\\"' * (_SIZE // 2),
    "backslashes-without-an-end": b"[" * 101 + b'"' + b"\\" * _SIZE,
    "many-strings-then-none": b"[" * 101 + b'"a",' * (_SIZE // 4) + b'"',
    "long-number-before-an-endless-string": b'{"a":12345678901234567890,"x":"' + b'\\"' * (_SIZE // 2),
    "long-numbers": b'{"a":[' + b"12345678901234567890," * (_SIZE // 21),
    "colons-and-blanks": b'{"a":' + b": " * (_SIZE // 2) + b"1e",
    "exponents": b'{"customer_id":"c","a":1e' + b"9" * (_SIZE - 40) + b"}",
    "openers": b"[" * _SIZE,
    "names": b'{"customer_id":"c",' + b'"a":1,' * (_SIZE // 6) + b'"b":1}',
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_no_megabyte_takes_longer_than_a_megabyte(kind: str) -> None:
    enrich = enricher(Limits(max_bytes=2 * _SIZE))
    began = time.process_time()
    enrich(b"gold-1", ENDLESS[kind])
    assert time.process_time() - began < _LIMIT_S


def test_the_regex_that_was_here_before_is_slow() -> None:
    """The check of the check: on a hundredth of it, what was replaced takes far longer than all of it does now."""
    value = b"[" * 101 + b'"' + b'\\"' * 8000
    began = time.process_time()
    slow = list(re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]', value, re.DOTALL))
    middle = time.process_time()
    assert depth(value) == 101 == len(slow)
    assert (middle - began) > 20 * (time.process_time() - middle)


@pytest.mark.parametrize("levels", [99, 100, 101, 5000])
@pytest.mark.parametrize(("opener", "closer"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_held_before_the_parser_sees_it(levels: int, opener: bytes, closer: bytes) -> None:
    inner = levels - 1
    value = b'{"customer_id":"c","x":' + opener * inner + b"1" + closer * inner + b"}"
    answer = enricher(Limits(max_depth=100))(b"gold-1", value)
    assert (isinstance(answer, Reject) and answer.reason is Reason.TOO_DEEP) is (levels > 100)


def test_brackets_in_strings_are_no_depth_and_strings_end_where_json_says() -> None:
    assert isinstance(ENRICH(None, b'{"customer_id":"[[[[[[[[[["}'), bytes)
    assert depth(rb'{"a":"[[[\"[[","b":[1]}') == 2
    assert depth(rb'{"a\\":[{"b":1}]}') == 3
    assert depth(b'["a') == 1


def test_the_same_depth_as_a_scanner_by_hand() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        value = bytes(rng.choices(b'[]{}"\\a1,:', k=rng.randrange(30)))
        assert depth(value) == _by_hand(value), value


def _by_hand(value: bytes) -> int:
    deepest = level = 0
    inside = escaped = False
    for one in value:
        if inside:
            if escaped:
                escaped = False
            elif one == ord("\\"):
                escaped = True
            elif one == ord('"'):
                inside = False
        elif one == ord('"'):
            inside = True
        elif one in b"[{":
            level += 1
            deepest = max(deepest, level)
        elif one in b"]}":
            level -= 1
    return deepest


def test_sheltered_numbers_come_back_beside_a_string_without_an_end() -> None:
    value = b'{"a":12345678901234567890,"b":"\\"'
    assert may_round(value)
    placeholders = NumberPlaceholders(value)
    assert placeholders.restore(placeholders.text) == value


SETTINGS = PipelineSettings(
    Connection("nowhere:1"), "in", "out", "dead", "group", limits=Limits(max_bytes=70), transform=ORDERS
)


def test_orders_are_a_transformation_with_the_limits_of_the_run() -> None:
    orders = transformation(SETTINGS)
    assert orders == OrderEnrichment(Limits(max_bytes=70))
    assert pickle.loads(pickle.dumps(orders)) == orders
    assert orders.whole_input_first is False
    assert transformation(replace(SETTINGS, profiles=ProfilesSettings())).whole_input_first is True
    prepared = orders.ready(SETTINGS.connection, "group", 1)  # the connection leads nowhere
    assert (prepared.evidence, prepared.malformed) == (None, None)
    assert prepared.transform is None, "orders take the way without a Record: functions cost them nothing"
    assert b'"loyalty_tier":"gold"' in bytes(prepared.enrich(b"gold-1", b'{"customer_id":"c"}'))


@pytest.mark.parametrize(
    "named", ["no_such_module:name", "pipeline.transformation:Nothing", "pipeline.transformation", ""]
)
def test_a_transformation_that_is_not_there_is_refused_by_its_name(named: str) -> None:
    """Before Spark starts: the settings are enough to know."""
    with pytest.raises(UsageError, match=r"TRANSFORM \(--transform\) is") as refused:
        transformation(replace(SETTINGS, transform=named))
    assert repr(named) in str(refused.value)


def test_the_library_imports_no_application() -> None:
    """The lint contract sees the imports that stand in the text; this sees what is loaded."""
    code = (
        "import sys, brew.attempt, brew.driver.run, brew.readers.direct.worker, brew.driver.micro_batches; "
        "print(sorted({n.partition('.')[0] for n in sys.modules} & {'pipeline', 'operations', 'downstream', 'proof'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
