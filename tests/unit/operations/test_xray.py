"""The X-ray: runs and columns from raw batches, moments, and what its renderers write."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from harness.browser import rendered
from harness.xray_logs import T0, batch, crashed_and_healed, marker, strip
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.cli import exit_code_of
from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.connection import Connection
from brew.errors import Fatal, Refused, UsageError
from brew.journal import Entry, Phase, Step
from brew.names import ExitCode
from brew.offsets import LogOffsets, SinkBatch, SourcePosition
from operations import labels
from operations.xray import command, render
from operations.xray.command import Window, XrayCollector
from operations.xray.model import Column, Kind, RunBuilder, Strip, Writers, binned, columns
from operations.xray.render import document
from operations.xray.timeline import Bounds, Timeline, Xray, assign_write_times, committed_positions, read, timeline
from pipeline.__main__ import cli

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
        end = len(kinds)
        if what == "gap":
            kinds += [None] * size
        elif what in {"write", "plain"}:
            batches.append(batch(end, size, pid, tx=what == "write", at=end))
            kinds += [Kind.OPEN if what == "write" else Kind.PLAIN] * size
            if what == "write":
                held.setdefault(pid, []).extend(range(end, end + size))
        else:
            batches.append(marker(end, pid, what, at=end))
            for offset in held.pop(pid, []):
                kinds[offset] = Kind.COMMITTED if what == "commit" else Kind.ABORTED
            kinds.append(Kind.COMMIT_MARKER if what == "commit" else Kind.ABORT_MARKER)
    return batches, kinds


def folded(batches: list[RawBatch], start: int, until: int, grain: int = 1) -> Strip:
    builder = RunBuilder(start, until, grain)
    for one in batches:
        builder.add(one)
    return Strip("t", 0, LogOffsets(0, until, until), start, until, builder.finish())


def shown(drawn: list[Column]) -> Counter[Kind]:
    return sum((one.offsets for one in drawn), Counter())


@settings(max_examples=60, deadline=None)
@given(_MOVES, st.integers(1, 30), st.integers(1, 40), st.data())
def test_counts_in_are_counts_shown(
    moves: list[tuple[str, int, int]], grain: int, most: int, data: st.DataObject
) -> None:
    batches, kinds = history(moves)
    start = data.draw(st.integers(0, len(kinds)))
    until = data.draw(st.integers(start, len(kinds)))
    folded_strip = folded(batches, start, until, grain)
    at_offset: list[Kind | None] = [None] * (until - start)
    for run in folded_strip.runs:
        for offset in range(run.start, run.end):
            assert at_offset[offset - start] is None
            at_offset[offset - start] = run.kind
    assert at_offset == kinds[start:until]
    assert folded_strip.counts() == {kind: at_offset.count(kind) for kind in Kind}
    assert folded_strip.gaps() == at_offset.count(None)
    for drawn in (columns(folded_strip, most), binned(folded_strip, most)):
        assert shown(drawn) == Counter(kind for kind in at_offset if kind is not None)
        assert len(drawn) <= max(most, 1)
    if folded_strip.runs:
        folded_strip.runs.pop()
        assert shown(binned(folded_strip, most)) != Counter(kind for kind in at_offset if kind is not None)


@settings(max_examples=60, deadline=None)
@given(_MOVES)
def test_bounds_at_every_moment_are_those_that_readers_had(moves: list[tuple[str, int, int]]) -> None:
    """LSO: the first offset whose transaction had not ended; high watermark: behind what was written."""
    batches, kinds = history(moves)
    folded_strip = folded(batches, 0, len(kinds))
    assign_write_times(folded_strip.runs, len(kinds) + 1)
    line = timeline([folded_strip], {}, [], "in", len(kinds) + 1, most=10_000)
    for moment, bounds in zip(line.moments[:-1], line.bounds[0], strict=False):
        written = [run for run in folded_strip.runs if run.written_ms <= moment]
        end = max((run.end for run in written), default=0)
        held = [run.start for run in written if run.kind is Kind.OPEN or (run.ended_ms or 0) > moment]
        assert (bounds.end, bounds.stable) == (end, min([end, *held]))


def test_a_bin_tells_its_writer_where_it_is_one_and_how_many_where_they_are_more() -> None:
    given = [batch(0, 8, 7, 4), marker(8, 7, "abort", 5, at=T0), batch(9, 8, 7, 6), marker(17, 7, "commit", 6, at=T0)]
    (alone,) = binned(strip("out", given), 1)
    source = (SourcePosition("in", 0, 0), SourcePosition("in", 0, 7))
    assert alone.writers == Writers(1, 7, (4, 6), 1, source)
    assert labels.of_column(alone).endswith("; producer 7 epochs 4 to 6; source in[0] 0 to 7")
    aborted, _, _ = binned(strip("out", given[:3]), 3)[:3]
    assert aborted.writers.epochs == (4, 4)
    (marked,) = [one for one in binned(strip("out", given[:2]), 9) if Kind.ABORT_MARKER in one.offsets]
    assert marked.writers == Writers(1, 7, (5, 5))

    several = strip("out", [*given, batch(18, 2, 8), batch(20, 1, -1, tx=False)])
    several.runs[0].first = several.runs[0].last = SourcePosition("in", 1, 3)
    (mixed,) = binned(several, 1)
    assert mixed.writers == Writers(2, None, None, 2, None)
    assert labels.of_column(mixed).endswith("; 2 producers; from 2 source partitions")
    (plain,) = binned(strip("in", [batch(0, 1, -1, tx=False), batch(1, 1, -1, tx=False)]), 1)
    assert labels.of_column(plain) == "offsets 0 to 1: 2 plain; no producer id"


def test_a_transactions_batches_are_one_run_and_another_producers_between_them_cut_it() -> None:
    out = strip("out", [batch(0, 2, 1), batch(2, 2, 1), batch(4, 1, 2), batch(5, 1, 1), marker(6, 1, "commit")])
    runs = [(one.start, one.end, one.kind, one.records) for one in out.runs[:3]]
    assert runs == [(0, 4, "committed", 4), (4, 5, "open", 1), (5, 6, "committed", 1)]
    first = out.runs[0]
    assert (first.first, first.last) == (SourcePosition("in", 0, 0), SourcePosition("in", 0, 7))
    aborted, end = strip("out", [batch(0, 8, 7, 4), marker(8, 7, "abort", 5, at=T0)]).runs
    assert (aborted.kind, aborted.epoch, aborted.marker) == (Kind.ABORTED, 4, 8), "a fence's marker: the next epoch"
    assert (end.kind, end.epoch, end.offsets) == (Kind.ABORT_MARKER, 5, 1)


def test_offsets_that_compaction_emptied_inside_a_batch_hold_nothing() -> None:
    """A compacted batch keeps its first and last offset: 10 records over 1,000 offsets leave 990 empty."""
    compacted = replace(batch(5, 1000, -1, tx=False), records=10)
    assert folded([compacted], 0, 1005).gaps() == 5 + 990


def test_a_sinks_run_tells_its_batch() -> None:
    builder = RunBuilder(0, 5)
    for one in (batch(0, 2, 7), batch(2, 2, 7), marker(4, 7, "commit")):
        builder.add(one, lambda: SinkBatch("revenue", 17))
    (run, _) = builder.finish()
    assert labels.of_run(run).endswith("producer 7 epoch 0; batch 17 of sink revenue; ended by the marker at 4")
    assert render._run(run)["sink"] == {"name": "revenue", "batch": 17}


def test_times_follow_the_log_not_the_producers_clock_and_best_of_all_a_journals_flush() -> None:
    """A copy is written between two markers, or flushed by the last attempt over its source before it ended."""
    out = crashed_and_healed().strips[1]
    assert [run.written_ms - T0 for run in out.runs] == [-50, 20, 20, 40, 40]
    lines = [entry(Step.FENCE, 1, Phase.INTENT), entry(Step.FLUSH, 4), entry(Step.OUTCOME, 5, status="crashed")]
    lines += [entry(Step.FENCE, 22, Phase.INTENT), entry(Step.FLUSH, 30)]
    assign_write_times(out.runs, T0 + 100, read(lines)[0])
    assert [run.written_ms - T0 for run in out.runs] == [4, 20, 30, 40, 40]


def entry(step: Step, ms: int, phase: Phase = Phase.DONE, pid: int = 1, **more: str) -> Entry:
    fields = {"topic": "in", "partition": 0, "start": 0, "until": 8, **more}
    return Entry((T0 + ms) / 1000, "w", pid, step, phase, fields)


def test_a_journal_tells_steps_and_who_fell_silent() -> None:
    """A crash on purpose says so; a kill leaves an attempt without an outcome."""
    lines = [entry(Step.FENCE, 1, Phase.INTENT), entry(Step.FENCE, 2), entry(Step.LOCATE, 3)]
    lines += [entry(Step.COMMIT, 4, Phase.FAILED), entry(Step.OUTCOME, 5, status="crashed")]
    lines += [entry(Step.FENCE, 6, Phase.INTENT, pid=2), entry(Step.BEGIN, 7, pid=2)]
    attempts, events = read(lines)
    assert [(one.pid, one.began_ms - T0, one.flushed) for one in attempts] == [(1, 1, False), (2, 6, False)]
    steps = [(one.at_ms - T0, one.name) for one in events]
    assert steps[:3] == [(2, "fence"), (4, "commit failed"), (5, "crashed")]
    assert steps[3:] == [(7, "begin"), (7, "no entry after begin (done)")]
    assert [one.crash for one in events] == [False, False, True, False, True]


def test_many_times_are_thinned_and_crashes_stay() -> None:
    runs = [batch(2 * number, 1, 1, at=T0 + 4 * number) for number in range(500)]
    out = strip("out", [*runs, marker(1000, 1, "commit", at=T0 + 9_000)])
    for number, run in enumerate(out.runs[:-1]):
        run.written_ms = T0 + 4 * number
    events = read([entry(Step.FENCE, 7, Phase.INTENT)])[1]
    line = timeline([out], {}, events, "in", T0 + 10_000, most=50)
    assert len(line.moments) <= 51
    assert {T0 + 7, T0 + 10_000} <= set(line.moments)
    assert line.bounds[0][-1] == Bounds(1001, 1001, None)


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
    assert committed_positions(log) == {0: [(9, 5), (10, 2)], 1: [(9, 6)]}


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
def test_a_window_is_cut_to_the_log_or_refused(window: Window, expected: tuple[int, int]) -> None:
    """Of a log from 10 to 100."""
    assert window.of(LogOffsets(10, 100, 100)) == expected
    with pytest.raises(UsageError, match="--from is 9 and --to is 9: the range is empty"):
        Window(9, 9)
    with pytest.raises(UsageError, match="--last is 3 and --from is 1: they exclude each other"):
        Window(1, None, 3)


NS = "{http://www.w3.org/2000/svg}"


def drawn(xray: Xray) -> ET.Element:
    return ET.fromstring(render.svg_document(xray))


def kinds(root: ET.Element, strip_name: str) -> list[str]:
    """The classes of the pieces of one strip, from left to right."""
    (group,) = [one for one in root.iter(f"{NS}g") if (one.get("aria-label") or "").startswith(strip_name)]
    return [one.get("class", "").split()[0] for one in group.iter(f"{NS}rect") if one.get("class") != "bed"]


def test_a_strip_shows_each_fate_in_offset_order_and_lines_where_readers_wait() -> None:
    """The last stable offset at the open records' left edge, the high watermark at their right."""
    root = drawn(crashed_and_healed())
    assert kinds(root, "in partition 0") == ["plain", "position"]
    assert kinds(root, "out partition 0") == ["aborted", "abort-marker", "committed", "commit-marker", "open"]
    words = [one.text or "" for one in root.iter(f"{NS}title")]
    title = "offsets 0 to 7: aborted; 8 records; producer 7 epoch 0; source in[0] 0 to 7; ended by the marker at 8"
    assert title in words
    labels = {one.text for one in root.iter(f"{NS}text")}
    assert {"LSO 18", "HW 20", "group 8", "partition 0", "log start 0", *(kind.words for kind in Kind)} <= labels
    transforms = {one.get("id"): one.get("transform", "") for one in root.iter(f"{NS}g")}
    for name, share in (("lso-1", 18 / 20), ("hw-1", 1), ("group-0", 8 / 10)):
        shift = float(transforms[name][len("translate(") : -1])
        assert shift == pytest.approx(render.LEFT + render.PLOT * share, abs=0.1)


def test_what_the_group_has_committed_is_a_strip_between_input_and_output() -> None:
    """A piece for each moment that moved it, at the input's scale; a position that went back and came again, twice."""
    xray = crashed_and_healed()
    orders, copies = xray.strips
    moves = {0: [(T0 + 5, 2), (T0 + 20, 1), (T0 + 40, 8)]}
    line = timeline([orders, copies], moves, xray.events, "in", T0 + 100)
    root = ET.fromstring(render.drawing(replace(xray, line=line), moving=True))
    pieces = {}
    for group in root.iter(f"{NS}g"):
        piece = group.find(f"{NS}rect[@class='position']")
        if piece is not None and (title := group.find(f"{NS}title")) is not None:
            pieces[title.text] = [piece.get(name) for name in ("x", "width", "y", "data-t")]
    left, each, y = render.LEFT, render.PLOT / 10, render.layout(xray).rows[0].top + render.HIGH + 2
    assert pieces == {
        "offsets 0 to 1: committed by g by 20:26:40.005": [f"{left:.1f}", f"{2 * each:.1f}", f"{y:g}", "1 1"],
        "offsets 1 to 7: committed by g by 20:26:40.040": [f"{left + each:.1f}", f"{7 * each:.1f}", f"{y:g}", "3 3"],
    }
    assert render.layout(xray).rows[1].top - y > render.HIGH


def test_more_runs_than_pixels_become_bins_and_one_open_record_is_still_seen() -> None:
    log = [one for n in range(3000) for one in (batch(3 * n, 2, 1), marker(3 * n + 2, 1, "commit", at=T0))]
    out = strip("out", [*log, batch(9000, 1, 2)], stable=9000)
    line = timeline([out], {}, [], "in", T0 + 1)
    xray = Xray((out,), line, {"out": "output"}, "g", "k:1", T0)
    text = render.svg_document(xray)
    assert len(text) < 120_000
    root = ET.fromstring(text)
    pieces = kinds(root, "out partition 0")
    assert pieces.count("open") == 1
    assert len(pieces) < 4 * render.MOST_COLUMNS
    ending = "16 committed, 8 commit marker; producer 1 epoch 0; source in[0] 0 to 7"
    assert [one for one in root.iter(f"{NS}title") if (one.text or "").endswith(ending)]
    first, *_, last = document(xray)["strips"][0]["bins"]
    assert (first["producer_id"], first["epochs"], first["source"]) == (1, (0, 0), ["in/0/0", "in/0/7"])
    assert (last["producers"], last["producer_id"], last["epochs"]) == (1, 2, (0, 0))


def test_the_page_fetches_nothing_and_runs_only_its_own_script() -> None:
    """A group is any string; it ends neither an element nor the script's data."""
    text = render.page(replace(crashed_and_healed(), group="</script><b>", unavailable=("<i>",)))
    assert "<b>" not in text.replace("&lt;b&gt;", "")
    assert text.count("</script>") == 2
    assert "&lt;i&gt;" in text
    assert not re.findall(r"(?:src|href)=", text)
    assert re.findall(r"https?://\S+?\"", text) == ['http://www.w3.org/2000/svg"']
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    for element in ("style", "script"):
        (inner,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy[1]


def test_the_pages_data_tells_the_bounds_of_every_moment_and_the_json_twin_the_runs() -> None:
    text = render.page(crashed_and_healed())
    (inner,) = re.findall(r'type="application/json">(.*?)</script>', text, re.DOTALL)
    data = json.loads(inner)
    index_of = {moment - T0: index for index, moment in enumerate(data["moments"])}
    assert sorted(index_of) == [-50, 5, 20, 40, 100]
    output, orders = data["strips"][1]["bounds"], data["strips"][0]["bounds"]
    assert (output[index_of[5]], output[index_of[40]]) == ([0, 8, None], [18, 20, None])
    assert [orders[index_of[moment]][2] for moment in (20, 40, 100)] == [None, 8, 8]
    assert re.search(r'<tr class="crash" data-ms="\d+" data-told="crashed: input partition 0', text)
    twin = document(crashed_and_healed())
    output = twin["strips"][1]
    assert (output["role"], output["last_stable"], output["high_watermark"]) == ("output", 18, 20)
    counts = {"committed": 8, "aborted": 8, "open": 2, "commit-marker": 1, "abort-marker": 1, "plain": 0}
    assert output["records"] == counts
    assert output["runs"][0]["source"] == ["in/0/0", "in/0/7"]
    assert (output["runs"][0]["producer_id"], output["runs"][0]["epoch"], output["runs"][0]["marker"]) == (7, 0, 8)
    assert twin["strips"][0]["group"] == 8


def test_the_terminals_strip_is_as_wide_as_there_is_room() -> None:
    xray = crashed_and_healed()
    output = xray.strips[1]
    wide = "".join(sign for sign, _ in render.cells(output, 45))
    assert wide == "░" * 16 + "┆" * 2 + "█" * 16 + "│" * 2 + "?" * 4
    narrow = "".join(sign for sign, _ in render.cells(output, 5))
    assert narrow == "░░██?"
    for width in (40, 80, 200):
        rows = [line.plain for line in render.lines(xray, width)]
        assert [len(one) <= width for one in rows if one.startswith(("input", "output"))] == [True, True]
    texts = [line.plain for line in render.lines(xray, 80)]
    assert "            8 committed · 8 aborted · 2 open · log start 0 · LSO 18 · HW 20" in texts
    empty = replace(strip("out", [batch(0, 1, 1)]), runs=[], until=0)
    nothing = Xray((empty,), Timeline((T0,), ((),)), {"out": "out"}, "g", "k:1", T0)
    assert (kinds(drawn(nothing), "out partition 0"), render.cells(empty, 80)) == ([], [])


def test_long_names_that_begin_alike_are_told_apart_on_the_terminal() -> None:
    """The first 11 characters of `brew.orders.v1` and `brew.orders.dlq` are the same."""
    names = ("brew.orders.v1", "brew.orders.dlq", "output")
    strips = tuple(replace(strip(name, [batch(0, 1, 1)]), runs=[]) for name in names)
    taken = Xray(strips, Timeline((T0,), ((),)), {name: name for name in names}, "g", "k:1", T0)
    rows = [line.plain[:12] for line in render.lines(taken, 80)]
    assert rows[1:6:2] == ["….orders.v1 ", "…orders.dlq ", "output      "]


def test_a_range_outside_of_the_log_has_no_offsets() -> None:
    """`--from` above a partition's end was shown as "offsets 1 to 0"."""
    outside = replace(strip("out", [batch(0, 1, 1)]), runs=[], start=1, until=1)
    texts = [line.plain for line in render.lines(Xray((outside,), Timeline((T0,), ((),)), {}, "g", "k:1", T0), 80)]
    assert texts[2].strip() == "of no offsets · log start 0 · LSO 1 · HW 1"
    assert labels.of_strip(outside).startswith("out partition 0, no offsets: nothing; ")


def test_without_a_browser_the_test_of_the_page_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt-get install chromium"):
        rendered(tmp_path / "page.html")


@pytest.mark.parametrize("name", ["missing/x.svg", "file.html/x.html"])
def test_a_file_that_can_not_be_written_is_refused_before_anything_is_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the logs takes minutes. A file that exists is not touched before there is something to write."""
    kept = tmp_path / "file.html"
    kept.write_text("earlier")
    monkeypatch.setattr("operations.options.connected", Mock(side_effect=Refused("it connects")))
    for out, said in ((tmp_path / name, "which can't be written"), (kept, "it connects")):
        assert exit_code_of(cli, "brew", ["xray", "--out", str(out)]) == ExitCode.REFUSED
        assert (said in capsys.readouterr().err, kept.read_text()) == (True, "earlier")
    assert list(tmp_path.iterdir()) == [kept]


def test_a_topic_that_may_not_be_read_is_refused_at_once_and_a_partition_without_a_leader_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading the input took minutes, and only then the output was refused, without a word on which right it lacks."""
    read: list[str] = []

    class Logs:
        def batches(self, topic: str, *_range: int) -> list[tuple[RawBatch, memoryview]]:
            read.append(topic)
            self.check(topic)
            return []

        def visible(self, topic: str, *_range: object) -> tuple[bytes, list[Any]]:
            self.check(topic)
            return b"", []

        def check(self, topic: str) -> None:
            if topic == "out":
                raise Fatal(f"raw batches of {topic}: [Error 29] TopicAuthorizationFailedError: fetch of {topic}[0]")

    known = {name: SimpleNamespace(partitions=2) for name in ("in", "out")}
    monkeypatch.setattr(command, "admin", lambda _connection: None)
    monkeypatch.setattr(command.topics, "describe", lambda *_what: known)
    monkeypatch.setattr(command.cluster_admin, "leaders", lambda *_what: {0: leader, 1: 1})
    monkeypatch.setattr(command, "log_offsets", lambda _, _name, all_, _s: dict.fromkeys(all_, LogOffsets(0, 9, 9)))
    monkeypatch.setattr(command, "committed_by", lambda *_what: {})
    monkeypatch.setattr(command, "raw_logs", lambda *_what: nullcontext(Logs()))
    roles, leader = {"in": "input", "out": "output"}, 1
    collector = XrayCollector(Connection("k:1"), lambda *_what: None, roles, "in", "g", Window(), None, over_time=False)
    with pytest.raises(Refused, match=r"topic out can't be read .*lacks Read on topic out: `kafka-acls --add"):
        collector.take(0)
    assert read == []
    del collector.roles["out"]
    assert len(collector.take(0).strips) == 2
    leader = -1  # nothing was shown of any partition
    taken = collector.take(0)
    assert ([strip.partition for strip in taken.strips], taken.unavailable) == (
        [1],
        ("no leader for in[0]; start a broker that holds them",),
    )


def test_a_log_whose_beginning_is_deleted_while_others_are_read_begins_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs are read one by one for minutes; one that retention shortens meanwhile ended all of them."""
    firsts = iter([0, 4])
    monkeypatch.setattr(command, "admin", lambda _connection: None)
    monkeypatch.setattr(command.topics, "describe", lambda *_what: {"out": SimpleNamespace(partitions=1)})
    monkeypatch.setattr(command.cluster_admin, "leaderless", lambda *_what: [])
    monkeypatch.setattr(command, "log_offsets", lambda *_what: {0: LogOffsets(next(firsts), 9, 9)})

    class Logs:
        def visible(self, *_what: object) -> tuple[bytes, list[Any]]:
            return b"", []

        def batches(self, _topic: str, _partition: int, start: int, _until: int) -> list[tuple[RawBatch, memoryview]]:
            if start < 4:
                raise Fatal("raw batches of out: [Error 1] OffsetOutOfRangeError: fetch of out[0] at offset 0")
            return [(batch(4, 5, tx=False, pid=-1), memoryview(b""))]

    monkeypatch.setattr(command, "raw_logs", lambda *_what: nullcontext(Logs()))
    monkeypatch.setattr(command, "source_positions", lambda _content: None)
    roles = {"out": "output"}
    collector = XrayCollector(Connection("k:1"), lambda *_what: None, roles, "in", "g", Window(), None, over_time=False)
    (found,) = collector.take(0).strips
    assert (found.start, found.until, found.log.first, found.counts()[Kind.PLAIN]) == (4, 9, 4, 5)
    firsts = iter([0, 0])
    with pytest.raises(Fatal, match="OffsetOutOfRange"):
        collector.take(0)
    firsts, collector.window = iter([4]), Window(None, 2)
    (found,) = collector.take(0).strips  # it asked for ever: all that is wanted is gone
    assert (found.start, found.until, found.runs) == (2, 2, [])
