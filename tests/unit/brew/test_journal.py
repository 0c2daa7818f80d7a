"""The journal: whole lines are read back in order, a line that a kill cut off is not, and runs fold what follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from brew.errors import UsageError
from brew.journal import Journal, Phase, Run, Step, check_folder, entries, journal_entries, runs


def test_what_is_written_is_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new", "writer")
    journal.write(Step.COMMIT, Phase.INTENT, topic="orders", partition=3)
    journal.write(Step.COMMIT, topic="orders", partition=3)
    journal.close()
    read_back = list(entries(tmp_path / "new"))
    assert [(one.step, one.phase) for one in read_back] == [(Step.COMMIT, Phase.INTENT), (Step.COMMIT, Phase.DONE)]
    assert all(one.who == "writer" and one.fields == {"topic": "orders", "partition": 3} for one in read_back)
    assert read_back[0].at <= read_back[1].at


def test_a_text_that_utf_8_can_not_encode_is_written_as_near_as_can_be(tmp_path: Path) -> None:
    """The name of a function's file may have such a byte; it ended the run with a stack trace."""
    journal = Journal(tmp_path, "writer")
    journal.write(Step.OUTCOME, detail="f\udcff.py: é", position=7)
    journal.close()
    assert [one.fields for one in entries(tmp_path)] == [{"detail": "f?.py: é", "position": 7}]


@pytest.mark.parametrize("wrong", ["file", "file/below", "a\0b"])
def test_a_folder_that_can_not_be_written_is_refused_before_the_run(tmp_path: Path, wrong: str) -> None:
    """Each range would fail at the end of its transaction."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--journal is '.*', which can't be written: .+; name a directory"):
        check_folder(f"{tmp_path}/{wrong}", "--journal")
    check_folder(f"{tmp_path}/new/\udcff", "--journal")
    assert (tmp_path / "new/\udcff").is_dir()


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "writer")
    journal.write(Step.FENCE)
    journal.write(Step.LOCATE, position=7)
    journal.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-4])
    assert [one.step for one in entries(tmp_path)] == [Step.FENCE]


@pytest.mark.parametrize(
    "line", [b"garbage\n", b"\xff\n", b"{}\n", b"[]\n", b'{"at":1,"who":"w","pid":1,"step":"x","phase":"done"}\n']
)
def test_a_file_that_is_no_journal_is_refused_by_name(tmp_path: Path, line: bytes) -> None:
    """It was a stack trace and exit code 1, which means that `verify` has found a violation."""
    (tmp_path / "other.jsonl").write_bytes(line)
    with pytest.raises(UsageError, match=r"--journals is .* is not a journal entry .*; name a directory"):
        list(journal_entries(tmp_path, "--journals"))


def test_runs_fold_records_that_follow_each_other_on_both_sides() -> None:
    places = [(0, 1, 10), (1, 1, 11), (2, 1, 12), (4, 1, 13), (5, 1, 20), (6, 2, 21), (7, -1, -1), (8, -1, -1)]
    assert runs(places) == [Run(0, 1, 10, 3), *(Run(*place, 1) for place in places[3:])]
