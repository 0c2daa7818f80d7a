"""What the benchmarks compute: numbers, figures, charts, growth, memory, the checker's sums."""

from __future__ import annotations

import mmap
import resource
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import environment as memory
import psutil
import pyspark
import pytest
from checker import sizes_of, summed
from growth import longest_pause_s, median_ratio
from harness.pages import ROOT
from harness.waiting import await_ends, until
from measure import roles
from micro_batches import committed, fifths
from results import draw, lines, panels, together, write
from runs import Latency, Restart, Results, Run, Spread, delays_ms, load, percentile, ratio, rounds, save
from watch import Throughput, Tree, VisibilitySample, memory_of, throughput

from brew.cli import exit_code_of
from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.journal import Entry, Phase, Step


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([(12.0, 100), (13.0, 250), (14.0, 301)], Throughput(2.0, 4.0, 100.0, 75.0)),
        ([(12.0, 300)], Throughput(2.0, 2.0, 150.0, 150.0)),
        ([], None),
    ],
)
def test_what_was_visible_at_the_first_look_does_not_count_for_the_rate(
    samples: list[tuple[float, int]], expected: Throughput | None
) -> None:
    """100 at 12 s and 300 at 14 s are 200 records in 2 s; what a single look saw has its overall rate, nothing none."""
    assert throughput([VisibilitySample(*sample) for sample in samples], 10.0, 300) == expected


def _run(contender: str, records: int, number: int, rate: float, cpu_s: float = 10.0) -> Run:
    parts = {"driver": 1.0, "jvm": 0.0, "workers": 0.0}
    return Run(contender, records, number, rate, rate, 1.0, 2.0, 3.0, cpu_s, 1.0, 0.0, 90.0, parts, "proven")


def test_ratios_are_the_firsts_over_the_others_round_by_round(tmp_path: Path) -> None:
    """Rounds of 2.0, 2.5 and 8.2 give 2.50 with its range; the JSON twin keeps each run, the picture is drawn."""
    runs = [_run("direct", 1000, n, rate) for n, rate in enumerate((180.0, 250.0, 900.0), 1)]
    runs += [_run("franz", 1000, n, rate) for n, rate in enumerate((90.0, 100.0, 110.0), 1)]
    killed = [Restart("franz", 1000, 1, 200, 50, 4.0, 9.0, 0, "proven")]
    delays = [Latency("direct", n, 1000, 999.0, 20.0, 4.0, 30.0 + n, 90.0, 99.0, 0.2, 300.0, "proven") for n in (1, 2)]
    results = Results("make bench", {"cores": "2"}, {"direct": "ours", "franz": "Go"}, ["direct"], runs, killed, delays)
    assert lines(results, 1000)[0] == ["measure", "direct", "franz", "direct / franz"]
    assert lines(results, 1000)[1][1:] == ["250", "100", "2.50 (2.00-8.18)"]
    write(results, tmp_path / "RESULTS.md")
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| franz | 1,000 | 200 | 50 | 4.00 | 0 | proven |" in text
    assert "| direct | 999 | 32 | 90 | 99 | 4.00 | 0.20 | proven |" in text
    assert load([tmp_path / "results.json"]) == results
    assert (tmp_path / "results.svg").read_text().startswith("<svg")
    assert lines(replace(results, runs=runs[:3]), 1000)[0] == ["measure", "direct"], "alone: no ratio"
    text, weighed = "peak memory (sum of resident sizes, as `ps` counts), MiB", [replace(runs[0], resident_mib=120.4)]
    assert [row[0] for row in lines(results, 1000)].count(text) == 0, "not measured"
    assert [text, "120"] in lines(replace(results, runs=weighed), 1000)


def test_a_resident_page_counts_for_every_process_that_maps_it() -> None:
    mine = psutil.Process()
    assert memory_of([mine, mine])[1] == pytest.approx(2 * mine.memory_info().rss, rel=0.05)


_BURN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
_LOSES_A_CHILD = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {_BURN!r}])"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lets a process adopt orphans")
def test_the_cpu_of_an_orphan_is_counted(tmp_path: Path) -> None:
    with Tree([sys.executable, "-c", _LOSES_A_CHILD], tmp_path) as tree:
        usage = tree.wait(Deadline(20))
    assert usage.orphans_adopted
    assert usage.killed_after_end == 0
    assert usage.cpu_s >= 0.3


def test_killing_a_tree_leaves_none_of_it(tmp_path: Path) -> None:
    script = "import subprocess\nsubprocess.Popen(['sleep', '60'], start_new_session=True).wait()"
    with Tree([sys.executable, "-c", script], tmp_path) as tree:
        until(lambda: len(tree.processes()) == 2, "two processes", 10)
        processes = tree.processes()
        tree.kill()
    assert not [p for p in processes if _lives(p)]


def test_the_standby_is_the_one_that_says_so_whichever_was_started_first(tmp_path: Path) -> None:
    script = "import time\nprint('b stands by, a works')\nprint('b is warm', flush=True)\ntime.sleep(60)"
    standby = Tree([sys.executable, "-c", script], tmp_path / "waiting")
    with standby as waiting, Tree(["sleep", "60"], tmp_path / "active") as active:
        assert roles(active, waiting) == (active, waiting)
        assert roles(waiting, active) == (active, waiting)


def test_a_drain_that_ends_before_the_standby_is_warm_is_refused(tmp_path: Path) -> None:
    """At once and by name; without this check the benchmark waited a minute and blamed the standby."""
    script = "import time\nprint('c stands by, b works', flush=True)\ntime.sleep(60)"
    with Tree([sys.executable, "-c", script], tmp_path / "cold") as cold, Tree(["true"], tmp_path / "ended") as ended:
        until(lambda: not ended.running() and "stands by" in cold.tail(), "the drain's end, and a standby", 10)
        with pytest.raises(Refused, match="ended before there was a warm standby; give more --orders"):
            roles(ended, cold)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_tree_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    """The launcher's input ends, as when the benchmark is killed: the command is killed too."""
    command = [sys.executable, str(ROOT / "benchmarks/measured.py"), str(tmp_path / "usage.json"), "sleep", "60"]
    launcher = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert launcher.stdin is not None
    processes = until(psutil.Process(launcher.pid).children, "the command", 10)
    launcher.stdin.close()
    launcher.wait(10)
    await_ends([p.pid for p in processes], Deadline(10))  # a kill is not yet a death
    assert not [p for p in processes if _lives(p)]


def test_a_failed_command_is_refused_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such topic')"]
    with Tree(command, tmp_path) as tree, pytest.raises(Refused, match=r"ended with 1.*\n.*no such topic"):
        tree.wait(Deadline(20))


_ENDLESS = """
import signal, sys
if {polite}:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
print("up", flush=True)
signal.alarm(60)
signal.pause()
"""


@pytest.mark.parametrize(
    ("polite", "code", "fine"), [(True, 0, True), (True, 143, True), (False, 0, True), (True, 1, False)]
)
def test_a_command_that_is_told_to_stop_may_say_so(tmp_path: Path, polite: bool, code: int, fine: bool) -> None:
    """0, 143 and the signal itself are the same answer; anything else is a failure."""
    with Tree([sys.executable, "-c", _ENDLESS.format(polite=polite, code=code)], tmp_path) as tree:
        until(lambda: "up" in tree.tail(), "the command", 20)
        tree.terminate()
        if fine:
            assert tree.wait(Deadline(20), stopped=True).wall_s < 20
        else:
            with pytest.raises(Refused, match="ended with 1"):
                tree.wait(Deadline(20), stopped=True)


@pytest.mark.parametrize(
    ("repeat", "paired", "planned"),
    [
        (3, False, [(1, ["a", "b", "c"]), (2, ["c", "b", "a"]), (3, ["a", "b", "c"])]),
        (2, True, [(1, ["a", "b"]), (2, ["a", "c"]), (3, ["b", "a"]), (4, ["c", "a"])]),
    ],
)
def test_everybody_is_first_as_often_as_last(repeat: int, paired: bool, planned: list[tuple[int, list[str]]]) -> None:
    """The order turns round with each repetition; in pairs, the first name has rounds of two with each other one."""
    assert rounds(["a", "b", "c"], repeat, paired=paired) == planned


def test_a_ratio_is_taken_round_by_round() -> None:
    """A machine that was half as fast in round 2 halves both; rounds of one alone, and a peer's 0, don't count."""
    spread = ratio({1: 200.0, 2: 100.0, 3: 330.0, 9: 5.0, 10: 1.0}, {1: 100.0, 2: 50.0, 3: 110.0, 8: 7.0, 10: 0.0})
    assert spread == Spread(2.0, 2.0, 3.0, 3)
    assert spread.text(".2f") == "2.00 (2.00-3.00)"
    assert ratio({1: 1.0}, {2: 1.0}) is None
    assert Spread.of([1.5]) == (one := Spread(1.5, 1.5, 1.5, 1))
    assert one.text(".1f") == "1.5", "a range of one value would look like a measured one"


def test_the_start_falls_out_of_the_price_of_one_more_record() -> None:
    runs = [_run("direct", 1_000_000, 1, 9.0, cpu_s=8.0), _run("direct", 4_000_000, 2, 9.0, cpu_s=23.0)]
    assert replace(RESULTS, runs=runs).cpu_us("direct") == pytest.approx(5.0)
    assert replace(RESULTS, runs=runs[:1]).cpu_us("direct") is None


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """Nearest rank over 1 to 100, in any order; of nothing it is refused, and so is a share that none has."""
    numbers = [float(n) for n in range(100, 0, -1)]
    assert [percentile(numbers, share) for share in (0.5, 0.99, 1.0, 0.001)] == [50.0, 99.0, 100.0, 1.0]
    for values, share in (([], 0.5), ([1.0], 0.0), ([1.0], 1.1)):
        with pytest.raises(ValueError, match="a percentile needs"):
            percentile(values, share)


def test_delays_leave_the_warm_up_out_and_nothing_else() -> None:
    """What was sent before the moment does not count; what was never received is an error, not a short list."""
    sent = {b"a": 1.0, b"b": 2.0, b"c": 3.0}
    assert delays_ms(sent, {b"a": 9.0, b"b": 2.5, b"c": 3.25, b"waiting": 0.5}, since=2.0) == [500.0, 250.0]
    with pytest.raises(ValueError, match="1 of 3"):
        delays_ms(sent, {b"a": 9.0, b"b": 2.5}, since=2.0)


_SVG = "{http://www.w3.org/2000/svg}"
RESULTS = Results(
    "run.py",
    {"cores": "2"},
    {"direct": "ours", "a<b&c": "a peer"},
    ["direct"],
    [
        *(_run("direct", 1000, number, rate) for number, rate in enumerate((300.0, 400.0, 350.0), 1)),
        _run("a<b&c", 1000, 1, 700.0),
        _run("direct", 3000, 1, 500.0, cpu_s=30.0),
    ],
    [Restart("direct", 1000, 1, 5, 5, 3.5, 9.0, 0, "proven")],
    [Latency("direct", 1, 1000, 999.0, 20.0, 4.0, 33.0, 90.0, 99.0, 0.2, 300.0, "proven")],
)


def test_each_measure_has_a_panel_and_the_best_stands_first() -> None:
    """
    The larger backlog comes first; the price of a record needs two backlogs, so only one contender has it.

    What was not measured has no panel: an empty frame would look like a zero.
    """
    shown = {panel.title: [bar.name for bar in panel.bars] for panel in panels(RESULTS)}
    rates = {
        "3,000 orders, tuned broker: records/s": ["direct"],
        "1,000 orders, tuned broker: records/s": ["a<b&c", "direct"],
        "CPU per record, µs": ["direct"],
    }
    others = ("Latency at 1,000 records/s, ms", "Start to first commit, s", "Restart after kill -9, s")
    assert shown == rates | {title: ["direct"] for title in others}
    only_rates = panels(replace(RESULTS, restarts=[], latencies=[]))
    assert [panel.title for panel in only_rates] == list(rates)
    assert ET.fromstring(draw(replace(RESULTS, runs=[], restarts=[], latencies=[]))).findall(f"{_SVG}rect") == []


def test_brokers_are_compared_with_their_like_only() -> None:
    """A run on a broker that has just started is in no row and no panel of the others."""
    young = [replace(run, broker="default-young", records_per_s=1.0) for run in RESULTS.runs]
    both = replace(RESULTS, runs=[*RESULTS.runs, *young], restarts=[], latencies=[])
    apart = both.by_broker()
    assert [one.runs[0].broker for one in apart] == ["tuned", "default-young"]
    assert lines(apart[0], 1000) == lines(RESULTS, 1000)
    assert [panel.title for panel in panels(both)][:4:2] == [
        "3,000 orders, tuned broker: records/s",
        "3,000 orders, default-young broker: records/s",
    ]


def test_bars_are_to_scale_lines_span_the_rounds_and_nothing_leaves_the_picture() -> None:
    """350 beside 700 is half as long; its line goes from 300 to 400; a single round has none; ours are marked."""
    svg = ET.fromstring(draw(replace(RESULTS, runs=RESULTS.runs[:4], restarts=[], latencies=[])))
    peer, mine = svg.findall(f"{_SVG}rect")
    assert float(mine.attrib["width"]) == pytest.approx(float(peer.attrib["width"]) / 2, abs=0.1)
    assert (peer.attrib["class"], mine.attrib["class"]) == ("bar", "bar ours")
    (line,) = svg.findall(f"{_SVG}line")
    unit = float(mine.attrib["width"]) / 350
    span = [float(line.attrib[name]) - float(mine.attrib["x"]) for name in ("x1", "x2")]
    assert span == pytest.approx([300 * unit, 400 * unit], abs=0.2)
    assert "a<b&c" in [text.text for text in svg.iter(f"{_SVG}text")]
    svg = ET.fromstring(draw(RESULTS))
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    for shape in svg.iter():
        for name, limit in {"x": width, "x2": width, "y": height, "y1": height}.items():
            assert 0 <= float(shape.attrib.get(name, 0)) <= limit


def test_a_page_is_put_together_from_several_files_with_rounds_of_their_own(tmp_path: Path) -> None:
    """Rounds of two files are no pair; a file comes back as it was written, and the twins stand beside the page."""
    one, two, three, page = (tmp_path / name for name in ("one.json", "two.json", "three.json", "PAGE.md"))
    first = replace(RESULTS, command="first command")
    save(first, one)
    save(replace(RESULTS, command="second command", runs=[_run("direct", 7_654_321, 1, 9.0)]), two)
    save(replace(RESULTS, contenders={"franz": "a peer"}, ours=[], runs=[_run("franz", 1000, 1, 9.0)]), three)
    assert load([one]) == first
    both = load([one, three])
    assert both.names(1000) == ["direct", "a<b&c", "franz"]
    assert both.by_round("franz", 1000, lambda run: run.records_per_s) == {4: 9.0}
    assert both.ratio("direct", "franz", 1000, lambda run: run.records_per_s) is None
    assert exit_code_of(together, "results", [str(one), str(two), "--out", str(page)]) == 0
    text = page.read_text()
    assert all(part in text for part in ("first command", "second command", "7,654,321 orders", "1,000 orders"))
    assert load([tmp_path / "page.json"]) == load([one, two])
    assert (tmp_path / "page.svg").read_text() == draw(load([one, two]))


@pytest.mark.parametrize("text", ["[]", "{", '{"runs": []}', '{"format": 1}'])
def test_a_file_of_another_format_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(Refused, match=r"old\.json: "):
        load([file])


def fence(time_s: float, pid: int = 7) -> Entry:
    return Entry(time_s, "writer", pid, Step.FENCE, Phase.INTENT, {})


def outcome(time_s: float, pid: int = 7) -> Entry:
    return Entry(time_s, "writer", pid, Step.OUTCOME, Phase.DONE, {})


@pytest.mark.parametrize(
    ("lines", "longest"),
    [
        ([fence(1), outcome(2), fence(2.5), outcome(4), fence(5), outcome(6), fence(20, 8), outcome(21, 8)], 1),
        ([fence(1), fence(2), outcome(3), fence(3.5), outcome(9), outcome(9.5)], 0),
        ([outcome(1), fence(3), outcome(4)], 2),
    ],
    ids=["apart", "overlapping", "ended-before-its-fence"],
)
def test_the_longest_time_between_two_transactions_of_one_process_counts(lines: list[Entry], longest: float) -> None:
    assert longest_pause_s(lines) == longest


def test_the_middle_pair_counts_not_the_mean() -> None:
    pairs = [{"case": {"mb_per_s": ours}, "base": {"mb_per_s": base}} for ours, base in ((9, 10), (1, 10), (30, 10))]
    assert median_ratio(pairs) == 0.9


SIZE = 64 * 1024 * 1024


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def test_each_page_is_touched_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before, own = faults(), psutil.Process().memory_info().rss
    assert memory.touch(SIZE) > 0
    assert faults() - before >= SIZE // mmap.PAGESIZE
    assert psutil.Process().memory_info().rss - own < SIZE // 2
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=SIZE))
    before = faults()
    memory.touch(100 * SIZE)
    assert faults() - before < SIZE // mmap.PAGESIZE


def _checked(orders: int, rate: float, peak: float) -> dict[str, Any]:
    measured = {"records_per_s": rate, "cpu_s": 1.0, "cpu_us_per_record": 2.0, "peak_mib": peak}
    return {"orders": orders, "records": 2 * orders, **measured}


def test_the_largest_log_is_told_and_the_smallest_shows_what_grows() -> None:
    """Medians, so that one disturbed run of three decides nothing."""
    small = [_checked(100, 9.0, 50.0), _checked(100, 9.0, 50.0), _checked(100, 1.0, 99.0)]
    large = [_checked(400, 5.0, 60.0), _checked(400, 4.0, 60.0), _checked(400, 1.0, 99.0)]
    summary = summed([*large, *small])
    assert (summary["records"], summary["records_per_s"], summary["peak_mib"]) == (800, 4.0, 60.0)
    assert (summary["times_the_records"], summary["times_the_memory"]) == (4.0, 1.2)


@pytest.mark.parametrize("text", ["", "many", "0", "5,5", "5,-1"])
def test_a_size_that_is_none_is_refused_by_name(text: str) -> None:
    assert sizes_of("5,20") == [5, 20]
    with pytest.raises(UsageError, match="--orders"):
        sizes_of(text)


def test_batches_are_counted_by_the_highest_entry_of_a_commit_log_that_forgets_old_ones(tmp_path: Path) -> None:
    """Spark keeps the last hundred, each beside its checksum."""
    assert committed(tmp_path / "commits") == 0
    for name in ("412", "9", ".412.crc", "metadata"):
        (tmp_path / name).touch()
    assert committed(tmp_path) == 413


def test_memory_is_the_median_of_each_fifth_of_the_batches_after_the_warm_up() -> None:
    """A sample between two fifths counts for both."""
    samples = [(50, 100, 1), (69, 300, 2), (70, 200, 3), (85, 10, 4), (100, 20, 5), (120, 30, 6), (150, 40, 7)]
    weights = [(done, Counter(jvm=jvm * 2**20, workers=workers * 2**20)) for done, jvm, workers in samples]
    assert fifths(weights, 100) == {"jvm": [200.0, 105.0, 20.0, 30.0, 40.0], "workers": [2.0, 3.5, 5.0, 6.0, 7.0]}


@pytest.mark.parametrize(
    ("kafka", "spark", "expected"),
    [
        ("{jvm}/kafka/a.jar", "{jvm}/spark/b.jar:{pyspark}/jars/c.jar", "used"),
        (
            "/elsewhere/kafka/a.jar",
            "{jvm}/spark/b.jar:{pyspark}/jars/c.jar",
            "not used: kafka.jsa was made in another folder",
        ),
        (
            "{jvm}/kafka/a.jar",
            "{jvm}/spark/b.jar:/elsewhere/jars/c.jar",
            "not used: spark.jsa was made in another folder",
        ),
        ("{jvm}/kafka/a.jar", "", "none (spark)"),
    ],
)
def test_a_page_says_whether_its_jvms_used_their_class_data_archives(
    kafka: str, spark: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some were measured in a checkout with a link to another one's `.jvm`: each JVM ignored the archives."""
    monkeypatch.setattr(memory, "JVM_DIR", tmp_path)
    for name, text in {"kafka": kafka, "spark": spark}.items():
        if text:
            (tmp_path / f"{name}.jsa").write_text(text.format(jvm=tmp_path, pyspark=Path(pyspark.__file__).parent))
    assert memory._archives() == expected
