"""Payloads made to cost time: limits hold before anything is parsed, and no text takes longer than its size."""

from __future__ import annotations

import random
import re
import time

import pytest

from brew.orders import Reason
from brew.record import Reject
from brew.settings import Limits
from pipeline.orders import NumberPlaceholders, depth, enricher, may_round

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
    found = enricher(Limits(max_depth=100))(b"gold-1", value)
    assert (isinstance(found, Reject) and found.reason is Reason.TOO_DEEP) is (levels > 100)


def test_bytes_are_held_before_anything_else() -> None:
    found = enricher(Limits(max_bytes=10))(None, b"[" * 11)
    assert isinstance(found, Reject)
    assert found.reason is Reason.TOO_LARGE


def test_brackets_in_strings_are_no_depth_and_strings_end_where_json_says() -> None:
    assert depth(rb'{"a":"[[[\"[[","b":[1]}') == 2
    assert depth(rb'{"a\\":[{"b":1}]}') == 3
    assert depth(b'["a') == 1


def test_the_same_depth_as_a_scanner_by_hand() -> None:
    dice = random.Random(7)
    for _ in range(3000):
        value = bytes(dice.choices(b'[]{}"\\a1,:', k=dice.randrange(30)))
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
    shelter = NumberPlaceholders(value)
    assert shelter.restore(shelter.text) == value
