"""Which traces a transaction's records belong to, by their `traceparent` headers: its span links to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pipeline.ports import RecordHeaders, Rows

MOST = 32
"""Distinct ones of one transaction, the first; a span with a link for each of 250,000 records would help nobody."""
_HEADER = "traceparent"
_FORM = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Traces:
    """``found`` in the order of the records; nothing more is looked at once it is full."""

    def __init__(self) -> None:
        self.found: dict[str, None] = {}

    def heard(self, batches: Iterable[Rows]) -> Iterator[Rows]:
        """The same batches; what each belongs to is noted before it goes on."""
        for rows in batches:
            self._note(rows.headers)
            yield rows

    def _note(self, all_headers: Iterable[RecordHeaders]) -> None:
        for headers in all_headers:
            if len(self.found) >= MOST:
                return
            for name, value in headers or ():
                if name == _HEADER and value is not None and (form := _FORM.match(value)):
                    self.found.setdefault(form[0].decode())
