"""Made-up partitions for the tests of the X-ray."""

from __future__ import annotations

from collections.abc import Iterable

from brew.cluster import RawBatch
from brew.offsets import LogOffsets, SourcePosition
from operations.xray import timeline
from operations.xray.model import RunBuilder, Strip
from operations.xray.timeline import TimelineEvent, Xray

T0 = 1_780_000_000_000


def batch(
    base: int, records: int, pid: int, epoch: int = 0, *, at: int = 0, tx: bool = True, sequence: int = 0
) -> RawBatch:
    last = base + records - 1
    return RawBatch(base, last, records, pid, epoch, sequence, tx, control=False, marker=None, max_timestamp=at)


def marker(base: int, pid: int, what: str, epoch: int = 0, *, at: int = 0) -> RawBatch:
    return RawBatch(base, base, 1, pid, epoch, -1, transactional=True, control=True, marker=what, max_timestamp=at)


def strip(topic: str, batches: Iterable[RawBatch], *, stable: int | None = None, group: int | None = None) -> Strip:
    """Return partition 0 with these batches, each transaction's records from `in` partition 0 offsets 0 to 7."""
    given = list(batches)
    end = given[-1].last_offset + 1
    fold = RunBuilder(0, end)
    for one in given:
        fold.add(one, lambda: (SourcePosition("in", 0, 0), SourcePosition("in", 0, 7)))
    runs = fold.finish()
    timeline.assign_write_times(runs, T0 + 100)
    return Strip(topic, 0, LogOffsets(0, end if stable is None else stable, end), 0, end, runs, group)


def crashed_and_healed() -> Xray:
    """Return eight orders whose first attempt is aborted by the second one's fence, and two that are open."""
    orders = strip("in", [batch(0, 10, 3, at=T0 - 50, tx=False)], group=8)
    copies = strip(
        "out",
        [
            batch(0, 8, 7, at=T0 - 50),
            marker(8, 7, "abort", 1, at=T0 + 20),
            batch(9, 8, 7, 2, at=T0 - 50),
            marker(17, 7, "commit", 2, at=T0 + 40),
            batch(18, 2, 7, 3, at=T0 - 50),
        ],
        stable=18,
    )
    events = (TimelineEvent(T0 + 5, 1, "crashed", 0, 0, 8, crash=True),)
    line = timeline.timeline([orders, copies], {0: [(T0 + 40, 8)]}, events, "in", T0 + 100)
    return Xray((orders, copies), line, {"in": "input", "out": "output"}, "g", "k:9092", T0 + 100, events)
