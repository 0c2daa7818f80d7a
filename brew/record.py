"""
A record as a transformation sees it, and what a transformation may return.

A transformation is a function of one `Record`. It returns a record, a list of records (fan-out) or None (dropped), or
raises `Reject` for the dead-letter topic. `apply` calls it and converts every answer to one form, which the runs, the
checker and `brew.testing` share. Pure: no Kafka, no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import GeneratorType
from typing import Any, TypeVar

import orjson

from brew.errors import encodable
from brew.offsets import Headers

NO_VALUE = "no-value"
NOT_JSON = "not-json"
TOO_LARGE = "too-large"
TRANSFORM_ERROR = "transform-error"
"""Reasons that the library itself gives; all others are the transformation's own."""
OTHER_REASONS = "other"
"""The reason that counts dead letters beyond the limit on distinct reasons, since each is a label of metrics."""

MAX_REASON_BYTES = 1000
"""A reason is one of the headers of a dead letter, which has to fit into its topic; a longer one is cut."""

_MIN_TIMESTAMP, _MAX_TIMESTAMP = -(2**63), 2**63 - 1
_OF_BATCHES = "__brew_batches__"
_F = TypeVar("_F", bound=Callable[..., Any])


def why_not_json(value: bytes, error: orjson.JSONDecodeError) -> str:
    """Return what is wrong with a text; for invalid UTF-8 the parser only says that surrogates are not allowed."""
    try:
        value.decode()
    except UnicodeDecodeError as wrong:
        return f"not UTF-8: byte 0x{value[wrong.start]:02x} at {wrong.start} of {len(value)} ({wrong.reason})"
    return f"not JSON: {error}"


class Reject(Exception):
    """
    Raised by a transformation: the record goes to the dead-letter topic, its bytes unchanged.

    ``reason`` is a short code by which dead letters are counted in reports and metrics, such as `no-url`; ``message``
    is a sentence for people and may contain values of the record. A reason of more than `MAX_REASON_BYTES` is cut.
    """

    def __init__(self, reason: str, message: str = "") -> None:
        # Other types, such as `Reject(404)`, and lone surrogates would fail only where the dead letter is encoded.
        self.reason, self.message = shortened(_text(reason), MAX_REASON_BYTES), _text(message)
        super().__init__(self.reason, self.message)

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


def _text(value: object) -> str:
    return encodable(value if isinstance(value, str) else str(value))


def shortened(text: str, max_bytes: int) -> str:
    """Return a text of at most ``max_bytes`` as UTF-8; if it is cut, its end says so."""
    encoded = text.encode()
    if len(encoded) <= max_bytes:
        return text
    mark = f" ... (cut: {len(encoded)} bytes)"
    return (encoded[: max(0, max_bytes - len(mark))].decode(errors="ignore") + mark)[: max(0, max_bytes)]


@dataclass(frozen=True, slots=True)
class Record:
    """
    A Kafka record; ``timestamp`` in milliseconds since the epoch.

    ``topic``, ``partition`` and ``offset`` give the position of an input record; outputs made from it with the methods
    below keep them. ``destination`` is the topic that an output goes to (None: the run's `--output`).
    """

    topic: str = ""
    partition: int = -1
    offset: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp: int = 0
    destination: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    def json(self) -> Any:
        """
        Parse the value as JSON.

        Raises:
            Reject: there is no value (`no-value`), or it is not JSON (`not-json`).
        """
        if self.value is None:
            raise Reject(NO_VALUE, "the record has no value (a tombstone)")
        try:
            return orjson.loads(self.value)
        except orjson.JSONDecodeError as error:
            raise Reject(NOT_JSON, why_not_json(self.value, error)) from error

    def header(self, name: str) -> bytes | None:
        """Return the value of the last header of that name, or None."""
        return next((value for known, value in reversed(self.headers) if known == name), None)

    def with_json(self, value: object) -> Record:
        """Return a copy with ``value``, encoded as JSON."""
        return self.with_value(orjson.dumps(value))

    def with_value(self, value: bytes | None) -> Record:
        """Return a copy with other bytes; None is a tombstone."""
        # Not `dataclasses.replace`, here and below, which takes three times as long.
        return Record(
            self.topic,
            self.partition,
            self.offset,
            self.key,
            value,
            self.headers,
            self.timestamp,
            self.destination,
        )

    def with_key(self, key: bytes | None) -> Record:
        """Return a copy with another key, which then determines the output partition."""
        return Record(
            self.topic,
            self.partition,
            self.offset,
            key,
            self.value,
            self.headers,
            self.timestamp,
            self.destination,
        )

    def with_headers(self, headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]) -> Record:
        """Return a copy with these headers instead of its own."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        return Record(
            self.topic,
            self.partition,
            self.offset,
            self.key,
            self.value,
            tuple(pairs),
            self.timestamp,
            self.destination,
        )

    def to(self, topic: str) -> Record:
        """Return a copy for another output topic, one of the run's `--also-output`."""
        return Record(
            self.topic,
            self.partition,
            self.offset,
            self.key,
            self.value,
            self.headers,
            self.timestamp,
            topic,
        )


Answer = Record | Sequence[Record] | None
Function = Callable[[Record], Answer]
"""What users write."""


def batches(function: _F) -> _F:
    """
    Mark a transformation that takes and returns a `pyarrow.RecordBatch` instead of one record.

    `brew.record_batches` describes the columns of both.
    """
    setattr(function, _OF_BATCHES, True)
    return function


def takes_batches(function: object) -> bool:
    """Return whether ``function`` is marked with `batches`."""
    return getattr(function, _OF_BATCHES, False) is True


def apply(function: Function, record: Record) -> tuple[Record, ...] | Reject:
    """
    Call a transformation and return its outputs in order (none: the record is dropped), or why it rejects the record.

    A generator of outputs works like a function that returns a list of them; a function of batches gets a batch of this
    record alone.

    Raises:
        TypeError: the answer is none of these, or an output holds something other than bytes.
        Exception: whatever else the function raises.
    """
    if takes_batches(function):
        from brew.record_batches import apply_batch  # noqa: PLC0415 - pyarrow, only if it is used

        return apply_batch(function, [record])[0]
    try:
        answer: object = function(record)
        if answer is None:
            return ()
        if type(answer) is Record:
            return (_checked(answer, record.headers),)
        if isinstance(answer, list | tuple | GeneratorType):
            return tuple(_checked(output, record.headers) for output in answer)
    except Reject as reject:
        return checked_reject(reject)
    raise TypeError(f"it returned {_kind(answer)}; return a brew.Record, a list of them, or None to drop the record")


def _checked(output: object, source_headers: Headers) -> Record:
    """Return the record if Kafka can hold it as it is; other types would be encoded silently by the client."""
    if type(output) is not Record:
        raise TypeError(f"a list that it returned holds {_kind(output)}; each output has to be a brew.Record")
    if not isinstance(output.value, bytes | None) or not isinstance(output.key, bytes | None):
        wrong = "key" if isinstance(output.value, bytes | None) else "value"
        raise TypeError(f"it returned a {wrong} of type {_kind(getattr(output, wrong))}; bytes or None are needed")
    if not isinstance(output.timestamp, int) or not _MIN_TIMESTAMP <= output.timestamp <= _MAX_TIMESTAMP:
        raise TypeError(f"it returned the timestamp {output.timestamp!r}; an int of milliseconds (64 bits) is needed")
    if not isinstance(output.destination, str | None):
        raise TypeError(f"it returned the destination {output.destination!r}; the name of a topic or None is needed")
    if output.headers is not source_headers:
        check_headers(output.headers)
    return output


def checked_reject(reject: Reject) -> Reject:
    """
    Return the rejection if a dead letter can hold it; a class derived from `Reject` may not have set its fields.

    Raises:
        TypeError: they are missing, or no text that UTF-8 can encode.
    """
    for name in ("reason", "message"):
        text = getattr(reject, name, None)
        if not isinstance(text, str) or encodable(text) != text:
            raise TypeError(
                f"{type(reject).__name__} has the {name} {text!r}; a class derived from brew.Reject has to call "
                "super().__init__(reason, message)"
            )
    return reject


def check_headers(headers: Headers) -> None:
    """
    Raises:
        TypeError: Kafka, or the client, can't hold them.
    """
    if not isinstance(headers, tuple | list):  # an iterator would be empty after this check
        raise TypeError(f"it returned headers of type {_kind(headers)}; a tuple of pairs is needed")
    for pair in headers:
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], bytes | None):  # noqa: PLR2004 - name and value
            raise TypeError(f"it returned the header {pair!r}; each is a pair of a str and bytes (or None)")
        name = pair[0]
        if "\0" in name or encodable(name) != name:
            # librdkafka ends a name at NUL; confluent-kafka crashes on one that UTF-8 can't encode.
            raise TypeError(f"it returned the header name {name!r}; it has NUL or a lone surrogate")


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
