"""Avro, JSON Schema and Protobuf against a real Schema Registry (Apicurio), and a run that reads and writes Avro."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from harness.pages import ROOT
from harness.pipeline import READERS, Stage
from harness.servers import Broker, Names

from brew import Record, Reject, formats
from brew.errors import TransformFailed
from brew.records import ERROR_REASON
from sandbox.store import Registry

CLICK: dict[str, Any] = {"type": "record", "name": "Click", "fields": [{"name": "url", "type": "string"}]}
JSON_CLICK = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Click",
    "type": "object",
    "properties": {"url": {"type": "string"}},
    "required": ["url"],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """The sandbox's, started by its name, which fetches missing jars; `down` without names finds it."""
    directory = tmp_path_factory.mktemp("registry")

    def stores(*words: str) -> str:
        command = [sys.executable, "-m", "sandbox", "stores", *words, "--dir", str(directory)]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=150)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    stores("up", "registry")
    try:
        assert list(json.loads(stores("status", "--json"))) == ["registry"]
        registry = Registry.open(directory)
        assert registry is not None
        yield registry
    finally:
        assert "registry is down" in stores("down", "--wipe")
    assert not (directory / "registry").exists()


def message_class() -> Any:
    """What `protoc` would make of a Click with one string."""
    file = descriptor_pb2.FileDescriptorProto(name="click.proto", package="test", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
    file.message_type.add(name="Click").field.add(name="url", number=1, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Click"))


def rejected(format_: formats.Format, value: bytes) -> str:
    with pytest.raises(Reject) as caught:
        format_.read(Record("t", 0, 0, None, value))
    return caught.value.reason


@pytest.mark.parametrize("kind", ["avro", "json_schema", "protobuf"])
def test_values_go_there_and_back_and_what_does_not_fit_is_rejected(registry: Registry, kind: str) -> None:
    """The registry gives the schema's id; a second process that knows nothing finds the schema by it."""
    good: Any = {"url": "http://a.example/b"}
    bad: Any = {"url": 1}
    if kind == "protobuf":
        click = message_class()
        good, bad = click(url=good["url"]), good
        writing_format = formats.protobuf(click, registry=registry.url, output="clicks")
        reading_format = formats.protobuf(click, registry={"url": registry.url, "timeout": 5})
    else:
        schema = json.dumps(CLICK if kind == "avro" else JSON_CLICK)
        make = getattr(formats, kind)
        writing_format = make(registry=registry.url, output=kind, schema=schema)
        reading_format = make(registry={"url": registry.url, "timeout": 5})
    value = writing_format.write(good, None)
    assert value[0] == 0
    assert reading_format.read(Record("t", 0, 0, None, value)) == good
    assert rejected(reading_format, value[:-2]) == "schema-mismatch"
    assert rejected(reading_format, b"{}") == rejected(reading_format, b"\0\x80" + value[2:]) == "no-schema-id"
    assert rejected(reading_format, b"\0\0\0\3\xe7" + value[5:]) == "unknown-schema"
    with pytest.raises(Reject, match="output-schema-mismatch"):
        writing_format.write(bad, None)


def test_a_reader_sees_its_own_schema_and_the_latest_one_is_written(registry: Registry) -> None:
    """Evolution: a field with a default appears in records that were written before there was one."""
    fields = [*CLICK["fields"], {"name": "campaign", "type": "string", "default": "none"}]
    newer = json.dumps({**CLICK, "fields": fields})
    old = formats.avro(registry=registry.url, output="evolving", schema=json.dumps(CLICK))
    before = old.write({"url": "a"}, None)
    reading_format = formats.avro(registry=registry.url, reader_schema=newer)
    assert reading_format.read(Record("t", 0, 0, None, before)) == {"url": "a", "campaign": "none"}
    formats.avro(registry=registry.url, output="evolving", schema=newer).write({"url": "b", "campaign": "c"}, None)
    latest = formats.avro(registry={"url": registry.url, "timeout": 5}, output="evolving")
    after = latest.write({"url": "b", "campaign": "spring"}, None)
    assert reading_format.read(Record("t", 0, 0, None, after)) == {"url": "b", "campaign": "spring"}


def test_a_schema_that_may_not_be_registered_ends_the_run(registry: Registry) -> None:
    locked = formats.avro(registry=registry.url, output="locked", schema=json.dumps(CLICK), register=False)
    with pytest.raises(TransformFailed, match="refuses the schema of locked-value"):
        locked.write({"url": "a"}, None)


SCRIPT = """
import json
from brew import formats

CLICK = json.dumps({click!r})
ENRICHED = json.dumps({{"type": "record", "name": "Enriched", "fields": [
    {{"name": "url", "type": "string"}}, {{"name": "length", "type": "int"}}]}})

@formats.using(
    input=formats.avro(registry={url!r}),
    output=formats.avro(registry={url!r}, output={output!r}, schema=ENRICHED),
)
def measured(click):
    if click["url"] == "wrong":
        return {{"url": click["url"], "length": "five"}}
    return {{**click, "length": len(click["url"])}}
"""


@pytest.mark.parametrize("reader", READERS)
def test_a_run_reads_avro_writes_avro_and_rejects_what_does_not_fit(
    registry: Registry, broker: Broker, names: Names, tmp_path: Path, reader: str
) -> None:
    """With and without Spark: the decorated function travels to its workers; `verify` calls it again."""
    stage = Stage(broker, names, reader=reader)
    stage.create(1)
    clicks = formats.avro(registry=registry.url, output=names.input, schema=json.dumps(CLICK))
    values = [clicks.write({"url": url}, None) for url in ("a", "bb", "wrong", "dddd")]
    values = [*values[:3], values[3][:-1], b"plain"]
    stage.produce(names.input, *((0, b"k", value, []) for value in values))
    script = tmp_path / "avro_clicks.py"
    script.write_text(SCRIPT.format(click=CLICK, url=registry.url, output=names.output))
    function = ["--transform", f"{script}:measured"]
    stage.drain(*function)
    enriched = formats.avro(registry=registry.url)
    outputs = [enriched.read(Record("t", 0, 0, None, record.value())) for record in stage.records(names.output)]
    assert outputs == [{"url": "a", "length": 1}, {"url": "bb", "length": 2}]
    reasons = [dict(record.headers() or ())[ERROR_REASON] for record in stage.records(names.dead_letter)]
    assert reasons == [b"output-schema-mismatch", b"schema-mismatch", b"no-schema-id"]
    code, report = stage._proof("verify", *stage.options(), *function, "--settled")
    assert (code, report["counts"]["dead_letters"]) == (0, 3), report


def test_without_registry_a_run_gives_up_after_its_patience_and_nothing_is_lost(
    registry: Registry, broker: Broker, names: Names, tmp_path: Path
) -> None:
    """No record becomes a dead letter, and `verify` claims nothing; once it answers again, a run goes on there."""
    stage = Stage(broker, names)
    stage.create(1)
    clicks = formats.avro(registry=registry.url, output=names.input, schema=json.dumps(CLICK))
    stage.produce(names.input, (0, b"k", clicks.write({"url": "a"}, None), []))
    script_without_registry, script_with_registry = tmp_path / "registry_away.py", tmp_path / "registry_there.py"
    script_without_registry.write_text(SCRIPT.format(click=CLICK, url="http://127.0.0.1:9", output=names.output))
    script_with_registry.write_text(SCRIPT.format(click=CLICK, url=registry.url, output=names.output))
    options = ["--master", "none", "--on-error", "dead-letter", "--transform"]
    refused = stage.pipeline(*options, f"{script_without_registry}:measured", "--patience", "1")
    assert refused.code == 3, refused.text
    assert "http://127.0.0.1:9 does not answer" in refused.err
    assert stage.records(names.dead_letter) == []
    assert stage.pipeline(*options, f"{script_with_registry}:measured").code == 0
    assert len(stage.records(names.output)) == 1
    code, report = stage._proof(
        "verify", *stage.options(), "--settled", "--transform", f"{script_without_registry}:measured"
    )
    assert (code, "does not answer" in str(report)) == (3, True), report
