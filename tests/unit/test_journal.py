"""The journal: whole lines are read back in order, a line that a kill cut off is not, and runs fold what follows."""

from __future__ import annotations

from pathlib import Path

from brew.journal import Journal, Phase, Run, Step, entries, runs


def test_what_is_written_is_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new", "writer")
    journal.write(Step.COMMIT, Phase.INTENT, topic="orders", partition=3)
    journal.write(Step.COMMIT, topic="orders", partition=3)
    journal.close()
    read_back = list(entries(tmp_path / "new"))
    assert [(one.step, one.phase) for one in read_back] == [(Step.COMMIT, Phase.INTENT), (Step.COMMIT, Phase.DONE)]
    assert all(one.who == "writer" and one.fields == {"topic": "orders", "partition": 3} for one in read_back)
    assert read_back[0].at <= read_back[1].at


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "writer")
    journal.write(Step.FENCE)
    journal.write(Step.LOCATE, position=7)
    journal.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-4])
    assert [one.step for one in entries(tmp_path)] == [Step.FENCE]


def test_runs_fold_records_that_follow_each_other_on_both_sides() -> None:
    places = [(0, 1, 10), (1, 1, 11), (2, 1, 12), (4, 1, 13), (5, 1, 20), (6, 2, 21), (7, -1, -1), (8, -1, -1)]
    assert runs(places) == [Run(0, 1, 10, 3), *(Run(*place, 1) for place in places[3:])]
