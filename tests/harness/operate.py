"""Commands that inspect a cluster, run inside this process; and clients that give them something to show."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from brew.deadline import Deadline
from brew.kafka.clients import Producer, producer
from brew.kafka.transaction import fenced
from brew.outcome import Status
from harness.pipeline import Stage
from harness.programs import call_program
from pipeline.__main__ import cli


def command_line(stage: Stage, command: str) -> list[str]:
    options = stage.options()
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    names = {
        "lag": ("--bootstrap", "--input", "--group"),
        "doctor": ("--bootstrap",),
        "dlq list": ("--bootstrap", "--dead-letter"),
        "dlq inspect": ("--bootstrap", "--dead-letter", "--input"),
        "dlq replay": ("--bootstrap", "--input", "--dead-letter", "--group"),
        "xray": ("--bootstrap", "--input", "--output", "--group"),
    }.get(command, tuple(pairs))
    return [*command.split(), *(word for name in names for word in (name, pairs[name]))]


def _run(stage: Stage, command: str, *more: str) -> tuple[int, str, str]:
    return call_program(cli, "pipeline", *command_line(stage, command), *more)


def pipeline(stage: Stage, command: str, *more: str) -> tuple[int, str]:
    """Run one command inside this process; return its exit code and output."""
    code, stdout, stderr = _run(stage, command, *more)
    return code, stdout + stderr


def json_of(stage: Stage, command: str, *more: str, code: int = 0) -> Any:
    """Run one command that must end with ``code``; return its JSON document."""
    exit_code, stdout, stderr = _run(stage, command, *more, "--json")
    assert exit_code == code, stdout + stderr
    return json.loads(stdout or stderr)


def crash(stage: Stage) -> None:
    """Leave a run's transactions open, as if it had died; their producers live on in this process."""
    assert stage.drain_locally("--crash-prob", "1.0").statuses() == {Status.CRASHED}


@contextmanager
def upstream(stage: Stage, name: str) -> Iterator[Producer]:
    """Yield an unrelated transactional producer; an open transaction is aborted at the end."""
    writer = producer(stage.connection, stage.names.topic(name), timeout_s=60, message_max_bytes=1_000_000)
    fenced(writer, Deadline(20))
    try:
        yield writer
    finally:
        with contextlib.suppress(Exception):
            writer.abort_transaction(10)


def write(stage: Stage, writer: Producer, count: int, partition: int = 0) -> None:
    writer.begin_transaction()
    for _ in range(count):
        writer.produce(stage.names.input, b'{"customer_id":"c-1"}', b"gold-1", partition)
    assert writer.flush(20) == 0
