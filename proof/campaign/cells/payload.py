"""Records that nobody should have written: garbage, giants, bottomless JSON."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from pathlib import Path

from proof.campaign.cell import Cell
from proof.campaign.stage import Stage
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka import operate, topics
from protocol.kafka.clients import producer

_MIB = 1024 * 1024
_LIMIT = 16 * _MIB
_FLUSH_S = 120.0
_RSS_MIB = 600

Payload = tuple[bytes | None, bytes | None]


def payloads(count: int, seed: int) -> Iterator[Payload]:
    """So many keys and values, most of them beyond repair, every kind among the first thirty."""
    dice = random.Random(seed)  # noqa: S311 - dice, no secret
    for number in range(count):
        yield f"gold-{number}".encode(), _value(number % len(_KINDS), dice)
    yield None, b'{"customer_id":"c-1"}'
    yield None, None
    yield b"", b""
    yield b"\xff\xfe-key", b'{"customer_id":"c-2","note":"' + b"x" * _MIB + b'"}'
    yield b"gold-big", b'{"customer_id":"c-3","note":"' + b"y" * (10 * _MIB) + b'"}'


def _value(kind: int, dice: random.Random) -> bytes | None:
    return _KINDS[kind](dice)


_KINDS = (
    lambda dice: dice.randbytes(dice.randrange(200)),
    lambda _dice: None,
    lambda _dice: b"",
    lambda _dice: b"[" * 1000 + b"]" * 1000,
    lambda _dice: b'{"a":' * 1000 + b"1" + b"}" * 1000,
    lambda _dice: b'{"customer_id":"\xff\xfe"}',
    lambda _dice: b'{"customer_id":"c","total_cents":1e999999}',
    lambda dice: b'{"customer_id":"c","n":' + b"9" * dice.randrange(1, 400) + b"}",
    lambda _dice: b'{"customer_id":"a","customer_id":"b"}',
    lambda _dice: b'{"customer_id":null}',
    lambda _dice: b'{"customer_id":7}',
    lambda _dice: b'"text"',
    lambda _dice: b"NaN",
    lambda _dice: b'{"customer_id":"c","loyalty_tier":"gold","loyalty_discount":99}',
    lambda _dice: '{"customer_id":"\u2028\U0001f9a7"}'.encode(),
    lambda _dice: b'{"customer_id":"\\ud800"}',
    lambda _dice: b'\xef\xbb\xbf{"customer_id":"c"}',
    lambda _dice: b'{"customer_id":"c"}{"customer_id":"d"}',
    lambda dice: b'{"customer_id":"c","x":' + dice.randbytes(12).hex().encode() + b"}",
    lambda _dice: b' \r\n{"customer_id" : "c" }\t',
    lambda _dice: b"[" * 101 + b'"' + b'\\"' * 2000,  # a string without an end: quadratic for a careless scanner
    lambda _dice: b'{"customer_id":"c","n":' + b"9" * 30 + b',"x":"' + b'\\"' * 2000,
)


def poison(count: int, stage: Stage) -> None:
    """Garbage goes in; each record comes out, enriched or as a dead letter, and memory stays in bounds."""
    for name in stage.names.topics():
        operate.set_config(stage.cluster.admin, name, {topics.MAX_MESSAGE_BYTES: str(2 * _LIMIT)}, Deadline(30))
    client = producer(stage.cluster.connection, None, timeout_s=_FLUSH_S, message_max_bytes=_LIMIT)
    for number, (key, value) in enumerate(payloads(count, stage.seed)):
        _produce(client, stage.names.input, value, key, number % stage.cell.partitions)
    if client.flush(_FLUSH_S):
        raise Refused("the payloads could not all be written; look at the brokers' logs")
    stage.fire("payloads", count)
    writer = stage.writer("--patience", "60")
    peak = 0
    while writer.code() is None:
        peak = max(peak, _peak_kib(writer.pid))
        stage.deadline.check("draining the payloads")
        stage.pause(0.05)
    stage.notes.append(f"the writer's memory peaked at {peak // 1024} MiB")
    if peak > _RSS_MIB * 1024:
        stage.doubts.append(f"the writer took {peak // 1024} MiB, {_RSS_MIB} MiB are expected at most")


def _produce(client: object, topic: str, value: bytes | None, key: bytes | None, partition: int) -> None:
    while True:
        try:
            client.produce(topic, value, key, partition)  # type: ignore[attr-defined]
        except BufferError:
            client.poll(0.1)  # type: ignore[attr-defined]
            continue
        client.poll(0)  # type: ignore[attr-defined]
        return


def _peak_kib(pid: int) -> int:
    """The most memory that the process has held so far; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0


def _cell(name: str, count: int, *marks: str) -> Cell:
    return Cell(
        name=name,
        row="F35",
        fault=f"{count:,} fuzz payloads, records of 1 and 10 MB",
        target="writer",
        moment="always",
        play=functools.partial(poison, count),
        needed={"payloads": count},
        limit_s=600.0,
        marks=frozenset(marks),
    )


CELLS = (_cell("F35-poison", 100_000), _cell("F35-poison-short", 5_000, "prove"))
