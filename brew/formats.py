"""
Formats of values, as decorators: a transformation then takes and returns Python objects instead of bytes.

::

    @formats.avro(registry="http://registry:8081", output="clicks.enriched", schema=Path("click.avsc"))
    def add_domain(click):
        return {**click, "domain": urlsplit(click["url"]).hostname}

The function gets the value, or the value and its `brew.Record` if it takes two arguments. It returns an object, a list
of them (fan-out) or None (dropped), or raises `brew.Reject`. An `Output` sets another topic, key or headers for its
object (None: a tombstone); a `brew.Record` is written as it is. Avro, JSON Schema and Protobuf need the extra
`brew[schema-registry]`.

A record that does not fit its schema becomes a dead letter: `no-schema-id`, `unknown-schema`, `schema-mismatch`, or
`output-schema-mismatch` for what the function returned. If the registry does not answer, no record is rejected: the
transaction is aborted and repeated.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import EllipsisType, GeneratorType
from typing import TYPE_CHECKING, Any

import orjson

from brew.errors import UsageError
from brew.offsets import Headers
from brew.record import NO_VALUE, Record, Reject

if TYPE_CHECKING:
    from brew.kafka.schema_registry import SchemaSettings

Registry = str | Mapping[str, Any]
"""The registry's address, or settings of Confluent's client: `url`, `basic.auth.user.info`, `ssl.ca.location`..."""
Schema = str | Path | None
"""A schema's text, or the path of a file that holds it."""

OUTPUT_NOT_JSON = "output-not-json"
_SCHEMA_ID_HEADER = "__value_schema_id"


@dataclass(frozen=True, slots=True)
class Output:
    """An output object, for topic ``to`` (None: the run's output); `...` keeps the source's key or headers."""

    value: object
    to: str | None = None
    key: bytes | EllipsisType | None = ...
    headers: Headers | EllipsisType = ...


class Format:
    """How values are read and written; as a decorator, for functions that read and write the same format."""

    def read(self, record: Record) -> Any:
        """
        Return the value as an object.

        Raises:
            Reject: the record's bytes are not of this format, or do not fit their schema.
        """
        raise NotImplementedError

    def write(self, value: Any, topic: str | None) -> bytes:
        """
        Return the object's bytes as a record of ``topic`` (None: the run's output).

        Raises:
            Reject: the object does not fit the schema.
        """
        raise NotImplementedError

    def __call__(self, function: Callable[..., Any]) -> Callable[[Record], list[Record]]:
        return using(self, self)(function)


def using(input: Format, output: Format) -> Callable[[Callable[..., Any]], Callable[[Record], list[Record]]]:  # noqa: A002 - the options' names
    """Return a decorator for functions that read one format and write another."""

    def decorate(function: Callable[..., Any]) -> Callable[[Record], list[Record]]:
        if any(check(function) for check in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)):
            raise UsageError(f"{getattr(function, '__qualname__', function)} is an async function; write it with def")
        both = _takes_record(function)

        @functools.wraps(function)
        def transform(record: Record) -> list[Record]:
            value = input.read(record)
            answer = function(value, record) if both else function(value)
            if answer is None:
                return []
            many = answer if isinstance(answer, list | tuple | GeneratorType) else (answer,)
            return [item if isinstance(item, Record) else _written(item, record, output) for item in many]

        if isinstance(function, functools.partial):  # its module is `functools`, which does not travel to executors
            transform.__module__ = function.func.__module__
        # Otherwise `inspect.signature` would show the function's parameters, and a run would refuse a second one.
        del transform.__wrapped__
        return transform

    return decorate


def _takes_record(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    return sum(parameter.kind in positional and parameter.default is parameter.empty for parameter in parameters) > 1


def _written(answer: object, source: Record, output: Format) -> Record:
    made = answer if isinstance(answer, Output) else Output(answer)
    record = source.with_value(None if made.value is None else output.write(made.value, made.to))
    if not isinstance(made.key, EllipsisType):
        record = record.with_key(made.key)
    # A reader would take the id of the input's schema for that of the output's.
    headers = source.headers if isinstance(made.headers, EllipsisType) else made.headers
    if made.headers is not ... or any(name == _SCHEMA_ID_HEADER for name, _ in headers):
        record = record.with_headers([header for header in headers if header[0] != _SCHEMA_ID_HEADER])
    return record if made.to is None else record.to(made.to)


class _Json(Format):
    def read(self, record: Record) -> Any:
        return record.json()

    def write(self, value: Any, topic: str | None) -> bytes:  # noqa: ARG002 - needs no subject
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError as error:
            raise Reject(OUTPUT_NOT_JSON, f"the output can't be written as JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class _Registered(Format):
    """A format of a Schema Registry; it holds only values because it is sent to executors."""

    settings: SchemaSettings
    output: str | None

    def read(self, record: Record) -> Any:
        if record.value is None:
            raise Reject(NO_VALUE, "the record has no value (a tombstone)")
        return _codec(self.settings).read(record)

    def write(self, value: Any, topic: str | None) -> bytes:
        named = topic or self.output
        if named is None:
            raise TypeError(
                f"formats.{self.settings.kind} has to know the output topic, whose subject in the registry holds the "
                "schema: give it output=..."
            )
        written: bytes = _codec(self.settings).write(value, named)
        return written


def json() -> Format:
    """JSON without a schema, as the types that `orjson` reads and writes."""
    return _Json()


def avro(
    *,
    registry: Registry,
    output: str | None = None,
    schema: Schema = None,
    reader_schema: Schema = None,
    register: bool = True,
) -> Format:
    """
    Avro, as dicts.

    Values are read with the schema whose id they carry, resolved to ``reader_schema`` if it is given. They are written
    with ``schema`` (None: the subject's latest one) of the subject `<output>-value`. The schema is registered if the
    registry does not have it, unless ``register`` is False.
    """
    return _registered("avro", registry, output, schema=schema, reader_schema=reader_schema, register=register)


def json_schema(
    *,
    registry: Registry,
    output: str | None = None,
    schema: Schema = None,
    reader_schema: Schema = None,
    register: bool = True,
) -> Format:
    """JSON as dicts, validated against its schema on reading and writing; otherwise like `avro`."""
    return _registered("json_schema", registry, output, schema=schema, reader_schema=reader_schema, register=register)


def protobuf(
    message: type,
    *,
    registry: Registry,
    output: str | None = None,
    output_message: type | None = None,
    register: bool = True,
) -> Format:
    """Protobuf, as objects of ``message``, a class generated by `protoc`; ``output_message``: the class for writing."""
    return _registered(
        "protobuf", registry, output, message=message, output_message=output_message or message, register=register
    )


def _registered(kind: str, registry: Registry, output: str | None, **schemas: Any) -> Format:
    try:
        from brew.kafka.schema_registry import SchemaSettings  # noqa: PLC0415 - its libraries are an extra
    except ImportError as error:
        raise UsageError(
            f"formats.{kind} needs packages that are not installed ({error.name}); pip install 'brew[schema-registry]'"
        ) from error
    client = {"url": registry} if isinstance(registry, str) else dict(registry)
    if not client.get("url"):
        raise UsageError(
            f"formats.{kind} has no registry: its url is {client.get('url')!r}; give it an address, as http://host:8081"
        )
    texts: dict[str, Any] = {
        name: schema.read_text() if isinstance(schema, Path) else schema for name, schema in schemas.items()
    }
    return _Registered(SchemaSettings(kind, tuple(sorted(client.items())), **texts), output)


def _codec(settings: SchemaSettings) -> Any:
    from brew.kafka.schema_registry import codec  # noqa: PLC0415 - as above

    return codec(settings)
