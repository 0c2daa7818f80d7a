"""Decorators of formats without Kafka; schemas lie in the mock registry of Confluent's client."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import json
import pickle
import socket
import sys
import threading
import time
from typing import Any

import pytest
from harness.http_service import http_pages

from brew import Record, Reject, formats
from brew.errors import RegistryUnreachable, TransformFailed, UsageError
from brew.offsets import Headers
from brew.record import apply
from brew.settings import OnError
from brew.transformation import FunctionTransformation

MOCK = "mock://unit"
CLICK = json.dumps({"type": "record", "name": "Click", "fields": [{"name": "url", "type": "string"}]})
AVRO = formats.avro(registry=MOCK, output="clicks.enriched", schema=CLICK)


def record(value: bytes | None, headers: Headers = ()) -> Record:
    return Record("clicks", 0, 7, b"k", value, headers, 1)


def test_a_function_takes_and_returns_objects_and_keeps_key_headers_and_time() -> None:
    upper = formats.json()(lambda click: {"url": click["url"].upper()})
    (out,) = upper(record(b'{"url":"a"}', (("h", b"1"),)))
    assert out == Record("clicks", 0, 7, b"k", b'{"url":"A"}', (("h", b"1"),), 1)


def test_answers_are_none_lists_generators_outputs_and_records() -> None:
    @formats.json()
    def answer(value: Any, source: Record) -> Any:
        return {
            0: None,
            1: [1, 2],
            2: (number for number in (3,)),
            3: formats.Output({"a": 1}, to="other", key=b"new", headers=(("x", None),)),
            4: source.to("raw"),
            5: formats.Output(None),
        }[value]

    def answers(number: int) -> list[tuple[bytes | None, str | None]]:
        return [(one.value, one.destination) for one in answer(record(b"%d" % number))]

    assert answers(0) == []
    assert answers(1) == [(b"1", None), (b"2", None)]
    assert answers(2) == [(b"3", None)]
    assert answer(record(b"3")) == [Record("clicks", 0, 7, b"new", b'{"a":1}', (("x", None),), 1, "other")]
    assert answers(4) == [(b"4", "raw")]
    assert answers(5) == [(None, None)]


def test_a_decorated_function_looks_like_one_of_a_record() -> None:
    """A run refuses functions that can't be called with one argument."""

    @formats.json()
    def both(value: Any, source: Record) -> Any:  # noqa: ARG001
        """Its text."""
        return value

    assert len(inspect.signature(both).parameters) == 1
    assert (both.__name__, both.__doc__) == ("both", "Its text.")


def test_one_format_in_and_another_one_out() -> None:
    as_json = formats.using(input=AVRO, output=formats.json())(lambda click: click)
    (out,) = as_json(record(AVRO.write({"url": "a"}, None)))
    assert out.value == b'{"url":"a"}'


def test_what_does_not_fit_is_rejected_with_a_reason() -> None:
    @AVRO
    def same(click: dict[str, Any]) -> Any:
        return {"link": 1} if click["url"] == "bad" else click

    good = AVRO.write({"url": "abc"}, None)
    cases = {
        "no-value": (same, None),
        "no-schema-id": (same, b'{"url":"a"}'),
        "unknown-schema": (same, b"\0\0\0\3\xe7abc"),
        "schema-mismatch": (same, good[:-1]),
        "output-schema-mismatch": (same, AVRO.write({"url": "bad"}, None)),
        "not-json": (formats.json()(lambda value: value), b"{"),
        "output-not-json": (formats.json()(lambda value: {value}), b"1"),
    }
    for reason, (function, value) in cases.items():
        answer = apply(function, record(value))
        assert isinstance(answer, Reject), reason
        assert answer.reason == reason
    assert apply(same, record(good)) == (record(good),)


def test_the_id_of_the_inputs_schema_does_not_travel_with_the_output() -> None:
    """A reader of the output would look for its schema there first."""
    same = formats.json()(lambda value: value)
    (out,) = same(record(b"1", (("a", b"1"), ("__value_schema_id", b"\1" + bytes(16)))))
    assert out.headers == (("a", b"1"),)


def test_a_registry_that_does_not_answer_is_no_records_fault() -> None:
    """Also where exceptions become dead letters: else an hour without registry would be an hour of them."""
    away = formats.avro(registry={"url": "http://127.0.0.1:9", "max.retries": 0}, output="o", schema=CLICK)
    transformation = FunctionTransformation("f", frozenset({"o"}), 1000, OnError.DEAD_LETTER)
    written = formats.using(input=formats.json(), output=away)(lambda value: value)
    with pytest.raises(RegistryUnreachable, match=r"127\.0\.0\.1:9 does not answer"):
        transformation._answer(written, record(b"{}"))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"<h1>no backend</h1>"),
        (404, b'{"message":"no route"}'),
        (404, b'{"error_code":404,"message":"no such path"}'),
        (200, b"<h1>back soon</h1>"),
        (400, b"<h1>bad request</h1>"),
        # A wrong password, a missing right, a rate limit, a registry that fails: with a code of its own.
        *((status, b'{"error_code":%d01,"message":"no"}' % status) for status in (401, 403, 429, 500)),
    ],
)
def test_a_wrong_address_or_an_answer_of_a_gateway_is_no_records_fault(status: int, body: bytes) -> None:
    """A registry answers in JSON, with an error code of its own; a server in front of it, or another path, does not."""
    with http_pages(status, body) as url:
        behind = formats.avro(registry={"url": url, "max.retries": 0}, output="o", schema=CLICK)
        with pytest.raises(RegistryUnreachable, match="does not answer"):
            behind.read(record(AVRO.write({"url": "a"}, None)))
        with pytest.raises(RegistryUnreachable, match="does not answer"):
            behind.write({"url": "a"}, None)
    for known, code in ((404, 40403), (422, 42201)):
        unknown = b'{"error_code":%d,"message":"Schema not found"}' % code
        with http_pages(known, unknown) as url, pytest.raises(Reject, match="unknown-schema"):
            formats.avro(registry=url).read(record(AVRO.write({"url": "a"}, None)))
    with http_pages(status, body) as url, pytest.raises(Reject, match="no-schema-id"):
        formats.avro(registry=url).read(record(b"\0\x80\0\0\0abc"))  # no registry gives an id above 31 bits


def test_a_registry_that_answers_byte_by_byte_is_waited_for_no_longer_than_the_timeout() -> None:
    """The client's time-out began anew with each byte, and with each of its own repetitions."""
    ended = threading.Event()

    def trickle(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n")
            for _ in range(40):
                connection.sendall(b" ")
                if ended.wait(0.1):
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle, args=[server], daemon=True)
        thread.start()
        registry = {"url": f"http://127.0.0.1:{server.getsockname()[1]}", "timeout": 0.5, "max.retries": 0}
        slow, began = formats.avro(registry=registry, output="o", schema=CLICK), time.monotonic()
        with pytest.raises(RegistryUnreachable, match=r"no complete answer within 0\.5 s"):
            slow.write({"url": "a"}, None)
        assert time.monotonic() - began < 3
        ended.set()
        thread.join()


def test_a_token_that_can_not_be_had_is_no_records_fault() -> None:
    login = {"client.id": "a", "client.secret": "b", "scope": "c", "issuer.endpoint.url": "http://127.0.0.1:9/token"}
    names = {"credentials.source": "OAUTHBEARER", "logical.cluster": "d", "identity.pool.id": "e", **login}
    settings = {f"bearer.auth.{name}": value for name, value in names.items()}
    away = formats.avro(registry={"url": "http://127.0.0.1:9", "max.retries": 0, **settings})
    with pytest.raises(RegistryUnreachable, match="OAuthTokenError"):
        away.read(record(AVRO.write({"url": "a"}, None)))


def test_an_async_function_is_refused() -> None:
    """Its results would be coroutines, which do not fit any format: each record would become a dead letter."""

    async def later(value: Any) -> Any:
        return value

    async def several(value: Any) -> Any:
        yield value

    for function in (later, several):
        with pytest.raises(UsageError, match=rf"{function.__name__} is an async function; write it with def"):
            formats.json()(function)


def test_a_password_in_the_registrys_address_is_in_no_message() -> None:
    """A rejection's message is a header of the dead letter."""
    with http_pages(404, b'{"error_code":40403,"message":"Schema not found"}') as url:
        address = url.replace("://", "://user:secret@")
        for client in ({"url": address}, {"url": address.replace("127.0.0.1", "127.0.0.9"), "max.retries": 0}):
            registered = formats.avro(registry=client)
            with pytest.raises((Reject, RegistryUnreachable), match=r"http://127\.0") as failed:
                registered.read(record(b"\0\0\0\0\1abc"))
            assert "secret" not in str(failed.value)
    with pytest.raises(UsageError, match="url is None") as refused:
        formats.avro(registry={"basic.auth.user.info": "user:secret"})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, "refuses the schema of o-value"),
        ({"schema": "click.avsc"}, "avro can't use its settings: JSONDecodeError"),
        ({"registry": "registry:8081"}, "avro can't use its settings: ValueError: Invalid url"),
        ({"registry": {"url": "http://r", "ssl.ca.location": "/no"}}, "avro can't use its settings: FileNotFoundError"),
    ],
)
def test_a_wrong_setting_ends_the_run_where_exceptions_become_dead_letters(settings: dict[str, Any], why: str) -> None:
    """Else all records would be dead letters."""
    transformation = FunctionTransformation("f", frozenset({"o"}), 1000, OnError.DEAD_LETTER)
    wrong = formats.avro(**{"registry": MOCK, "output": "o", **settings})
    written = formats.using(input=formats.json(), output=wrong)(lambda value: value)
    with pytest.raises(TransformFailed, match=f"transform-failed: .*{why}"):
        transformation._answer(written, record(b"{}"))


def test_a_setting_or_package_that_is_missing_ends_the_run_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"url is ''"):
        formats.avro(registry="")
    with pytest.raises(TransformFailed, match="refuses the schema of nothing-value"):
        formats.avro(registry=MOCK, output="nothing").write({}, None)  # a setting is wrong, and no record
    with pytest.raises(TypeError, match=r"give it output=\.\.\."):
        formats.avro(registry=MOCK, schema=CLICK).write({"url": "a"}, None)
    monkeypatch.delitem(sys.modules, "brew.kafka.schema_registry")
    real = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name.startswith("confluent_kafka.schema_registry"):
            raise ModuleNotFoundError("gone", name="fastavro")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"fastavro.*pip install 'brew\[schema-registry\]'"):
        formats.avro(registry=MOCK)


def test_a_format_travels_to_executors() -> None:
    """It holds values only; each process makes a codec of its own."""
    value = AVRO.write({"url": "a"}, None)
    copy = pickle.loads(pickle.dumps(AVRO))
    assert copy.read(record(value)) == {"url": "a"}
