"""Made-up sources for the tests of the live view."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brew.cluster import CoordinatorTransaction, OpenTransaction
from brew.observability.status import (
    Answer,
    LastTransaction,
    PartitionState,
    PartitionStatus,
    State,
    Status,
    Topics,
    Totals,
)
from brew.offsets import Committed, LogOffsets, SourcePosition
from harness.xray_logs import T0, batch, marker
from operations.partition_state import PartitionSnapshot, Remaining
from operations.ui.build import PollResults, ViewHistory, build_view
from operations.ui.model import InputSnapshot, Names, OutputTail, PollResult, View
from operations.xray.model import RunBuilder, Strip

NAMES = Names("g", "in", "out", "k:9092")
TAIL = 100
EVERY_S, PATIENCE_S = 1.0, 5.0


def snapshot(partition: int, position: int, stable: int, end: int | None = None, **more: Any) -> PartitionSnapshot:
    log = LogOffsets(0, stable, stable if end is None else end)
    return PartitionSnapshot(partition, log, Committed(position, ""), Remaining(max(0, stable - position)), **more)


def open_transaction(partition: int, name: str = "billing-7") -> tuple[OpenTransaction, ...]:
    return (OpenTransaction(partition, 3, 0, 10, name, 34.0),)


def own(partition: int, state: str = "Ongoing", epoch: int = 4) -> CoordinatorTransaction:
    return CoordinatorTransaction(f"g:in:{partition}", state, 100 + partition, epoch, 60_000, T0 - 400, frozenset())


def flow(*snapshots: PartitionSnapshot, at_s: float = 100.0, **more: Any) -> PollResult[InputSnapshot]:
    return PollResult("flow", EVERY_S, PATIENCE_S, InputSnapshot(T0, snapshots), at_s, at_s - 50, **more)


def strip(partition: int = 0) -> Strip:
    """Return twenty records aborted by a fence, twenty committed, five open."""
    fold = RunBuilder(0, 47)
    source = (SourcePosition("in", partition, 30), SourcePosition("in", partition, 49))
    for one in (
        batch(0, 20, 100 + partition, 3),
        marker(20, 100 + partition, "abort", 4, at=T0 - 900),
        batch(21, 20, 100 + partition, 4),
        marker(41, 100 + partition, "commit", 4, at=T0 - 100),
        batch(42, 5, 100 + partition, 5),
    ):
        fold.add(one, lambda: source)
    return Strip("out", partition, LogOffsets(0, 42, 47), 0, 47, fold.finish())


def tails(*strips: Strip, at_s: float = 100.0, **more: Any) -> PollResult[OutputTail]:
    value = OutputTail("out", {one.partition: one for one in strips}, missing=not strips)
    return PollResult("tail", 2 * EVERY_S, PATIENCE_S, value, at_s, at_s - 50, **more)


def status(*partitions: PartitionStatus, group: str = "g") -> Status:
    fine = Answer(ok=True, reason="fine")
    return Status(
        *("pipeline", "1", group, Topics("in"), "k:9092", 7, "h", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"),
        *(State.WORKING, "direct", partitions, Totals(), fine, fine, fine),
    )


def running(partition: int, state: str = "working", **more: Any) -> PartitionStatus:
    last = LastTransaction(f"g:in:{partition}", 100 + partition, 4, 20, 0.25, {"fence": 0.01, "produce": 0.2}, until=50)
    known = {"position": 50, "rate": 812.0, "step": "produce", "last_transaction": last, "progress_age_s": 0.1}
    return PartitionStatus("in", partition, PartitionState(state), "it says so", **(known | more))


def statuses(value: Status, *, name: str = "http://h:3000/status", at_s: float = 100.0) -> PollResult[Status]:
    return PollResult(name, EVERY_S, PATIENCE_S, value, at_s, at_s - 50)


def view_of(answers: PollResults, memory: ViewHistory | None = None, now_s: float = 100.2) -> View:
    return build_view(NAMES, answers, memory or ViewHistory(), now_s, T0, TAIL)


def moving(*, count: int = 8, partitions: int = 1, each: int = 50, **more: Any) -> tuple[PollResults, ViewHistory]:
    """Return several polls, a second apart, of partitions whose position moves; the last one is at 100 s."""
    memory = ViewHistory()
    answers = PollResults(flow(), tails())
    for at in range(count):
        at_s = 100.0 - (count - 1 - at)
        snapshots = (snapshot(p, 1000 + each * at, 5000, own=own(p)) for p in range(partitions))
        answers = PollResults(flow(*snapshots, at_s=at_s), tails(*(strip(p) for p in range(partitions))), **more)
        view_of(answers, memory, at_s)
    return answers, memory


def failed(answer: PollResult[Any], why: str) -> PollResult[Any]:
    return replace(answer, failed=why)
