"""Transformations that the tests run: everything that one may do with a record."""

from __future__ import annotations

from urllib.parse import urlsplit

import orjson
import pyarrow as pa

import brew

LATE = "late"


def add_domain(record: brew.Record) -> brew.Record | list[brew.Record] | None:
    """By `kind`: a click with its domain, none (dropped), several, one for another topic, a rejection, an error."""
    click = record.json()
    kind = click.get("kind")
    if kind == "drop":
        return None
    if "url" not in click:
        raise brew.Reject("no-url", f"a click has a url, this one has {sorted(click)}")
    enriched = record.with_json({**click, "domain": urlsplit(click["url"]).hostname})
    if kind == "fan-out":
        return [enriched, enriched.with_json({"copy": 1}), enriched.with_json({"copy": 2}).with_key(b"other")]
    if kind == "late":
        return enriched.to(LATE + click["topic"]).with_headers([*record.headers, ("late", b"1")])
    if kind == "error":
        return record.with_json(click["nowhere"])
    return enriched


@brew.batches
def add_domain_in_batches(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same for whole batches, without the routing."""
    columns: dict[str, list[object]] = {"offset": [], "value": [], "reject": []}

    def add(offset: int, value: bytes | None, reject: str | None = None) -> None:
        for name, cell in (("offset", offset), ("value", value), ("reject", reject)):
            columns[name].append(cell)

    for offset, value in zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True):
        click = orjson.loads(value)
        if click.get("kind") == "drop":
            continue
        if "url" not in click:
            add(offset, None, "no-url")
            continue
        for _ in range(3 if click.get("kind") == "fan-out" else 1):
            add(offset, orjson.dumps({**click, "domain": urlsplit(click["url"]).hostname}))
        if click.get("kind") == "error":
            raise KeyError("nowhere")
    schema = pa.schema([("offset", pa.int64()), ("value", pa.binary()), ("reject", pa.string())])
    return pa.RecordBatch.from_pydict(columns, schema=schema)


def two_arguments(_record: brew.Record, _other: object) -> None:
    """No transformation."""


async def asynchronous(_record: brew.Record) -> None:
    """None either."""


A_NUMBER = 7
