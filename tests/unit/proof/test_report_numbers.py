"""What the results add up to: standings, verdict, times, bars; and the JSON and Markdown made of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from harness.campaigns import HOSTILE, campaign

from brew.names import CrashPoint
from proof.findings import Verdict
from proof.report.page import Axis, document, markdown, plain
from proof.report.results import MATRIX, TITLES, Result, Standing, read
from proof.report.summary import CriterionResult, Demand, Summary, Times, acceptance_criteria, seconds_text

ANOMALY = {"name": "lost-output", "topic": "t", "partition": 1, "offset": 2, "evidence": "gone"}
SILENT = {"name": "silent-fault", "topic": "", "partition": -1, "offset": -1, "evidence": "no kill"}


def _result(**fields: Any) -> Result:
    base = {"cell": "F01-c", "row": "F01", "seed": 1, "verdict": "proven", "path": "writer"}
    return read(json.dumps(base | fields), "x")[1][0]


@pytest.mark.parametrize(
    ("fields", "standing"),
    [
        ({}, Standing.PROVEN),
        ({"verdict": "violated"}, Standing.VIOLATED),
        ({"anomalies": [ANOMALY]}, Standing.VIOLATED),
        ({"verdict": "inconclusive", "anomalies": [ANOMALY]}, Standing.VIOLATED),
        ({"doubts": ["d"]}, Standing.INCONCLUSIVE),
        ({"doubts": ["d"], "verdict": "inconclusive", "expected": "inconclusive"}, Standing.NOT_APPLICABLE),
        ({"needed": {"kills": 2}, "fired": {"kills": 1}}, Standing.INCONCLUSIVE),
        ({"needed": {"kills": 2}, "fired": {"kills": 2}}, Standing.PROVEN),
        ({"needed": {"kills": 1}}, Standing.INCONCLUSIVE),
        ({"anomalies": [SILENT]}, Standing.INCONCLUSIVE),
        ({"expected": "violated", "verdict": "violated"}, Standing.CONTROL),
        ({"expected": "violated", "verdict": "proven"}, Standing.INCONCLUSIVE),
        ({"expected": "violated", "verdict": "inconclusive"}, Standing.INCONCLUSIVE),
    ],
)
def test_a_result_is_never_better_than_what_it_holds(fields: dict[str, Any], standing: Standing) -> None:
    """The runner's word can be made worse by the result's own content, not better; who can't tell says why."""
    result = _result(**fields)
    assert result.standing is standing
    assert bool(result.reasons) is (standing in {Standing.INCONCLUSIVE, Standing.NOT_APPLICABLE})


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ([], "inconclusive"),
        (["proven", "control"], "proven"),
        (["control"], "inconclusive"),
        (["proven", "inconclusive"], "inconclusive"),
        (["inconclusive", "violated", "proven"], "violated"),
    ],
)
def test_the_worst_cell_decides(verdicts: list[str], verdict: str) -> None:
    """Controls alone prove nothing about us."""
    control = {"expected": "violated", "verdict": "violated"}
    kinds = [control if one == "control" else {"verdict": one} for one in verdicts]
    results = [_result(cell=f"F01-{number}", **fields) for number, fields in enumerate(kinds)]
    assert Summary.of([], results).verdict == verdict


def test_a_cell_is_as_good_as_its_worst_seed_and_keeps_every_run() -> None:
    results = [_result(seed=1, verdict="violated"), _result(seed=1), _result(seed=2)]
    (cell,) = Summary.of([], results).cells
    assert cell.standing is Standing.VIOLATED
    assert len(cell.results) == 3


def test_quantiles_are_by_nearest_rank_and_never_ranks_last() -> None:
    times = Times(tuple(map(float, range(1, 21))))
    assert (times.quantile(0.5), times.quantile(0.95), times.longest) == (10.0, 19.0, 20.0)
    assert Times(times.seconds[:19], never=1).quantile(0.95) == 19.0
    assert math.isinf(Times(times.seconds[:19], never=1).longest)
    with pytest.raises(ValueError, match="at least one"):
        Times(()).quantile(0.5)


def test_a_recovery_that_never_came_counts_and_one_that_was_not_due_does_not() -> None:
    """Otherwise the run that hung for ever would make p95 better."""
    hung = _result(bound_s=2.0, verdict="violated")
    silent = _result(bound_s=2.0, needed={"kills": 1})
    unbounded = _result()
    assert Times.recoveries([hung, silent, unbounded]) == Times((), never=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((None, "-"), (0.254, "0.25 s"), (12.34, "12.3 s"), (119.49, "119.5 s")),
        *((250, "4 min 10 s"), (8100, "2 h 15 min"), (math.inf, "never")),
    ],
)
def test_seconds_read_as_people_say_them(seconds: float | None, text: str) -> None:
    assert seconds_text(seconds) == text


DIRECT, DIRECT_S = "direct writer", "direct spark"


def _kills(path: str, count: int, **fields: Any) -> list[Result]:
    base = {"fault": "SIGKILL", "target": "writer", "path": path, "fired": {"kills": count}}
    return [_result(moment=point, **(base | fields)) for point in CrashPoint]


def _sink(mode: str, count: int) -> list[Result]:
    killed = {"row": "F39", "fault": "SIGKILL", "target": "sink's driver and its JVM", "path": "sink"}
    return [_result(cell=f"F39-{point}-{mode}", **killed, moment=point, fired={"kills": count}) for point in CrashPoint]


def _one_id(transactions: int, **fields: Any) -> list[Result]:
    return [_result(row="F28", counts={"committed_transactions": transactions}, **fields)]


def _volume(inputs: int, committed: int, aborted: int) -> list[Result]:
    counts = {"inputs": inputs, "committed_transactions": committed, "aborted_transactions": aborted}
    return [_result(counts=counts)]


def _times(path: str, seconds: float, each: int = 29, **fields: Any) -> list[Result]:
    """So many recoveries for each of seven crash points; `w` is a writer whose coordinator was killed."""
    target = {"target": "group coordinator"} if path == "w" else {}
    return _kills("writer" if path == "w" else path, each, recovery_s=[seconds] * each, **target, **fields)


def _restarted(path: str, seconds: float, count: int = 20) -> list[Result]:
    fields = {"fault": "SIGKILL", "target": "driver JVM and program", "path": path}
    return [_result(**fields, recovery_s=[seconds] * count)]


def _stalled(seconds: float) -> list[Result]:
    return [_result(fault="SIGKILL", target="writer", path="direct writer", stall_s=[seconds] * 20)]


def _counted(kind: str, count: int) -> list[Result]:
    return [_result(path="direct spark", fired={kind: count})]


def _spoilt(results: list[Result]) -> list[Result]:
    return [replace(one, anomalies=_result(verdict="violated", anomalies=[ANOMALY]).anomalies) for one in results]


def _bar(title: str, results: list[Result]) -> CriterionResult:
    (met,) = [bar.met for bar in acceptance_criteria(results) if bar.title == title]
    return met


ALL = _volume(10**6, 10**4, 3000)
RACES = [_result(path="claims races", fault="8 claimants race for 64 partitions", fired={"rounds": 1000})]
STORE = [_result(path="store kills", target="ledger", fired={"kills": 200})]


@pytest.mark.parametrize(
    ("title", "met", "missed"),
    [
        ("Writer killed, until the first new commit, connector reader", _times("writer", 2.0), _times("writer", 2.01)),
        ("Writer killed, until the first new commit, direct reader", _times(DIRECT, 2.0), _times(DIRECT, 2.01)),
        ("Spark killed and restarted, connector reader", _restarted("spark", 10.0), _restarted("spark", 10.1)),
        ("Spark killed and restarted, direct reader", _restarted(DIRECT_S, 6.0), _restarted(DIRECT_S, 6.1)),
        ("Coordinator killed, until the first new commit", _times("w", 15.0, 3), _times("w", 16.0, 3)),
        ("Writer killed and restarted, readers held back", _stalled(3.0), _stalled(3.1)),
        ("Transactions on one id, across the epoch overflow", _one_id(33_000), _one_id(33_000, anomalies=[ANOMALY])),
        ("All runs together", ALL, [*ALL, _result(anomalies=[ANOMALY])]),
        ("Kills at each crash point, connector reader", _kills("writer", 100), _spoilt(_kills("writer", 100))),
        ("Kills at each crash point, direct reader", _kills(DIRECT, 100), _spoilt(_kills(DIRECT, 100))),
        ("The same through Spark, connector reader", _kills("spark", 100), _spoilt(_kills("spark", 100))),
        ("The same through Spark, direct reader", _kills(DIRECT_S, 100), _spoilt(_kills(DIRECT_S, 100))),
        ("The same of the sink's driver, tasks write", _sink("tasks", 100), _spoilt(_sink("tasks", 100))),
        ("Lease lost", _counted("leases_lost", 20), _spoilt(_counted("leases_lost", 20))),
        ("Two drivers on one group, direct reader", _counted("meetings", 20), _spoilt(_counted("meetings", 20))),
        ("Rounds of eight claimants racing", RACES, _spoilt(RACES)),
        ("Kills around the commit, ledger", STORE, _spoilt(STORE)),
    ],
)
def test_a_bar_is_met_at_its_number_and_missed_beyond(title: str, met: list[Result], missed: list[Result]) -> None:
    """The last good value and the first bad one; without a result that bears on it a bar is not measured."""
    assert _bar(title, met) is CriterionResult.YES
    assert _bar(title, missed) is CriterionResult.NO
    assert _bar(title, []) is CriterionResult.UNKNOWN


@pytest.mark.parametrize(
    ("title", "few"),
    [
        ("Writer killed, until the first new commit, direct reader", _times(DIRECT, 0.1, 28)),
        ("Writer killed, until the first new commit, direct reader", _times(DIRECT, 9.0, 28)),
        ("Spark killed and restarted, connector reader", _restarted("spark", 0.1, 19)),
        ("Coordinator killed, until the first new commit", _times("w", 1.0, 2)),
        ("Transactions on one id, across the epoch overflow", _one_id(32_999)),
        ("Transactions on one id, across the epoch overflow", _one_id(33_000, doubts=["not seen"])),
        ("All runs together", _volume(10**6, 10**4, 2999)),
        ("Kills at each crash point, connector reader", [*_kills("writer", 100)[1:], *_kills("writer", 99)[:1]]),
        ("The same through Spark, direct reader", _kills(DIRECT_S, 100)[1:]),
        ("The same of the sink's driver, one task writes", [*_sink("one", 99), *_sink("tasks", 1)]),
        ("Lease lost", _counted("leases_lost", 19)),
        ("Rounds of eight claimants racing", [replace(RACES[0], fired={"rounds": 999})]),
    ],
)
def test_a_bar_with_a_smaller_sample_is_not_shown(title: str, few: list[Result]) -> None:
    """Never met, however good it looks: five recoveries have no 95th percentile."""
    assert _bar(title, few) is CriterionResult.SHORT


def test_inconclusive_runs_and_positive_controls_bear_on_no_bar() -> None:
    """What a run does not believe in was not shown twenty times; what breaks on purpose says nothing of our promise."""
    doubt = _result(doubts=["not seen"]).doubts
    late = _result(row="F11", fired={"late_frames": 1000, "broken": 0})
    for title, runs in (
        ("Lease lost", _counted("leases_lost", 20)),
        ("Kills at each crash point, connector reader", _kills("writer", 100)),
        ("All runs together", ALL),
        ("Late EndTxn, a producer per transaction", [late]),
    ):
        assert _bar(title, [replace(run, doubts=doubt) for run in runs]) is CriterionResult.UNKNOWN
        assert _bar(title, runs) is CriterionResult.YES
    two = replace(RACES[0], fault="2 claimants race for 64 partitions")
    assert _bar("Rounds of eight claimants racing", [two]) is CriterionResult.UNKNOWN
    control = replace(late, expected=Verdict.VIOLATED, fired={"late_frames": 100, "broken": 0})
    assert _bar("Late EndTxn, producer reused (control)", [control]) is CriterionResult.NO, "it should have broken"
    control = _kills("writer", 1, recovery_s=[60.0], expected="violated", verdict="violated", anomalies=[ANOMALY])
    assert {bar.met for bar in acceptance_criteria(control)} == {CriterionResult.UNKNOWN}


def test_a_bar_that_only_old_results_bear_on_is_neither_met_nor_missed() -> None:
    """What another kernel did is shown, and shows nothing of this one; one new result is a sample of one."""
    title = "Writer killed, until the first new commit, connector reader"
    old = _times("writer", 2.0, kernel="0123456789ab")
    (bar,) = [one for one in acceptance_criteria(old) if one.title == title]
    assert (bar.met, bar.measured) == (CriterionResult.OUTDATED, "p95 2.00 s of 203")
    assert _bar(title, [*old, *_times("writer", 1.0, 1)]) is CriterionResult.SHORT


@pytest.mark.parametrize("fields", [{}, {"expected": "violated", "verdict": "violated"}])
def test_what_another_kernel_showed_is_not_proven(fields: dict[str, Any]) -> None:
    """Neither the cell nor the campaign; a violation stays one, since nobody has shown that it is gone."""
    old = _result(kernel="0123456789ab", commit="abcdef012345", **fields)
    assert old.standing is Standing.OUTDATED
    summary = Summary.of([], [old, _result(cell="F01-d")], "")
    assert summary.verdict == "inconclusive"
    assert "1 of another kernel than today's" in summary.headline
    assert "1 of 2 runs were made with another kernel than today's" in summary.outdated
    assert "commit abcdef012345" in summary.outdated
    assert _result(kernel="0", verdict="violated").standing is Standing.VIOLATED
    assert Summary.of([], [_result()]).outdated == ""


@pytest.mark.parametrize(
    ("control", "strict", "met"),
    [
        ((100, 95), (1000, 0), (CriterionResult.YES, CriterionResult.YES)),
        ((100, 94), (1000, 1), (CriterionResult.NO, CriterionResult.NO)),
        ((9, 9), (999, 0), (CriterionResult.YES, CriterionResult.SHORT)),
    ],
)
def test_a_late_end_txn_is_believed_only_beside_a_control_that_breaks(
    control: tuple[int, int], strict: tuple[int, int], met: tuple[CriterionResult, CriterionResult]
) -> None:
    def of(tried: tuple[int, int], **more: str) -> Result:
        return _result(row="F11", fired={"late_frames": tried[0], "broken": tried[1]}, **more)

    criteria = acceptance_criteria([of(control, expected="violated", verdict="violated"), of(strict)])
    assert tuple(bar.met for bar in criteria if "EndTxn" in bar.title) == met


def test_headline_and_document_hold_the_numbers_of_the_page() -> None:
    """The same summary, as JSON that any reader takes: what never came is null, not Infinity."""
    headline = Summary.of(*read(json.dumps(campaign(broken=False)), "x")).headline
    counted = "of 86 cells, 85 proven, 0 violated, 0 inconclusive; 1 positive control violated as expected"
    assert headline == f"Proven: {counted}."
    summary = Summary.of(*read(json.dumps(campaign()), "x"))
    summary_document = json.loads(json.dumps(document(summary), allow_nan=False))
    assert summary_document["verdict"] == "violated"
    cells = {"proven": 79, "violated": 2, "inconclusive": 3, "control": 0, "outdated": 1, "not-applicable": 1}
    assert summary_document["cells"] == {"total": 86, **cells}
    assert summary_document["runs"]["total"] == len(summary.results) == 258
    assert [bar["measured"] for bar in summary_document["bars"]] == [bar.measured for bar in summary.bars]
    assert len(summary_document["matrix"]) == 86
    hung = document(Summary.of([], [_result(bound_s=2.0, verdict="violated")]))
    assert json.loads(json.dumps(hung, allow_nan=False))["recovery_s"][0]["max"] is None


def test_markdown_keeps_its_tables_whatever_the_results_hold() -> None:
    text = markdown(Summary.of(*read(json.dumps(campaign()), "x")))
    for block in text.split("\n\n"):
        lines = [line.replace("\\|", "") for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1
    assert "<script>" not in text
    assert plain(HOSTILE).isprintable()
    assert plain("a|b\n*c*") == r"a\|b \*c\*"


def test_a_strip_shows_late_ones_as_crosses_and_stays_in_its_frame() -> None:
    seconds = [*[0.5] * 1000, 3.0]
    (strip,) = Summary.of([], [_result(bound_s=2.0, recovery_s=seconds)]).recoveries
    axis = Axis.over([strip])
    dots = list(axis.dots(strip))
    assert [late for *_, late in dots] == [False] * 7 + [True]
    heights = [y for _, y, _ in dots]
    assert 0 < min(heights) < max(heights) < Axis.HEIGHT
    assert "1,001 times" in axis.text(strip, "F01")


def test_demands_are_added_up_over_all_runs() -> None:
    runs = [_result(needed={"kills": 3}, fired={"kills": n, "cuts": 1}, seed=n) for n in (2, 3)]
    assert Summary.of([], runs).demands == [Demand("cuts", 2, 0, 0), Demand("kills", 5, 6, 1)]


def test_the_matrix_has_each_row_once() -> None:
    assert sorted(TITLES) == [f"F{number:02}" for number in range(1, 44)]
    assert sum(map(len, MATRIX.values())) == 43
