"""
Mask personal data before it leaves a protected topic: in the value, in the key, and in the headers.

    MASKING_KEY=... brew run --transform examples/masking.py:mask --input customers --output customers.masked

Equal inputs give equal masked values (a keyed hash), so joins and counts still work; without the key, nobody can find
the input by guessing. Rejected records go to the dead-letter topic unchanged: protect it like the input.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any

import brew

HASHED = {"customer_id", "email", "phone", "iban"}
REMOVED = {"name", "address", "birthday", "comment"}
HEADERS = {"trace", "content-type"}
_DIGITS = 24


def mask(record: brew.Record) -> brew.Record:
    """Hash identifying fields and remove descriptive ones, at any depth; keep only headers known to be harmless."""
    value = record.json()
    if not isinstance(value, dict):
        raise brew.Reject("not-an-object", "a customer is a JSON object")
    key = None if record.key is None else _hashed(record.key).encode()
    harmless = [(name, content) for name, content in record.headers if name in HEADERS]
    return record.with_json(_masked(value)).with_key(key).with_headers(harmless)


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _hashed(str(one).encode()) if name in HASHED and one is not None else _masked(one)
            for name, one in value.items()
            if name not in REMOVED
        }
    return [_masked(one) for one in value] if isinstance(value, list) else value


def _hashed(text: bytes) -> str:
    key = os.environ.get("MASKING_KEY", "")
    if not key:
        raise RuntimeError("MASKING_KEY is not set where the tasks run; set it to the key that values are hashed with")
    return hmac.digest(key.encode(), text, hashlib.sha256).hex()[:_DIGITS]
