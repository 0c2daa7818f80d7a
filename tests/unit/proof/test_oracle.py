"""The second opinion about enrichment."""

from __future__ import annotations

import pytest

from brew.records import Reason
from proof.oracle import unjustified, wrong_enrichment

ORDER = b'{"order_id":"gold-1","customer_id":"c","total_cents":5}'
GOLD = b',"loyalty_tier":"gold","loyalty_discount":0.15}'


def test_appending_the_two_fields_is_right() -> None:
    """The common case: the input's text with two fields behind it."""
    assert wrong_enrichment(b"gold-1", ORDER, ORDER[:-1] + GOLD) is None


def test_order_of_fields_and_white_space_do_not_matter() -> None:
    """Equal objects are equal, however they are written."""
    out = b'{ "loyalty_discount": 1.5e-1, "total_cents": 5.0, "customer_id": "\\u0063", "order_id": "gold-1", "loyalty_tier": "gold"}'  # noqa: E501
    assert wrong_enrichment(b"gold-1", ORDER, out) is None


@pytest.mark.parametrize(
    ("key", "tier", "discount"),
    [
        (b"silver-1", "silver", "0.10"),
        (b"bronze-1", "bronze", "0.05"),
        (None, "standard", "0"),
        (b"golden-1", "standard", "0.0"),
    ],
)
def test_the_tier_comes_from_the_whole_prefix(key: bytes | None, tier: str, discount: str) -> None:
    """A key without a known prefix is standard, `golden-` is not gold."""
    out = ORDER[:-1] + f',"loyalty_tier":"{tier}","loyalty_discount":{discount}}}'.encode()
    assert wrong_enrichment(key, ORDER, out) is None
    assert wrong_enrichment(b"gold-1", ORDER, out) is not None


def test_fields_of_the_same_name_are_overwritten() -> None:
    """Who sends a discount along does not get it."""
    came = b'{"customer_id":"c","loyalty_discount":0.99,"loyalty_tier":"gold"}'
    assert wrong_enrichment(b"x", came, b'{"customer_id":"c","loyalty_tier":"standard","loyalty_discount":0.0}') is None
    assert "0.99" in (wrong_enrichment(b"x", came, came[:-1] + b"}") or "")


@pytest.mark.parametrize(
    ("number", "lossy"),
    [
        ("12345678901234567890123", "12345678901234567000000"),
        ("0.1000000000000000055", "0.1"),
        ("1e400", "1e401"),
        ("1e999999999999999999999", "1e99999999999999999999"),
        ("1", "true"),
        ("1", '"1"'),
        ("0", "null"),
    ],
)
def test_numbers_keep_their_exact_value(number: str, lossy: str) -> None:
    """What a float or a careless comparison would let pass is found."""
    came = f'{{"customer_id":"c","n":{number}}}'.encode()
    kept = f'{{"n":{number},"customer_id":"c"'.encode() + GOLD
    lost = f'{{"customer_id":"c","n":{lossy}'.encode() + GOLD
    assert wrong_enrichment(b"gold-1", came, kept) is None
    assert "'n'" in (wrong_enrichment(b"gold-1", came, lost) or "")


@pytest.mark.parametrize(
    "came",
    [
        b"nonsense",
        b"[1]",
        b'{"a":1}',
        b'{"customer_id":"c"',
        b'{"customer_id":NaN}',
        b'{"customer_id":"\\ud800"}',
        None,
    ],
)
def test_a_bad_record_must_not_come_out_enriched(came: bytes | None) -> None:
    """It belongs on the dead-letter topic, however the output looks."""
    out = (came or b"{}")[:-1] + GOLD
    assert wrong_enrichment(b"gold-1", came, out) is not None


@pytest.mark.parametrize("change", [b'"total_cents":6', b'"total_cents":5,"extra":1', b'"x":5'])
def test_a_changed_added_or_missing_field_is_named(change: bytes) -> None:
    """The evidence holds the field's name."""
    out = ORDER[:-1].replace(b'"total_cents":5', change) + GOLD
    assert "field" in (wrong_enrichment(b"gold-1", ORDER, out) or "")


@pytest.mark.parametrize(
    ("reason", "value"),
    [
        (Reason.NOT_JSON, b"{"),
        (Reason.NOT_JSON, b"\xff"),
        (Reason.NOT_JSON, b'{"customer_id":"c","half":"\\ud800"}'),
        (Reason.NOT_JSON, b'{"half":"\\udc00","customer_id":"c","half":"whole"}'),
        (Reason.NOT_AN_OBJECT, b"[]"),
        (Reason.NO_CUSTOMER_ID, b'{"n":1E+400}'),
        (Reason.NO_CUSTOMER_ID, b"{}"),
        (Reason.NO_CUSTOMER_ID, b'{"customer_id":null}'),
        (Reason.NO_VALUE, None),
        (Reason.TOO_LARGE, ORDER),
    ],
)
def test_a_justified_rejection_passes(reason: Reason, value: bytes | None) -> None:
    """Each reason with a record that it fits."""
    assert unjustified(reason, value) is None


@pytest.mark.parametrize("reason", [Reason.NOT_JSON, Reason.NOT_AN_OBJECT, Reason.NO_CUSTOMER_ID, Reason.NO_VALUE])
def test_rejecting_a_good_order_is_found(reason: Reason) -> None:
    """Throwing an order away is no way out."""
    assert unjustified(reason, ORDER) is not None
    assert unjustified(reason, b'{"customer_id":"c","n":1E+400,"pair":"\\ud83e\\udda7"}') is not None
    assert reason is Reason.NO_VALUE or unjustified(reason, None) is not None
