"""
Add the domain to clicks: one record in, one record out with an additional field.

    brew run --transform examples/clicks.py:add_domain --input clicks --output clicks.domains
"""

from __future__ import annotations

from urllib.parse import urlsplit

import brew


def add_domain(record: brew.Record) -> brew.Record | None:
    """Add the domain of the click's URL; drop clicks by robots, reject clicks without a domain."""
    click = record.json()
    if not isinstance(click, dict) or not isinstance(click.get("url"), str):
        raise brew.Reject("no-url", "a click is a JSON object with a url")
    if "bot" in str(click.get("agent", "")).lower():
        return None
    try:
        domain = urlsplit(click["url"]).hostname
    except ValueError as error:
        raise brew.Reject("bad-url", str(error)) from error
    if domain is None:
        raise brew.Reject("bad-url", f"{click['url']!r} has no domain")
    return record.with_json({**click, "domain": domain})
