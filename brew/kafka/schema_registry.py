"""
Values in the formats of a Schema Registry: Confluent's serializers, and what their errors mean for a record: it is
invalid (`Reject`), the registry does not answer (`RegistryUnreachable`, the transaction is repeated), or the settings
are wrong (`TransformFailed`, which ends a run).
"""

from __future__ import annotations

import functools
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from brew.errors import RegistryUnreachable, TransformFailed
from brew.record import Record, Reject

AVRO, JSON_SCHEMA, PROTOBUF = "avro", "json_schema", "protobuf"
SCHEMA_ID_HEADER = "__value_schema_id"
"""The header in which a producer may put the schema's id instead of the value's first bytes."""

NO_SCHEMA_ID = "no-schema-id"
UNKNOWN_SCHEMA = "unknown-schema"
SCHEMA_MISMATCH = "schema-mismatch"
OUTPUT_SCHEMA_MISMATCH = "output-schema-mismatch"

_MAGIC, _PREFIX_BYTES, _NEGATIVE = 0, 5, 0x80
_SAYS_NO, _FAILS = 400, 500
_NOT_ABOUT_SCHEMAS = {401, 403, 407, 408, 429}
"""Refusals that concern authentication or the request rate."""
_NOT_FOUND, _NOT_FOUND_CODES = 404, range(40400, 40500)
"""A registry's own codes; a 404 without one is a wrong address, or a gateway in front of a registry that is down."""
_TIMEOUT_S = 10.0
_LONGEST = 500


@dataclass(frozen=True, slots=True)
class SchemaSettings:
    """
    One format with one registry; hashable, since a process keeps one codec for each.

    ``registry``: settings of Confluent's client, as sorted pairs, including ``url``. ``schema``: the schema to write
    with; None: the subject's latest. ``reader_schema``: the schema to read as; None: as written. ``message``,
    ``output_message``: Protobuf classes. ``register``: register a schema that the registry does not have.
    """

    kind: str
    registry: tuple[tuple[str, Any], ...]
    schema: str | None = None
    reader_schema: str | None = None
    message: type | None = None
    output_message: type | None = None
    register: bool = True

    @property
    def url(self) -> str:
        """The address without a password in it: a message about it goes into dead letters."""
        return re.sub("(?<=://)[^/]*@", "", str(dict(self.registry)["url"]))


_making = threading.Lock()


def codec(settings: SchemaSettings) -> Codec:
    """Return the process's codec for ``settings``: schemas are fetched once, and connections shared."""
    with _making:
        return _codec(settings)


@functools.lru_cache(maxsize=64)
def _client(registry: tuple[tuple[str, Any], ...]) -> SchemaRegistryClient:
    settings = {"timeout": _TIMEOUT_S, **dict(registry)}
    client = SchemaRegistryClient.new_client(settings)
    rest = getattr(client, "_rest_client", None)  # a mock has none
    if rest is not None and settings["timeout"] is not None:
        rest.send_request = _within(settings["timeout"], rest.send_request)
    return client


def _within(timeout_s: float, send: Callable[..., Any]) -> Callable[..., Any]:
    """Bound a request with its repetitions; the client's own time-out starts anew with each byte that comes."""

    def bounded(*given: Any, **more: Any) -> Any:
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(send(*given, **more))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                answer.set_exception(error)

        threading.Thread(target=run, name="schema-registry", daemon=True).start()
        wait([answer], timeout_s)
        if not answer.done():
            raise TimeoutError(f"no complete answer within {timeout_s:g} s")
        return answer.result()

    return bounded


class Codec:
    """Reads and writes values; several threads may use it at the same time. Made by `codec`."""

    def __init__(self, settings: SchemaSettings) -> None:
        self._settings = settings
        self._read: Callable[..., Any] | None = None
        self._write: Callable[..., Any] | None = None

    def read(self, record: Record) -> Any:
        """
        Return the record's value: a dict (Avro, JSON Schema) or a message (Protobuf).

        Raises:
            Reject: `no-schema-id`, `unknown-schema` or `schema-mismatch`.
            RegistryUnreachable: the schema can't be fetched now.
            TransformFailed: the settings are wrong.
        """
        value = record.value or b""
        # A registry's ids are positive int32; one that is not is answered like a wrong address.
        framed = len(value) > _PREFIX_BYTES and value[0] == _MAGIC and value[1] < _NEGATIVE
        if not framed and record.header(SCHEMA_ID_HEADER) is None:
            raise Reject(
                NO_SCHEMA_ID, f"the value ({len(value)} bytes) does not begin with a schema's id (0 and a positive int)"
            )
        if self._read is None:
            self._read = self._made(_deserializer)
        context = SerializationContext(record.topic, MessageField.VALUE, list(record.headers))
        try:
            with self._reachable():
                return self._read(value, context)
        except SchemaRegistryError as error:
            raise Reject(UNKNOWN_SCHEMA, f"{self._settings.url} does not know its schema: {error}") from error
        except RegistryUnreachable:
            raise
        # Decoders raise no type of their own on foreign bytes: EOFError, IndexError, UnicodeDecodeError.
        except Exception as error:
            raise Reject(SCHEMA_MISMATCH, f"the value does not fit its schema: {_error_text(error)}") from error

    def write(self, value: object, topic: str) -> bytes:
        """
        Return the bytes of ``value`` as a record of ``topic``, starting with the schema's id.

        Raises:
            Reject: `output-schema-mismatch`.
            RegistryUnreachable: the schema can't be looked up or registered now.
            TransformFailed: the registry has no such schema, or does not accept it, or the settings are wrong.
        """
        if self._write is None:
            self._write = self._made(_serializer)
        try:
            with self._reachable():
                written = self._write(value, SerializationContext(topic, MessageField.VALUE))
        except SchemaRegistryError as error:
            why = f"{self._settings.url} refuses the schema of {topic}-value: {error}"
            raise TransformFailed(f"transform-failed: {why}") from error  # not the record's fault, as below
        except RegistryUnreachable:
            raise
        except Exception as error:
            raise Reject(OUTPUT_SCHEMA_MISMATCH, f"the output does not fit its schema: {_error_text(error)}") from error
        return bytes(written)

    def _made(self, make: Callable[[SchemaSettings, SchemaRegistryClient], Callable[..., Any]]) -> Callable[..., Any]:
        try:
            return make(self._settings, _client(self._settings.registry))
        except Exception as error:  # such as a schema that is no schema, or an address without http://
            why = f"formats.{self._settings.kind} can't use its settings: {_error_text(error)}"
            raise TransformFailed(f"transform-failed: {why}") from error

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Distinguish a failing registry from one that refuses."""
        try:
            yield
        except SchemaRegistryError as error:
            if _about_schemas(error):
                raise
            raise self._unreachable(error) from error
        except Exception as error:
            # The registry's client raised it: no answer, no token to log in with, an answer that is no JSON.
            frames = traceback.walk_tb(error.__traceback__)
            if any(frame.f_globals.get("__name__") == SchemaRegistryClient.__module__ for frame, _ in frames):
                raise self._unreachable(error) from error
            raise

    def _unreachable(self, error: Exception) -> RegistryUnreachable:
        return RegistryUnreachable(
            f"the Schema Registry at {self._settings.url} does not answer: {_error_text(error)}; start it, or correct "
            "its address (a run tries again until --patience ends)"
        )


_codec = functools.lru_cache(maxsize=64)(Codec)


def _deserializer(settings: SchemaSettings, client: SchemaRegistryClient) -> Callable[..., Any]:
    conf = {"subject.name.strategy": topic_subject_name_strategy}
    if settings.kind == AVRO:
        return AvroDeserializer(client, settings.reader_schema, conf=conf)  # type: ignore[no-any-return]
    if settings.kind == JSON_SCHEMA:
        return JSONDeserializer(settings.reader_schema, schema_registry_client=client, conf=conf)  # type: ignore[no-any-return]
    if settings.message is None:
        raise TypeError("formats.protobuf reads no values without a message class; give it one")
    return ProtobufDeserializer(settings.message, conf, client)  # type: ignore[no-any-return]


def _serializer(settings: SchemaSettings, client: SchemaRegistryClient) -> Callable[..., Any]:
    conf: dict[str, Any] = {
        "subject.name.strategy": topic_subject_name_strategy,
        "auto.register.schemas": settings.register,
    }
    if settings.kind == PROTOBUF:
        message = settings.output_message or settings.message
        if message is None:
            raise TypeError("formats.protobuf writes no values without a message class; give it one")
        return ProtobufSerializer(message, client, conf)  # type: ignore[no-any-return]
    if settings.schema is None:
        conf |= {"auto.register.schemas": False, "use.latest.version": True}
    if settings.kind == AVRO:
        return AvroSerializer(client, settings.schema, conf=conf)  # type: ignore[no-any-return]
    return JSONSerializer(settings.schema, client, conf=conf)  # type: ignore[no-any-return]


def _about_schemas(error: SchemaRegistryError) -> bool:
    """Return whether a registry refuses a schema, or does not know it; else asking again may help."""
    status = error.http_status_code
    if status == _NOT_FOUND:
        return error.error_code in _NOT_FOUND_CODES
    has_code = error.error_code not in {None, SchemaRegistryError.UNKNOWN}
    return has_code and _SAYS_NO <= status < _FAILS and status not in _NOT_ABOUT_SCHEMAS


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:_LONGEST]}"
