"""The cells' twins over the direct reader: the same but for the reader, and seen to hold what only that one holds."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from proof.campaign import judge, matrix, runner
from proof.campaign.cell import Cell
from proof.campaign.cells import direct
from proof.campaign.cluster import Foreign
from proof.campaign.holders import HOLDERS, holders
from proof.campaign.programs import Program, Programs
from proof.campaign.stage import Stage
from protocol.deadline import Deadline

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


def _stage(folder: Path, cell: Cell, program: tuple[str, ...] = ()) -> Stage:
    return Stage(cell, 1, Foreign("nowhere:1"), folder, Programs(folder), Deadline(20), program=program)


def _up(program: Program) -> Program:
    deadline = Deadline(20)
    while "up" not in program.printed():
        deadline.check("the program being up")
    return program


def test_a_twin_differs_from_its_cell_in_the_reader_alone() -> None:
    """Same fault, same moment, same play, same bounds; only what has to be seen is more."""
    by_name = {cell.name: cell for cell in matrix.cells()}
    assert len(direct.CELLS) > 60
    for cell in direct.CELLS:
        origin = by_name[cell.name.removesuffix(direct.SUFFIX)]
        assert cell.needed.items() > origin.needed.items()
        assert (cell.reader, cell.path, "direct" in cell.marks) == ("direct", f"direct {origin.path}", True)
        same = {"name": origin.name, "path": origin.path, "reader": "", "needed": origin.needed, "marks": origin.marks}
        assert replace(cell, **same) == origin


def test_every_cell_that_starts_the_pipeline_has_a_twin_or_a_reason() -> None:
    """Claimants, stores, late frames and what does not apply start no reader of ours."""
    twins = {cell.name.removesuffix(direct.SUFFIX) for cell in direct.CELLS}
    names = {cell.name for cell in matrix.cells()}
    assert direct.LEFT_OUT.keys() <= names
    assert not twins & direct.LEFT_OUT.keys()
    others = {cell.row for cell in matrix.cells() if cell.name not in twins and not cell.reader}
    left = {name.partition("-")[0] for name in direct.LEFT_OUT}
    assert others - left == {"F09", "F10", "F11", "F12", "F29", "F30", "F31", "F32", "F33", "F34"}


def test_the_program_under_test_is_told_the_reader(tmp_path: Path) -> None:
    """And nothing where the cell leaves it to the program."""
    for cell, told in ((QUIET, False), (replace(QUIET, reader="direct"), True)):
        program = _stage(tmp_path, cell, ("echo",)).writer("--follow", name=f"told-{told}")
        assert program.wait(Deadline(10)) == 0
        assert ("--reader direct" in program.printed()) is told


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

    def play(stage: Stage) -> None:
        _up(stage.writer())
        stage.until(lambda: how == "alone" or bool(holders(stage.writers[0])), "a holder")

    cell = replace(direct.twin(QUIET), play=play)
    stage = _stage(tmp_path, cell, (sys.executable, "-c", LISTENS, how))
    judged = judge.Judgement()
    with stage.programs:
        runner.break_it(stage)
        judge.guard(stage, judged)
    assert (judged.verdict, stage.fired[HOLDERS]) == (verdict, int(how == "held"))
