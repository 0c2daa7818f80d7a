r"""
Convert amounts to euros at the rate in force when the payment was made; rates come from a topic of their own.

    BOOTSTRAP=localhost:9092 RATES_TOPIC=rates \
    brew run --transform examples/currency.py:in_euros --input payments --output payments.eur

A rate is a record whose key is the currency and whose value is the price of one unit in euros (`USD` -> `0.92`), in
force from its timestamp on. Publish a rate some seconds before that, and keep old ones (`retention.ms=-1`,
`cleanup.policy=delete`): a payment is then always converted at the same rate, and `brew verify` can look it up again.
"""

from __future__ import annotations

import os
from decimal import Decimal, DecimalException
from typing import Any

import brew
from brew import formats
from brew.lookup import Table

RATES = Table(os.environ.get("RATES_TOPIC", "rates"), os.environ.get("BOOTSTRAP", "localhost:9092"))
CENT = Decimal("0.01")


@formats.json()
def in_euros(payment: Any, record: brew.Record) -> dict[str, Any]:
    """Add the amount in euros and the rate, as strings because JSON numbers would round them."""
    try:
        amount, currency = Decimal(str(payment["amount"])), str(payment["currency"])
    except (TypeError, KeyError, DecimalException) as error:
        raise brew.Reject("no-amount", "a payment has an amount and a currency") from error
    if not amount.is_finite():
        raise brew.Reject("no-amount", f"{amount} is not an amount")
    rate = Decimal(1) if currency == "EUR" else _rate(currency, record.timestamp)
    try:
        euros = (amount * rate).quantize(CENT)
    except DecimalException as error:
        raise brew.Reject("no-amount", f"{amount} has too many digits") from error
    return {**payment, "eur": str(euros), "rate": str(rate)}


def _rate(currency: str, timestamp: int) -> Decimal:
    text = RATES.at(currency.encode(), timestamp)
    if text is None:
        raise brew.Reject("no-rate", f"there was no rate for {currency} at {timestamp}")
    return Decimal(text.decode())
