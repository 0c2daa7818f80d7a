"""Raw batches to runs, runs to columns, moments, and a journal's steps."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xray_logs import T0, batch, crashed_and_healed, marker, strip

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.errors import UsageError
from brew.journal import Entry, Phase, Step
from brew.offsets import LogOffsets, SourcePosition
from operations import labels
from operations.xray import timeline
from operations.xray.command import Window, window_of
from operations.xray.model import Column, Kind, RunBuilder, Strip, Writers, binned, columns
from operations.xray.timeline import effective_commits, read

_MOVES = st.lists(
    st.tuples(st.sampled_from(["write", "plain", "commit", "abort", "gap"]), st.integers(0, 3), st.integers(1, 9)),
    min_size=1,
    max_size=60,
)


def history(moves: list[tuple[str, int, int]]) -> tuple[list[RawBatch], list[Kind | None]]:
    """Batches of up to four producers, and what lies at each offset; None where nothing does."""
    batches: list[RawBatch] = []
    kinds: list[Kind | None] = []
    held: dict[int, list[int]] = {}
    for what, pid, size in moves:
        here = len(kinds)
        if what == "gap":
            kinds += [None] * size
        elif what in {"write", "plain"}:
            batches.append(batch(here, size, pid, tx=what == "write", at=here))
            kinds += [Kind.OPEN if what == "write" else Kind.PLAIN] * size
            if what == "write":
                held.setdefault(pid, []).extend(range(here, here + size))
        else:
            batches.append(marker(here, pid, what, at=here))
            for at in held.pop(pid, []):
                kinds[at] = Kind.COMMITTED if what == "commit" else Kind.ABORTED
            kinds.append(Kind.COMMIT_MARKER if what == "commit" else Kind.ABORT_MARKER)
    return batches, kinds


def folded(batches: list[RawBatch], start: int, until: int, grain: int = 1) -> Strip:
    fold = RunBuilder(start, until, grain)
    for one in batches:
        fold.add(one)
    return Strip("t", 0, LogOffsets(0, until, until), start, until, fold.finish())


def shown(found: list[Column]) -> Counter[Kind]:
    return sum((one.offsets for one in found), Counter())


@settings(max_examples=60, deadline=None)
@given(_MOVES, st.integers(1, 30), st.integers(1, 40), st.data())
def test_counts_in_are_counts_shown(
    moves: list[tuple[str, int, int]], grain: int, most: int, data: st.DataObject
) -> None:
    """Whatever the history and the window: each offset has its fate in one run, and no bin loses or doubles one."""
    batches, kinds = history(moves)
    start = data.draw(st.integers(0, len(kinds)))
    until = data.draw(st.integers(start, len(kinds)))
    found = folded(batches, start, until, grain)
    told: list[Kind | None] = [None] * (until - start)
    for run in found.runs:
        for at in range(run.start, run.end):
            assert told[at - start] is None
            told[at - start] = run.kind
    assert told == kinds[start:until]
    assert found.counts() == {kind: told.count(kind) for kind in Kind}
    assert found.gaps() == told.count(None)
    for drawn in (columns(found, most), binned(found, most)):
        assert shown(drawn) == Counter(kind for kind in told if kind is not None)
        assert len(drawn) <= max(most, 1)
    if found.runs:
        found.runs.pop()
        assert shown(binned(found, most)) != Counter(kind for kind in told if kind is not None)


@settings(max_examples=60, deadline=None)
@given(_MOVES)
def test_bounds_at_every_moment_are_those_that_readers_had(moves: list[tuple[str, int, int]]) -> None:
    """LSO: the first offset whose transaction had not ended; high watermark: behind what was written."""
    batches, kinds = history(moves)
    found = folded(batches, 0, len(kinds))
    timeline.assign_write_times(found.runs, len(kinds) + 1)
    line = timeline.timeline([found], {}, [], "in", len(kinds) + 1, most=10_000)
    for moment, bounds in zip(line.moments[:-1], line.bounds[0], strict=False):
        there = [run for run in found.runs if run.written_ms <= moment]
        end = max((run.end for run in there), default=0)
        held = [run.start for run in there if run.kind is Kind.OPEN or (run.ended_ms or 0) > moment]
        assert (bounds.end, bounds.stable) == (end, min([end, *held]))


def test_a_fences_marker_ends_what_an_older_epoch_wrote() -> None:
    """It carries the next epoch; the run names it and the writer's own epoch."""
    found = strip("out", [batch(0, 8, 7, 4), marker(8, 7, "abort", 5, at=T0)])
    aborted, end = found.runs
    assert (aborted.kind, aborted.epoch, aborted.marker) == (Kind.ABORTED, 4, 8)
    assert (end.kind, end.epoch, end.offsets) == (Kind.ABORT_MARKER, 5, 1)


def test_a_bin_tells_its_writer_where_it_is_one_and_how_many_where_they_are_more() -> None:
    """Epochs and sources from the first to the last; a marker has written nothing."""
    given = [batch(0, 8, 7, 4), marker(8, 7, "abort", 5, at=T0), batch(9, 8, 7, 6), marker(17, 7, "commit", 6, at=T0)]
    (alone,) = binned(strip("out", given), 1)
    source = (SourcePosition("in", 0, 0), SourcePosition("in", 0, 7))
    assert alone.writers == Writers(1, 7, (4, 6), 1, source)
    assert labels.of_column(alone).endswith("; producer 7 epochs 4 to 6; source in[0] 0 to 7")
    aborted, _, _ = binned(strip("out", given[:3]), 3)[:3]
    assert aborted.writers.epochs == (4, 4)
    (marked,) = [one for one in binned(strip("out", given[:2]), 9) if Kind.ABORT_MARKER in one.offsets]
    assert marked.writers == Writers(1, 7, (5, 5))

    found = strip("out", [*given, batch(18, 2, 8), batch(20, 1, -1, tx=False)])
    found.runs[0].first = found.runs[0].last = SourcePosition("in", 1, 3)
    (mixed,) = binned(found, 1)
    assert mixed.writers == Writers(2, None, None, 2, None)
    assert labels.of_column(mixed).endswith("; 2 producers; from 2 source partitions")
    (plain,) = binned(strip("in", [batch(0, 1, -1, tx=False), batch(1, 1, -1, tx=False)]), 1)
    assert labels.of_column(plain) == "offsets 0 to 1: 2 plain; no producer id"


def test_a_transactions_batches_are_one_run_and_another_producers_between_them_cut_it() -> None:
    """The run's source goes from its first batch's first record to its last batch's last one."""
    found = strip("out", [batch(0, 2, 1), batch(2, 2, 1), batch(4, 1, 2), batch(5, 1, 1), marker(6, 1, "commit")])
    assert [(one.start, one.end, one.kind, one.records) for one in found.runs[:3]] == [
        (0, 4, Kind.COMMITTED, 4),
        (4, 5, Kind.OPEN, 1),
        (5, 6, Kind.COMMITTED, 1),
    ]
    first = found.runs[0]
    assert first.first is not None
    assert first.last is not None
    assert (first.first.offset, first.last.offset) == (0, 7)


def test_times_follow_the_log_not_the_producers_clock() -> None:
    """A copy carries its source's time: written after the marker before it and before its own."""
    out = crashed_and_healed().strips[1]
    assert [run.written_ms - T0 for run in out.runs] == [-50, 20, 20, 40, 40]


def test_a_journals_flush_says_when_a_run_was_written() -> None:
    """The last attempt over its source that began before it ended."""
    out = crashed_and_healed().strips[1]
    lines = [
        *(entry(Step.FENCE, at, Phase.INTENT) for at in (1,)),
        entry(Step.FLUSH, 4),
        entry(Step.OUTCOME, 5, status="crashed"),
        entry(Step.FENCE, 22, Phase.INTENT),
        entry(Step.FLUSH, 30),
    ]
    timeline.assign_write_times(out.runs, T0 + 100, read(lines)[0])
    assert [run.written_ms - T0 for run in out.runs] == [4, 20, 30, 40, 40]


def entry(step: Step, at: int, phase: Phase = Phase.DONE, pid: int = 1, **more: str) -> Entry:
    return Entry(
        (T0 + at) / 1000, "w", pid, step, phase, {"topic": "in", "partition": 0, "start": 0, "until": 8, **more}
    )


def test_a_journal_tells_steps_and_who_fell_silent() -> None:
    """A crash on purpose says so; a kill leaves an attempt without an outcome."""
    lines = [
        entry(Step.FENCE, 1, Phase.INTENT),
        entry(Step.FENCE, 2),
        entry(Step.LOCATE, 3),
        entry(Step.COMMIT, 4, Phase.FAILED),
        entry(Step.OUTCOME, 5, status="crashed"),
        entry(Step.FENCE, 6, Phase.INTENT, pid=2),
        entry(Step.BEGIN, 7, pid=2),
    ]
    attempts, told = read(lines)
    assert [(one.pid, one.began_ms - T0, one.flushed) for one in attempts] == [(1, 1, False), (2, 6, False)]
    assert [(one.at_ms - T0, one.name, one.crash) for one in told] == [
        (2, "fence", False),
        (4, "commit failed", False),
        (5, "crashed", True),
        (7, "begin", False),
        (7, "no sign of life after begin (done)", True),
    ]


def test_many_times_are_thinned_and_crashes_stay() -> None:
    """At most so many moments, the last of them what the brokers said; a crash is always one."""
    runs = [piece for at in range(500) for piece in (batch(2 * at, 1, 1, at=T0 + 4 * at),)]
    found = strip("out", [*runs, marker(1000, 1, "commit", at=T0 + 9_000)])
    for at, run in enumerate(found.runs[:-1]):
        run.written_ms = T0 + 4 * at
    told = read([entry(Step.FENCE, 7, Phase.INTENT)])[1]
    line = timeline.timeline([found], {}, told, "in", T0 + 10_000, most=50)
    assert len(line.moments) <= 51
    assert {T0 + 7, T0 + 10_000} <= set(line.moments)
    assert line.bounds[0][-1] == timeline.Bounds(1001, 1001, None)


def test_a_groups_commit_counts_from_its_marker_on() -> None:
    """An aborted one never did; one outside of transactions does at once."""
    log = [
        OffsetBatch(batch(0, 1, 7, at=1), (OffsetCommit(0, 5),)),
        OffsetBatch(marker(1, 7, "abort", at=2)),
        OffsetBatch(batch(2, 1, 7, at=3), (OffsetCommit(0, 5), OffsetCommit(1, 6))),
        OffsetBatch(marker(3, 8, "commit", at=4)),
        OffsetBatch(marker(4, 7, "commit", at=9)),
        OffsetBatch(batch(5, 1, -1, tx=False, at=10), (OffsetCommit(0, 2), OffsetCommit(1, None))),
    ]
    assert effective_commits(log) == {0: [(9, 5), (10, 2)], 1: [(9, 6)]}


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window(), (10, 100)),
        (Window(last=30), (70, 100)),
        (Window(20, 40), (20, 40)),
        (Window(0, 40), (10, 40)),
        (Window(500), (100, 100)),
        (Window(None, 5), (5, 5)),
        (Window(None, 40, 10), (30, 40)),
    ],
)
def test_a_window_is_cut_to_the_log(window: Window, expected: tuple[int, int]) -> None:
    """Of a log from 10 to 100."""
    assert window.of(LogOffsets(10, 100, 100)) == expected


def test_windows_that_make_no_sense_are_refused() -> None:
    """With both values and what to do."""
    with pytest.raises(UsageError, match="--from is 9 and --to is 9: nothing lies between"):
        window_of(9, 9, None)
    with pytest.raises(UsageError, match="--last is 3 and --from is 1: choose one"):
        window_of(1, None, 3)
