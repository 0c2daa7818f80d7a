"""How the input's own headers travel from Spark to the task: one flat column, and its decoder."""

from __future__ import annotations

import base64

import orjson

# Flat on purpose: Spark measures the batch after each row, and walks nested columns from their beginning every time
# (77 % of a task's time with a list of structs and 10,000 rows). Null headers, the usual case, cost nothing.
COLUMN = "CAST(CASE WHEN size(headers) > 0 THEN to_json(headers) END AS BINARY) AS headers"


def headers_of(cell: bytes | None) -> list[tuple[str, bytes | None]] | None:
    """Read a cell of the headers column: Spark's `to_json` writes bytes as base64 and leaves null values out."""
    if not cell:
        return None
    return [(header["key"], _decoded(header.get("value"))) for header in orjson.loads(cell)]


def _decoded(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)
