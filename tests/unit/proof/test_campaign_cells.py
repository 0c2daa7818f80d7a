"""The fault matrix as a list, over both readers, how a cell is judged, and the file of its results."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.journal import Journal, Phase, Step
from brew.names import CrashPoint
from proof.campaign import campaign, runner
from proof.campaign.cell import LINES, Cell, Need, Result, append_result, finished_results
from proof.campaign.cells.spark import no_local_disk
from proof.campaign.cluster import ExternalCluster
from proof.campaign.effects import HOLDERS, holders
from proof.campaign.journals import Journals
from proof.campaign.programs import Program, Programs
from proof.campaign.stage import CellEnvironment, FaultMissedError, StalledError

QUIET = Cell("T-quiet", "T", "nothing", "nobody", "never", lambda _stage: None)
ROWS = {f"F{n:02d}" for n in (*range(1, 6), 8, 10, *range(14, 20), *range(21, 34), 35, 38)}


def _stage(folder: Path, cell: Cell, program: tuple[str, ...] = ()) -> CellEnvironment:
    return CellEnvironment(
        *(cell, 1, ExternalCluster("nowhere:1"), folder, Programs(folder), Deadline(20)), kills=3, program=program
    )


def _guarded(stage: CellEnvironment) -> runner.Judgement:
    judged = runner.Judgement()
    runner.guard(stage, judged)
    return judged


def _result(cell: str, seed: int = 1, verdict: str = "proven") -> Result:
    return Result(cell, "F01", "SIGKILL", "writer", "here", "writer", seed, verdict, "2026-01-01", 1.0, None)


def test_a_wait_for_a_writer_that_has_crashed_ends_at_once(tmp_path: Path) -> None:
    """It will never commit again; a writer that is gone some other way may have been meant to be."""
    stage = replace(_stage(tmp_path, QUIET), program=("sh", "-c", "kill -SEGV $$"))
    gone = replace(_stage(tmp_path, QUIET), program=("sh", "-c", "exit 3"), deadline=Deadline(0.2))
    with stage.programs, gone.programs:
        for one in (stage, gone):
            one.writer().wait(Deadline(10))
        with pytest.raises(StalledError, match=r"a commit: writer-1 ended with SIGSEGV"):
            stage.until(lambda: False, "a commit")
        with pytest.raises(StalledError, match=r"a commit: not within"):
            gone.until(lambda: False, "a commit")


def test_every_row_has_cells_and_no_name_is_given_twice() -> None:
    cells = campaign.cells()
    assert [name for name, count in Counter(cell.name for cell in cells).items() if count > 1] == []
    assert {cell.row for cell in cells} >= ROWS
    assert {cell.moment for cell in cells} >= set(CrashPoint)


def test_cells_are_chosen_by_name_row_or_mark() -> None:
    """In the order of the patterns, each once; a typing error must not look like a campaign without violations."""
    names = [cell.name for cell in campaign.chosen(["F01-after-flush-w*", "F01-after-f*-writer-connector"])]
    endings = ("flush-writer-connector", "flush-writer-direct", "fence-writer-connector")
    assert names == [f"F01-after-{ending}" for ending in endings]
    assert {cell.row for cell in campaign.chosen(["F14"])} == {"F14"}
    assert all("prove" in cell.marks for cell in campaign.chosen(["prove"]))
    assert campaign.chosen([]) == campaign.cells()
    with pytest.raises(UsageError, match="F77"):
        campaign.chosen(["F01*", "F77*"])


def test_a_cell_whose_fault_did_not_happen_shows_nothing(tmp_path: Path) -> None:
    """Too few kills are a doubt; as many as needed are none, and 0 stands for as many as were asked for."""
    stage = _stage(tmp_path, replace(QUIET, needed={"kills": 0, "cuts": 1}))
    stage.fire("kills", 2)
    stage.fire("cuts")
    judged = _guarded(stage)
    assert judged.verdict == "inconclusive"
    assert [doubt for doubt in judged.doubts if "silent-fault: kills 2 of 3" in doubt]

    stage.fire("kills")
    assert _guarded(stage).verdict == "proven"


def test_a_run_that_also_ends_with_a_disk_shows_nothing_of_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F37 was proven on a machine where Spark does not start at all."""
    monkeypatch.setattr(CellEnvironment, "orders", lambda *_: None)
    stage = _stage(tmp_path, QUIET, ("sh", "-c", "exit 3"))
    with stage.programs, pytest.raises(FaultMissedError, match="ended with 3, too"):
        no_local_disk(stage)
    assert not stage.fired


def test_recoveries_over_the_bound_are_a_stall(tmp_path: Path) -> None:
    stage = _stage(tmp_path, replace(QUIET, bound_s=2.0))
    stage.recovery_s = [0.1, 2.0]
    assert _guarded(stage).verdict == "proven"

    stage.recovery_s = [0.1, 2.1]
    assert [anomaly["name"] for anomaly in _guarded(stage).anomalies] == ["stall"]

    stage.slack = 2.0
    assert (_guarded(stage).verdict, stage.bound_s) == ("proven", 4.0)


@pytest.mark.parametrize(
    ("verdict", "findings", "doubts", "judged"),
    [
        ("proven", [], [], ("proven", [])),
        ("violated", [{"name": "lost-output"}], [], ("violated", [])),
        ("inconclusive", [], ["a backlog"], ("inconclusive", ["a backlog"])),
        ("inconclusive", [], [], ("inconclusive", ["the checker was inconclusive and gave no reason"])),
    ],
)
def test_a_cell_is_no_better_than_what_the_checker_said(
    verdict: str, findings: list[dict[str, str]], doubts: list[str], judged: tuple[str, list[str]], tmp_path: Path
) -> None:
    stage, found = _stage(tmp_path, QUIET), runner.Judgement()
    report = {"verdict": verdict, "findings": findings, "doubts": doubts, "inputs": 3, "counts": {"fences": 1}}
    asked: list[tuple[str, ...]] = []
    stage.verified = lambda *options: asked.append(options) or report  # type: ignore[method-assign,func-returns-value]
    runner.check(stage, found, settled=True)
    assert (found.verdict, found.doubts) == judged
    assert found.counts == {"inputs": 3, "fences": 1}
    runner.check(stage, runner.Judgement(), settled=False)
    journals = ("--journals", str(tmp_path / "journals"))
    assert asked == [(*journals, "--settled"), journals]


def _fail(error: Exception) -> Callable[[CellEnvironment], None]:
    def function(_stage: CellEnvironment) -> None:
        raise error

    return function


CONTROL = replace(QUIET, expected="violated", breaks="two-owners")


@pytest.mark.parametrize(
    ("cell", "verdict", "settled"),
    [
        (QUIET, "proven", [True]),
        (replace(QUIET, judged=False), "proven", []),
        (replace(QUIET, function=lambda stage: stage.find("ledger-drift", "a cent")), "violated", [True]),
        (replace(QUIET, function=lambda stage: stage.doubts.append("an unread frame")), "inconclusive", [True]),
        (replace(QUIET, function=lambda stage: stage.writer().wait(Deadline(10))), "violated", [True]),
        (replace(QUIET, function=_fail(StalledError("no commit"))), "violated", [False]),
        (replace(QUIET, function=_fail(FaultMissedError("nothing open"))), "inconclusive", [False]),
        (replace(QUIET, function=_fail(OSError("no disk"))), "inconclusive", [False]),
        (replace(CONTROL, function=_fail(StalledError("no commit"))), "inconclusive", [False]),
        (replace(CONTROL, function=lambda stage: stage.find("two-owners", "p")), "violated", [True]),
        (replace(CONTROL, function=lambda stage: stage.writer().wait(Deadline(10))), "inconclusive", [True]),
    ],
)
def test_a_cell_is_no_better_than_what_its_play_found(
    cell: Cell, verdict: str, settled: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by a crash that the next writer healed; open transactions are violations only once all has ended well."""
    checked: list[bool] = []
    for phase in ("_open", "_close", "count"):
        monkeypatch.setattr(runner, phase, lambda *_: None)
    monkeypatch.setattr(runner, "check", lambda *_, settled: checked.append(settled))
    for step in ("read_to_the_end", "forget"):
        monkeypatch.setattr(CellEnvironment, step, lambda _: None)
    stage, judged = _stage(tmp_path, cell, ("sh", "-c", "kill -SEGV $$")), runner.Judgement()
    with stage.programs:
        runner._run_phases(stage, judged)
    assert (judged.verdict, checked) == (verdict, settled)


def test_what_was_aborted_is_counted_from_journals_and_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begun and not committed is aborted; records that can't be counted are a doubt."""
    stage, judged, place = _stage(tmp_path, QUIET), runner.Judgement(), {"topic": "in", "partition": 0}
    with closing(Journal(stage.journals.folder, "writer")) as journal:
        for step, times in ((Step.BEGIN, 3), (Step.COMMIT, 2)):
            for _ in range(times):
                journal.write(step, Phase.DONE, **place)
        journal.write(Step.SEND_OFFSETS, Phase.FAILED, **place, detail="Fenced: by a newer one")
        journal.write(Step.SEND_OFFSETS, Phase.FAILED, **place, detail="Retriable: no answer")
    logs: list[Any] = [{"aborted": 3}, {"aborted": 4}]
    monkeypatch.setattr(runner.log_summary, "end_offsets", lambda *_: logs)
    runner.count(stage, judged)
    counted = {"committed_transactions": 2, "aborted_transactions": 1, "aborted_records": 7}
    assert (judged.counts, judged.doubts, dict(stage.fired)) == (counted, [], {"fences": 1, "aborted_records": 7})
    monkeypatch.setattr(runner.log_summary, "end_offsets", Mock(side_effect=Refused("no right")))
    runner.count(stage, judged)
    assert judged.doubts == ["aborted records could not be counted: no right"]


def test_the_programs_of_a_cell_that_is_far_over_its_time_are_killed(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        program = programs.start("hangs", "sleep", "600")
        with runner._killed_after(0.01, programs):
            assert program.wait(Deadline(20)) == -9


@pytest.mark.parametrize(("verdict", "goes_on"), [("proven", True), ("violated", False), ("inconclusive", False)])
def test_a_fault_that_removes_data_comes_only_after_a_proof_of_what_was_there(
    verdict: str, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = _stage(tmp_path, QUIET)
    monkeypatch.setattr(stage, "verified", lambda: {"verdict": verdict, "totals": {}, "doubts": []})
    with nullcontext() if goes_on else pytest.raises(StalledError, match="not proven even before the fault"):
        stage.proven()


def test_a_writer_that_ends_otherwise_than_it_has_to_is_a_stall(tmp_path: Path) -> None:
    stage = _stage(tmp_path, QUIET, ("sh", "-c", "echo why >&2; exit 3"))
    with stage.programs:
        stage.ended(stage.writer(), 3)
        with pytest.raises(StalledError, match="drain-1 ended with 3 instead of 0: why"):
            stage.drain()


def test_a_bound_without_a_recovery_shows_nothing(tmp_path: Path) -> None:
    """Such a cell was called proven, and its report counted a recovery that never came."""
    stage = _stage(tmp_path, replace(QUIET, bound_s=2.0))
    judged = _guarded(stage)
    doubt = "no recovery was measured, so nothing is shown of the bound of 2 s"
    assert (judged.verdict, judged.doubts) == ("inconclusive", [doubt])
    assert campaign.named("F34-races").bound_s is None, "nothing is broken there"


def test_results_are_read_back_without_a_line_that_was_cut_off(tmp_path: Path) -> None:
    append_result(tmp_path, _result("a"))
    append_result(tmp_path, _result("b", verdict="violated"))
    with (tmp_path / LINES).open("a") as file:
        file.write('{"cell": "c", "ro')
    results = finished_results(tmp_path)
    read_back = [(one.cell, one.verdict, one.as_expected) for one in results]
    assert read_back == [("a", "proven", True), ("b", "violated", False)]
    assert set(asdict(results[0])) >= {"recovery_s", "stall_s", "fired", "needed", "counts", "anomalies", "doubts"}


def test_journals_are_followed_line_by_line(tmp_path: Path) -> None:
    """A line that is being written is taken once it is whole."""
    followed, journal = Journals(tmp_path), Journal(tmp_path, "writer")
    journal.write(Step.COMMIT, partition=1)
    assert [entry.step for entry in followed.look()] == [Step.COMMIT]
    assert len(followed.look()) == 1
    path = next(tmp_path.glob("*.jsonl"))
    whole = path.read_bytes()
    for part, lines in ((whole[:20], 1), (whole[20:], 2)):
        with path.open("ab") as file:
            file.write(part)
        assert len(followed.look()) == lines
    journal.close()


def test_a_control_shows_something_only_by_the_anomaly_that_its_bug_stands_for() -> None:
    """One that merely gets stuck is inconclusive: the check beside it may be blind. Else anomalies outweigh doubts."""
    cell = campaign.named("F02-commit-released-control-connector")
    assert (cell.expected, cell.breaks) == ("violated", "duplicate-output")
    stuck = runner.Judgement(doubts=["who knows"])
    stuck.stalled("nothing moved")
    assert stuck.verdict == "violated"
    runner.as_a_control(cell, stuck)
    assert stuck.verdict == "inconclusive"
    crashed = runner.Judgement(anomalies=[{"name": "crash"}])
    runner.as_a_control(campaign.named("F33-offsets-control"), crashed)
    assert crashed.verdict == "inconclusive"
    broken = runner.Judgement(anomalies=[{"name": "duplicate-output"}])
    runner.as_a_control(cell, broken)
    assert broken.verdict == "violated"


def test_each_strict_experiment_has_a_control_that_has_to_break() -> None:
    """Beside a control that breaks nothing a clean twin shows nothing: rows F02, F11, F12 and F13 have one each."""
    by_name = {cell.name: cell for cell in campaign.cells()}
    strict = [name for name in by_name if name.endswith("-strict")]
    assert len(strict) == 4
    assert {by_name[name.replace("-strict", "-control")].expected for name in strict} == {"violated"}
    assert {cell.bound_s for cell in by_name.values() if cell.expected == "violated"} == {None}, "late is not broken"
    assert all(cell.breaks or cell.experiment for cell in by_name.values() if cell.expected == "violated")
    controls = {cell.row for cell in by_name.values() if cell.expected == "violated"}
    assert controls >= {"F02", "F11", "F12", "F13", "F29", "F30", "F31", "F32", "F33", "F34", "F39", "F43"}


# A driver with a holder in the same process, as `--master none --reader direct` has it; and one without.
LISTENS = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
if sys.argv[1] == "held":
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
print("up", flush=True)
time.sleep(600)
"""


def _ready(program: Program) -> Program:
    deadline = Deadline(20)
    while "up" not in program.printed():
        deadline.check("the program being up")
    return program


CONTROLLED = ("control", "strict")
WIRE = [f"{row}-{how}" for row in ("F11-end-txn", "F12-offsets", "F12-records", "F13-records") for how in CONTROLLED]
TWINLESS = {
    **dict.fromkeys(("F09-split-range", "F10-old-checkpoint"), "not applicable to either"),
    **dict.fromkeys(WIRE, "the writers are the wire's own, which read no input"),
    **dict.fromkeys((f"F{n}-*" for n in range(29, 34)), "the program under test reads the pipeline's output"),
    "F34-*": "claimants read no input",
    **dict.fromkeys((f"F{n}-*" for n in range(39, 44)), "the program under test is a query of Spark's"),
    "F09-speculation-connector-spark": "each job of the direct reader is of one task, and Spark copies none of those",
    "F0?-lease-*": "only the direct reader holds partitions by a lease",
    "F36-acl-connector-spark": "it is about Spark's own consumer, in Java, which only the connector has",
    "F37-no-local-disk-connector-spark": "it ends before anything is read",
    "soak-F38-both": "both readers take turns in it",
}
"""Every cell without a twin over the other reader, and why; nothing else may be without one."""
NAME = re.compile(r"-(connector|direct)(-spark)?$")


def _twin(name: str) -> str:
    other = {"connector": "direct", "direct": "connector"}
    return NAME.sub(lambda match: f"-{other[match.group(1)]}{match.group(2) or ''}", name)


def test_cells_without_a_twin_are_these_and_each_has_a_reason() -> None:
    """A new cell is run over both readers, or stands here with a sentence; a line that fits nothing is out of date."""
    names = {cell.name for cell in campaign.cells()}
    alone = {name for name in names if not NAME.search(name) or _twin(name) not in names}
    fits = {name: [pattern for pattern in TWINLESS if fnmatchcase(name, pattern)] for name in alone}
    assert {name for name, patterns in fits.items() if len(patterns) != 1} == set()
    assert {pattern for pattern in TWINLESS if not any(pattern in patterns for patterns in fits.values())} == set()


def test_twins_differ_in_the_reader_alone() -> None:
    by_name = {cell.name: cell for cell in campaign.cells()}
    connector = [cell for cell in by_name.values() if cell.reader == "connector"]
    pairs = [(cell, by_name[twin]) for cell in connector if (twin := _twin(cell.name)) in by_name]
    assert len(pairs) > 60
    for cell, twin in pairs:
        assert twin.needed.items() > cell.needed.items()
        assert twin.path == cell.path.replace("connector ", "direct ")
        same = {"name": cell.name, "path": cell.path, "reader": cell.reader, "needed": cell.needed, "marks": cell.marks}
        assert replace(twin, **same) == cell


def test_reader_and_spark_can_be_read_from_a_cells_name() -> None:
    for cell in campaign.cells():
        match = NAME.search(cell.name)
        assert cell.reader in {match.group(1) if match else "", "both"}, cell.name
        through_spark = cell.path.endswith("spark") and not cell.not_applicable
        assert through_spark is cell.name.endswith("-spark"), cell.name
        assert through_spark is (Need.SPARK in cell.needs and cell.path != "sink"), cell.name


@pytest.mark.parametrize(
    ("reader", "readers"),
    [("", [""] * 2), ("direct", ["direct"] * 2), ("both", ["connector", "direct"] * 2)],
    ids=["left to the program", "one", "by turns"],
)
def test_the_program_under_test_is_told_the_reader(tmp_path: Path, reader: str, readers: list[str]) -> None:
    """Of two that take turns each writer reads the way that the one before it did not, and a soak counts both."""
    stage = _stage(tmp_path, replace(QUIET, reader=reader), ("echo",))
    with stage.programs:
        words = [f"{stage.writer('--follow').done(Deadline(10))} ".partition("--reader ")[2] for _ in readers]
    assert [one.partition(" ")[0].strip() for one in words] == readers
    assert dict(stage.fired) == ({"connector_writers": 2, "direct_writers": 2} if reader == "both" else {})


def test_a_holder_is_seen_by_its_line_and_a_driver_without_one_is_none(tmp_path: Path) -> None:
    """From outside: what the program says about itself shows nothing."""
    with Programs(tmp_path) as programs:
        held, alone = (_ready(programs.start(how, sys.executable, "-c", LISTENS, how)) for how in ("held", "alone"))
        assert [one.pid for one in holders(held)] == [held.pid]
        assert holders(alone) == []
    assert holders(held) == []


@pytest.mark.parametrize(("how", "verdict"), [("held", "proven"), ("alone", "inconclusive")])
def test_a_twin_whose_writers_hold_nothing_shows_nothing(tmp_path: Path, how: str, verdict: str) -> None:
    """A program that passes over `--reader direct` must not look as if the direct reader had been broken."""

    def function(stage: CellEnvironment) -> None:
        _ready(stage.writer())
        stage.until(lambda: how == "alone" or bool(holders(stage.writers[0])), "a holder")

    cell = replace(campaign.over("direct", QUIET), function=function)
    stage = _stage(tmp_path, cell, (sys.executable, "-c", LISTENS, how))
    with stage.programs:
        runner.break_it(stage)
        judged = _guarded(stage)
    assert (judged.verdict, stage.fired[HOLDERS]) == (verdict, int(how == "held"))
