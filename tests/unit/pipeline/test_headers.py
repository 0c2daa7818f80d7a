"""The flat headers column: what Spark's to_json writes is read back exactly."""

from __future__ import annotations

import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from brew.readers.connector import headers_of

_headers = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.binary()), min_size=1)


@given(_headers)
def test_any_headers_survive_in_order(headers: list[tuple[str, bytes | None]]) -> None:
    """Repeated names, empty and null values, any bytes; to_json leaves null values out."""
    written = [
        {"key": name} if value is None else {"key": name, "value": base64.b64encode(value).decode()}
        for name, value in headers
    ]

    assert headers_of(json.dumps(written, ensure_ascii=False).encode()) == headers


def test_a_record_without_headers_has_none() -> None:
    """Null is what nearly all cells are."""
    assert headers_of(None) is None
    assert headers_of(b"") is None
