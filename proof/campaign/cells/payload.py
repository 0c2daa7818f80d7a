"""Records that nobody should have written: garbage, giants, bottomless JSON."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import producer
from brew.offsets import SourcePosition
from brew.records import ERROR_REASON, Reason
from proof import log_summary
from proof.campaign.cell import CellTable
from proof.campaign.payloads import MAX_BYTES, MAX_DEPTH, payloads
from proof.campaign.programs import digest, parsed, watching
from proof.campaign.stage import CellEnvironment, StalledError
from proof.oracle import beyond

CELLS = CellTable(moment="always", limit_s=600.0)

_LARGEST = 16 * 1024 * 1024
_FLUSH_S = 120.0
_ASK_S = 60.0
_RSS_MIB = 600
_MOST_SHOWN = 5
# Two thirds of the payloads are none that could be read; most of these are parsed, and found out by that.
_PARSED_OF = 2


def poison(count: int, stage: CellEnvironment) -> None:
    """Garbage goes in; each record comes out, enriched or as a dead letter, and memory stays in bounds."""
    for name in stage.names.topics():
        cluster_admin.set_config(stage.cluster.admin, name, {topics.MAX_MESSAGE_BYTES: str(2 * _LARGEST)}, Deadline(30))
    client = producer(stage.cluster.connection, None, timeout_s=_FLUSH_S, message_max_bytes=_LARGEST)
    for number, (key, value) in enumerate(payloads(count, stage.seed)):
        _produce(client, stage.names.input, value, key, number % stage.cell.partitions)
    if client.flush(_FLUSH_S):
        raise Refused("the payloads could not all be written; look at the brokers' logs")
    stage.fire("payloads", count)
    watched = stage.folder / "parsed"
    limits = ("--max-record-bytes", str(MAX_BYTES), "--max-record-depth", str(MAX_DEPTH), "--max-rejected", "1")
    with watching(stage.programs, watched):
        writer = stage.writer("--patience", "60", *limits)
    peak = 0
    while writer.code() is None:
        peak = max(peak, _peak_kib(writer.pid))
        stage.deadline.check("draining the payloads")
        stage.pause(0.05)
    if writer.code() != 0:  # the drain behind this would heal what it left
        raise StalledError(f"the writer ended with {writer.code()} over the payloads: {writer.last_words()}")
    stage.notes.append(f"the writer's memory peaked at {peak // 1024} MiB")
    if peak > _RSS_MIB * 1024:
        stage.doubts.append(f"the writer took {peak // 1024} MiB, {_RSS_MIB} MiB are expected at most")
    _compare(stage, parsed(watched))


for _name, _count, _marks in (("F35-poison", 100_000, ""), ("F35-poison-short", 5_000, "prove")):
    _needed = {"payloads": _count, "parsed": _count // _PARSED_OF, **dict.fromkeys(Reason, 1)}
    CELLS(_name, f"{_count:,} fuzzed payloads, records of 1 and 10 MB", "writer", _count, needed=_needed, marks=_marks)(
        poison
    )


def _compare(stage: CellEnvironment, seen: set[bytes]) -> None:
    """The group has committed the end; limits were held, by their names, and before anything was parsed."""
    connection, name, deadline = stage.cluster.connection, stage.names.input, Deadline(_ASK_S)
    group = log_summary.group_position(connection, stage.names.group, name, deadline)
    for position in group.partitions:
        if position.committed != position.offsets.end:
            stuck = f"partition {position.partition} is committed to {position.committed}"
            stage.findings.append({"name": "stuck-offset", "evidence": f"{stuck}, its end is {position.offsets.end}"})
    reasons = {}
    for _, _, _, _, headers, _ in stage.records(stage.names.dead_letter):
        if (source := SourcePosition.of(headers)) is not None:
            reason = dict(headers).get(ERROR_REASON) or b""
            reasons[source.partition, source.offset] = reason.decode("utf-8", "replace")
    wrong: list[Mapping[str, Any]] = []
    for partition, offset, _, value, _, _ in stage.records(name):
        if value is None:
            continue
        stage.fire("parsed", int(digest(value) in seen))
        if broken := limit_broken(value, reasons.get((partition, offset)), was_parsed=digest(value) in seen):
            place = {"topic": name, "partition": partition, "offset": offset}
            wrong.append({"name": broken[0], **place, "evidence": broken[1]})
    stage.findings += wrong[:_MOST_SHOWN]
    for kind, number in Counter(reasons.values()).items():
        stage.fire(kind, number)


def limit_broken(value: bytes, rejected: str | None, *, was_parsed: bool) -> tuple[str, str] | None:
    """
    What became of a payload that it should not have, by the limits alone: a name and the evidence, None if nothing.

    ``rejected`` is the reason on its dead letter, None without one.
    """
    wanted = beyond(value, MAX_BYTES, MAX_DEPTH)
    held = {Reason.TOO_LARGE, Reason.TOO_DEEP}
    if rejected != wanted and (wanted is not None or rejected in held):
        became = "delivered" if rejected is None else f"rejected as {rejected}"
        return "wrong-limit", f"{became}, but it is {wanted or 'within the limits'}: {value[:40]!r}"
    if wanted is not None and was_parsed:
        return "parsed-over-limit", f"{wanted}, and parsed all the same: {value[:40]!r}"
    return None


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
