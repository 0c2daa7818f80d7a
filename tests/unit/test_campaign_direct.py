"""The cells' twins over the direct reader: the same but for the reader, and seen to hold what only that one holds."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from brew.deadline import Deadline
from proof.campaign import matrix, runner
from proof.campaign.cell import Cell, Need
from proof.campaign.cluster import ExternalCluster
from proof.campaign.effects import HOLDERS, holders
from proof.campaign.programs import Program, Programs
from proof.campaign.stage import CellEnvironment

QUIET = Cell("T-quiet", "T", "nothing", "nobody", "never", lambda _stage: None)

# A driver with a holder in the same process, as `--master none --reader direct` has it; and one without.
LISTENS = """
import socket, sys, time
office = socket.create_server(("127.0.0.1", 0))
if sys.argv[1] == "held":
    line = socket.create_connection(office.getsockname())
    there, _ = office.accept()
print("up", flush=True)
time.sleep(600)
"""


def _stage(folder: Path, cell: Cell, program: tuple[str, ...] = ()) -> CellEnvironment:
    return CellEnvironment(
        cell, 1, ExternalCluster("nowhere:1"), folder, Programs(folder), Deadline(20), program=program
    )


def _up(program: Program) -> Program:
    deadline = Deadline(20)
    while "up" not in program.printed():
        deadline.check("the program being up")
    return program


TWINLESS = {
    "F09-split-range": "not applicable to either",
    "F10-old-checkpoint": "not applicable to either",
    "F11-end-txn-control": "the writers are the wire's own, which read no input",
    "F11-end-txn-strict": "the writers are the wire's own, which read no input",
    "F12-offsets-control": "the writers are the wire's own, which read no input",
    "F12-offsets-strict": "the writers are the wire's own, which read no input",
    "F12-records-control": "the writers are the wire's own, which read no input",
    "F13-records-control": "the writers are the wire's own, which read no input",
    "F13-records-strict": "the writers are the wire's own, which read no input",
    "F12-records-strict": "the writers are the wire's own, which read no input",
    "F29-*": "the program under test reads the pipeline's output",
    "F30-*": "the program under test reads the pipeline's output",
    "F31-*": "the program under test reads the pipeline's output",
    "F32-*": "the program under test reads the pipeline's output",
    "F33-*": "the program under test reads the pipeline's output",
    "F34-*": "claimants read no input",
    "F09-speculation-connector-spark": "each job of the direct reader is of one task, and Spark copies none of those",
    "F0?-lease-*": "only the direct reader holds partitions by a lease",
    "F36-acl-connector-spark": "it is about Spark's own consumer, in Java, which only the connector has",
    "F37-no-local-disk-connector-spark": "it ends before anything is read",
    "soak-F38-both": "both readers take turns in it",
}
"""Every cell without a twin over the other reader, and why; nothing else may be without one."""

NAME = re.compile(r"-(connector|direct)(-spark)?$")


def _twin(name: str) -> str:
    """The same cell's name over the other reader."""
    other = {"connector": "direct", "direct": "connector"}
    return NAME.sub(lambda found: f"-{other[found.group(1)]}{found.group(2) or ''}", name)


def test_cells_without_a_twin_are_these_and_each_has_a_reason() -> None:
    """A new cell is run over both readers, or stands here with a sentence; a line that fits nothing is out of date."""
    names = {cell.name for cell in matrix.cells()}
    alone = {name for name in names if not NAME.search(name) or _twin(name) not in names}
    fits = {name: [pattern for pattern in TWINLESS if fnmatchcase(name, pattern)] for name in alone}
    assert {name for name, patterns in fits.items() if len(patterns) != 1} == set()
    assert {pattern for pattern in TWINLESS if not any(pattern in patterns for patterns in fits.values())} == set()
    told = {**matrix.NO_READER, **{name: why for name, (_, why) in matrix.ONE_READER.items()}}
    assert set(TWINLESS.values()) == set(told.values())


def test_twins_differ_in_the_reader_alone() -> None:
    """Same fault, same moment, same play, same bounds; over the direct reader more has to be seen."""
    by_name = {cell.name: cell for cell in matrix.cells()}
    pairs = [
        (cell, by_name[_twin(cell.name)])
        for cell in by_name.values()
        if cell.reader == "connector" and _twin(cell.name) in by_name
    ]
    assert len(pairs) > 60
    for cell, twin in pairs:
        assert twin.needed.items() > cell.needed.items()
        assert twin.path == cell.path.replace("connector ", "direct ")
        same = {"name": cell.name, "path": cell.path, "reader": cell.reader, "needed": cell.needed, "marks": cell.marks}
        assert replace(twin, **same) == cell


def test_reader_and_spark_can_be_read_from_a_cells_name() -> None:
    """The name says what the program under test is told: which reader, and whether Spark runs it."""
    for cell in matrix.cells():
        found = NAME.search(cell.name)
        assert cell.reader in {found.group(1) if found else "", "both"}, cell.name
        through_spark = cell.path.endswith("spark") and not cell.not_applicable
        assert through_spark is cell.name.endswith("-spark"), cell.name
        assert through_spark is (Need.SPARK in cell.needs), cell.name


def test_the_program_under_test_is_told_the_reader(tmp_path: Path) -> None:
    """And nothing where the cell leaves it to the program."""
    for cell, told in ((QUIET, ""), (replace(QUIET, reader="direct"), "--reader direct")):
        program = _stage(tmp_path, cell, ("echo",)).writer("--follow", name=f"told-{told[9:]}")
        assert program.wait(Deadline(10)) == 0
        assert told in program.printed()
        assert ("--reader" in program.printed()) is bool(told)


def test_both_readers_take_turns(tmp_path: Path) -> None:
    """Each writer reads the way that the one before it did not, and a soak counts both."""
    stage = _stage(tmp_path, replace(QUIET, reader="both"), ("echo",))
    programs = [stage.writer() for _ in range(4)]
    assert [program.done(Deadline(10)).split("--reader ")[1].split()[0] for program in programs] == [
        *("connector", "direct") * 2
    ]
    assert stage.fired == {"connector_writers": 2, "direct_writers": 2}


def test_a_holder_is_seen_by_its_line_and_a_driver_without_one_is_none(tmp_path: Path) -> None:
    """From outside: what the program says about itself shows nothing."""
    with Programs(tmp_path) as programs:
        held, alone = (_up(programs.start(how, sys.executable, "-c", LISTENS, how)) for how in ("held", "alone"))
        assert [one.pid for one in holders(held)] == [held.pid]
        assert holders(alone) == []
    assert holders(held) == []


@pytest.mark.parametrize(("how", "verdict"), [("held", "proven"), ("alone", "inconclusive")])
def test_a_twin_whose_writers_hold_nothing_shows_nothing(tmp_path: Path, how: str, verdict: str) -> None:
    """A program that passes over `--reader direct` must not look as if the direct reader had been broken."""

    def play(stage: CellEnvironment) -> None:
        _up(stage.writer())
        stage.until(lambda: how == "alone" or bool(holders(stage.writers[0])), "a holder")

    cell = replace(matrix.over("direct", QUIET), play=play)
    stage = _stage(tmp_path, cell, (sys.executable, "-c", LISTENS, how))
    judged = runner.Judgement()
    with stage.programs:
        runner.break_it(stage)
        runner.guard(stage, judged)
    assert (judged.verdict, stage.fired[HOLDERS]) == (verdict, int(how == "held"))
