"""A record's headers, of which the client library can't read every name."""

from __future__ import annotations

from operator import methodcaller

from brew.errors import Refused
from brew.kafka.log_reader import LogRecord

Headers = list[tuple[str, bytes | None]]


def headers_of(record: LogRecord) -> Headers | None:
    """Return a record's headers; None if the client library can't read them, because a name is not UTF-8."""
    try:
        # With such a name it returns a broken list beside its exception. A plain call may overlook the exception, and
        # the list then ends the process with a segmentation fault (confluent-kafka 2.16.1, Python 3.11).
        return methodcaller("headers")(record) or []
    except SystemError:
        return None


def readable_headers(record: LogRecord) -> Headers:
    """
    Raises:
        Refused: a name is not UTF-8, so nothing can be said that depends on the record's headers.
    """
    headers = headers_of(record)
    if headers is None:
        raise Refused(
            f"the record at partition {record.partition()}, offset {record.offset()} has a header whose name is not "
            "UTF-8, so the client library can't read its headers; `brew show` shows the rest of it"
        )
    return headers
