"""Logs and journals spoiled after the fact, each with the name that the checker has to give it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brew.cluster import OffsetBatch, OffsetCommit
from brew.journal import Entry, Run, Step
from brew.offsets import LogOffsets, SourcePosition
from harness.histories import OUT, History, World
from harness.reader_lines import read_line
from proof.findings import Name

Aftermath = Callable[[World, History], None]


def roll_back_an_acknowledged_range(world: World, made: History) -> None:
    """A whole transaction is gone from all logs, and the journal has its commit as done."""
    said = [e for e in made.entries if e.step is Step.COMMIT and e.fields["partition"] == 0]
    made.entries.append(said[-1]._replace(fields={**said[-1].fields, "start": world.logs[0].end, "until": 10**6}))


def show_an_aborted_record(_world: World, made: History) -> None:
    topic, row = made.__dict__["hidden"][0]
    made.visible[topic] = sorted([*made.visible[topic], row], key=lambda one: one[:2])


def read_an_aborted_record(_world: World, made: History) -> None:
    topic, row = made.__dict__["hidden"][-1]
    made.entries.append(read_line(21, topic, row.partition, [(row.offset, 0, 1)]))


def _reading(made: History, least: int) -> int:
    """Some line of a reader with that many records in a run."""
    return next(
        n for n, e in enumerate(made.entries)
        if e.step is Step.READ and any(run[3] >= least for run in e.fields.get("runs", []))
    )  # fmt: skip


def _reread(made: History, at: int, runs: list[Run]) -> None:
    entry: Entry = made.entries[at]
    made.entries[at] = entry._replace(fields={**entry.fields, "runs": runs})


def skip_in_a_poll(_world: World, made: History) -> None:
    at = _reading(made, 1)
    runs = [Run(*run) for run in made.entries[at].fields["runs"]]
    rest = [Run(o + 1, p, s + 1, n - 1) for o, p, s, n in runs[1:2] if n > 1]
    _reread(made, at, [runs[0], *rest, *runs[2:]])


def go_back_in_a_poll(_world: World, made: History) -> None:
    at = _reading(made, 1)
    runs = made.entries[at].fields["runs"]
    _reread(made, at, [*runs, runs[0]])


def read_something_else(_world: World, made: History) -> None:
    at = _reading(made, 1)
    run, *rest = (Run(*run) for run in made.entries[at].fields["runs"])
    _reread(made, at, [run._replace(source_offset=run.source_offset + 1000), *rest])


def read_a_marker(_world: World, made: History) -> None:
    place, marker = next((p, b) for p, some in made.batches.items() for b in some if b.control)
    made.entries.append(read_line(21, place[0], place[1], [(marker.base_offset, 0, 1)]))


def end_too_early(_world: World, made: History) -> None:
    last = max(n for n, e in enumerate(made.entries) if e.pid == 99 and "runs" in e.fields)
    del made.entries[last]


def never_look_at_a_partition(_world: World, made: History) -> None:
    made.entries = [e for e in made.entries if e.pid != 99 or e.fields.get("partition") != 0]


def stand_behind(_world: World, made: History) -> None:
    source = SourcePosition.of(made.visible[OUT][-1].headers)
    assert source is not None
    made.facts.committed[source.partition] = source.offset


def stand_before_the_end(world: World, made: History) -> None:
    made.facts.committed[0] = world.logs[0].end + 1


def name_an_older_offset(_world: World, made: History) -> None:
    """The coordinator came back with less than its log shows."""
    made.facts.committed[0] = (made.facts.committed[0] or 1) - 1


def apply_a_late_offset_commit(_world: World, made: History) -> None:
    """A commit of an earlier transaction of the same producer reaches the log within the last one, as its second."""
    at = max(n for n, one in enumerate(made.offsets) if one.commits and one.commits[0].partition == 0)
    first = next(one for one in made.offsets if one.commits and one.commits[0].partition == 0)
    both = (*made.offsets[at].commits, OffsetCommit(0, first.commits[0].until))
    made.offsets[at] = OffsetBatch(made.offsets[at].raw, both)


def hold_back_the_input(world: World, made: History) -> None:
    log = world.logs[0]
    made.facts.logs[0] = LogOffsets(log.first, log.last_stable, log.end + 1)


def stall_for_ever(_world: World, made: History) -> None:
    made.facts = replace(made.facts, healed_ms=(10**12,))
    made.bound_s = 5.0


def come_too_late(_world: World, made: History) -> None:
    made.facts = replace(made.facts, healed_ms=(900_000,))
    made.bound_s = 0.5


def fire_nothing(_world: World, made: History) -> None:
    made.needed = {"kills": 10}
    made.fired = {"kills": 3}


def demand_more_aborts(_world: World, made: History) -> None:
    made.needed = {"aborted_records": 10**6}


def leak(_world: World, made: History) -> None:
    made.files = {"log.txt": b"well, the-canary sang"}


AFTERMATHS: list[tuple[Aftermath, Name]] = [
    (roll_back_an_acknowledged_range, Name.LOST_COMMIT),
    (show_an_aborted_record, Name.ABORTED_READ),
    (read_an_aborted_record, Name.ABORTED_READ),
    (skip_in_a_poll, Name.POLL_SKIP),
    (go_back_in_a_poll, Name.NONMONOTONIC_POLL),
    (read_something_else, Name.INCONSISTENT),
    (read_a_marker, Name.INCONSISTENT),
    (end_too_early, Name.UNSEEN),
    (never_look_at_a_partition, Name.UNSEEN),
    (stand_behind, Name.OFFSET_BEHIND),
    (stand_before_the_end, Name.OFFSET_AHEAD),
    (name_an_older_offset, Name.OFFSET_BEHIND),
    (apply_a_late_offset_commit, Name.OFFSET_REGRESSION),
    (hold_back_the_input, Name.HANGING),
    (stall_for_ever, Name.STALL),
    (come_too_late, Name.STALL),
    (fire_nothing, Name.SILENT_FAULT),
    (demand_more_aborts, Name.SILENT_FAULT),
    (leak, Name.SECRET),
]
