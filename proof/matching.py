"""Compare an input record with what came of it; pure."""

from __future__ import annotations

from typing import Protocol

from proof.checking.records import ByProfile, Headers, Row
from proof.oracle import appended, unjustified, wrong_enrichment
from protocol.position import HEADER_OFFSET, SourcePosition
from protocol.records import ERROR_OMITTED, ERROR_REASON, Reason


class Side(Protocol):
    """One of the two records."""

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...
    @property
    def created(self) -> int | None: ...


class Expected:
    """What an output of one input partition has to be in the common case, compared byte by byte."""

    def __init__(self, topic: str, partition: int) -> None:
        source = SourcePosition(topic, partition, 0).headers()
        self._source: Headers = [*source[:-1]]

    def exactly(self, came: Row, out: Row) -> bool:
        """True when ``out`` is surely right; False says nothing yet."""
        _, offset, key, value, headers, created = came
        _, _, out_key, out_value, out_headers, out_created = out
        return (
            out_key == key
            and out_created == created
            and value is not None
            and out_value is not None
            and out_headers == [*headers, *self._source, (HEADER_OFFSET, b"%d" % offset)]
            and appended(key, value, out_value)
        )


class Unsure(Expected):
    """Where a record names the profile that it was made with: no output is right at first sight."""

    def exactly(self, came: Row, out: Row) -> bool:  # noqa: ARG002 - the other's shape
        return False


def wrong_output(came: Side, out: Side, source: SourcePosition, profiles: ByProfile | None = None) -> str | None:
    """What is wrong with an enriched record; None when nothing is. ``profiles``: tiers came from these."""
    if out.key != came.key:
        return f"key is {out.key!r}, should be {came.key!r}"
    added = [] if profiles is None else out.headers[len(came.headers) :][:1]
    if out.headers != [*came.headers, *added, *source.headers()]:
        return (
            f"headers are {[name for name, _ in out.headers]}, should be the input's and then the three of the source"
        )
    if out.created is not None and came.created is not None and out.created != came.created:
        return f"timestamp is {out.created}, should be {came.created}"
    if profiles is not None:
        return profiles.wrong(came.value, out.value, added[0] if added else None)
    return wrong_enrichment(came.key, came.value, out.value)


def wrong_dead_letter(came: Side, out: Side, source: SourcePosition) -> str | None:
    """What is wrong with a rejected record; None when nothing is."""
    added = out.headers[len(came.headers) :]
    if out.headers[: len(came.headers)] != came.headers:
        return "the input's headers are not in front, unchanged"
    if SourcePosition.of(added) != source:
        return "the source headers do not follow the input's"
    if out.key != came.key:
        return f"key is {out.key!r}, should be {came.key!r}"
    found = dict(added)
    reason = (found.get(ERROR_REASON) or b"").decode("utf-8", "replace")
    if reason not in set(Reason):
        return f"reason {reason!r} is none of {', '.join(Reason)}"
    if out.value != came.value and not _omitted(came, out, found.get(ERROR_OMITTED)):
        return "the value's bytes are not the input's"
    return unjustified(Reason(reason), came.value)


def _omitted(came: Side, out: Side, told: bytes | None) -> bool:
    """A value too large for the dead-letter topic stays in the input, and a header tells its length."""
    return out.value is None and came.value is not None and told == b"%d" % len(came.value)
