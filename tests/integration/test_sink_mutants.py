"""
Bugs put into the sink on purpose: each scene is clean without its bug, and shows it with it.

The bugs are in the driver's part of `writers="tasks"`, the part that this process runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from harness.pipeline import Stage
from harness.sinks import SinkStage, numbers
from pyspark.sql import functions as sf
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from brew.errors import Abortable, Refused
from brew.kafka.shared_transaction import SharedTransaction
from brew.names import CrashMode, CrashPoint
from brew.sink import position, shared
from brew.sink.batch import BatchJob, SinkCrash

Patch = pytest.MonkeyPatch
ROWS = 90


# Scenes: what happens, and whether readers see what they should.


def replayed(it: SinkStage, _patch: Patch) -> bool:
    """A batch that is out is run again, as after a kill in front of Spark's commit log."""
    it.feed(ROWS)
    it.run(it.copied(), it.sink())
    it.forget_last_commit()
    it.run(it.copied(), it.sink())
    return it.values() == numbers(ROWS)


def replayed_with_state(it: SinkStage, _patch: Patch) -> bool:
    """The same with a stateful query."""
    it.feed(ROWS)
    it.run(it.counted(), it.sink(), "update")
    it.forget_last_commit()
    it.run(it.counted(), it.sink(), "update")
    return set(Counter(it.totals()).values()) == {1}


def answer_lost(it: SinkStage, patch: Patch) -> bool:
    """The second batch's commit is applied, and its answer is lost."""
    end, errors = SharedTransaction._end, [Abortable("commit: the answer was lost")]

    def lose_answer(self: SharedTransaction, deadline: Any, *, committed: bool) -> None:
        end(self, deadline, committed=committed)
        if committed and errors:
            raise errors.pop()

    it.feed(ROWS)
    it.run(it.copied(), it.sink())
    it.feed(ROWS, start=ROWS)
    patch.setattr(SharedTransaction, "_end", lose_answer)
    it.run(it.copied(), it.sink())
    return it.values() == numbers(2 * ROWS) and not errors


def task_died(it: SinkStage, _patch: Patch) -> bool:
    """A task dies half way through its rows."""
    it.feed(ROWS)
    it.run(it.copied(), it.sink(_crash=SinkCrash(CrashPoint.MID_PRODUCE, 0, CrashMode.WORKER)))
    return it.values() == numbers(ROWS)


def one_output_partition(it: SinkStage, _patch: Patch) -> bool:
    """Rows of all tasks name the same output partition."""
    it.feed(ROWS)
    it.run(it.source().select("key", "value", sf.lit(1).alias("partition")), it.sink())
    return it.values() == numbers(ROWS)


def other_checkpoint(it: SinkStage, _patch: Patch) -> bool:
    """A query begins anew under the same name, with more input in the batch of the same id: refused."""
    it.feed(ROWS)
    it.run(it.copied(), it.sink())
    it.feed(ROWS, start=ROWS)
    with pytest.raises(Refused, match="two queries have one name, or the checkpoint was deleted"):
        it.run(it.copied(), it.sink(), checkpoint=it.folder / "other")
    return it.values() == numbers(ROWS)


# Bugs.


def no_locate(patch: Patch) -> None:
    """Each batch is taken for a new one."""
    patch.setattr(BatchJob, "is_new", lambda *_: True)


def plan_not_run(patch: Patch) -> None:
    """A batch that is out already returns without running its plan."""

    class Nothing:
        def __getattr__(self, _name: str) -> Callable[..., Nothing]:
            return lambda *_: self

    patch.setattr(ClassicFrame, "write", property(lambda _self: Nothing()))


def position_behind_the_transaction(patch: Patch) -> None:
    """The position is sent once the rows are committed, in a transaction of its own."""
    send, commit = SharedTransaction.send_offsets, SharedTransaction.commit

    def keep(self: SharedTransaction, until: int, metadata: str, _deadline: Any) -> None:
        vars(self)["kept"] = until, metadata

    def commit_then_send(self: SharedTransaction, deadline: Any) -> None:
        commit(self, deadline)
        self.fence(deadline)
        self.begin()
        send(self, *vars(self)["kept"], deadline)
        commit(self, deadline)

    patch.setattr(SharedTransaction, "send_offsets", keep)
    patch.setattr(SharedTransaction, "commit", commit_then_send)


def retry_in_the_same_epoch(patch: Patch) -> None:
    """Only the first attempt at a batch fences."""
    fence, fenced = SharedTransaction.fence, list[bool]()

    def once(self: SharedTransaction, deadline: Any) -> None:
        if not fenced:
            fence(self, deadline)
        fenced.append(True)

    patch.setattr(SharedTransaction, "fence", once)
    patch.setattr(SharedTransaction, "invalidate", lambda _self: None)


def overlap_not_checked(patch: Patch) -> None:
    """Two tasks may write to one partition."""
    patch.setattr(shared, "checked", lambda _shares: None)


def metadata_ignored(patch: Patch) -> None:
    """Who wrote the position, and from what, is not looked at."""
    patch.setattr(position, "_metadata_of", lambda _batch, _committed: None)


class Case(NamedTuple):
    """
    ``sign``: what the query or the scene says where it does not come to rows that are wrong.

    ``clean``: the test of another file that runs the scene without the bug; None: one of this file does.
    """

    bug: Callable[[Patch], None]
    scene: Callable[[SinkStage, Patch], bool]
    clean: str | None = None
    sign: str = ""


CASES = [
    Case(no_locate, replayed, "test_ways_to_write_may_change_between_runs"),
    Case(
        plan_not_run,
        replayed_with_state,
        "test_a_batch_that_is_out_already_runs_its_plan_and_drops_its_rows",
        "(?i)state.?store.?commit",
    ),
    Case(position_behind_the_transaction, answer_lost),
    Case(retry_in_the_same_epoch, task_died, "test_a_killed_task_ends_the_batch_which_begins_again"),
    Case(
        overlap_not_checked,
        one_output_partition,
        "test_rows_of_one_partition_in_two_tasks_end_the_batch_which_is_shuffled_then",
    ),
    Case(metadata_ignored, other_checkpoint, "test_a_checkpoint_that_was_deleted", "DID NOT RAISE"),
]


@pytest.fixture
def it(stage: Stage, tmp_path: Path) -> SinkStage:
    it = SinkStage(stage, tmp_path, "tasks")
    it.create()
    return it


@pytest.mark.parametrize("case", [case for case in CASES if case.clean is None], ids=lambda case: case.bug.__name__)
def test_the_scene_is_clean_without_the_bug(it: SinkStage, case: Case, monkeypatch: Patch) -> None:
    assert case.scene(it, monkeypatch)


def test_every_other_scene_has_a_test_that_runs_it_clean() -> None:
    text = "".join(file.read_text() for file in Path(__file__).parents[1].rglob("test_sink*.py"))
    assert [case.clean for case in CASES if case.clean is not None and f"def {case.clean}(" not in text] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.bug.__name__)
def test_the_scene_shows_the_bug(it: SinkStage, case: Case, monkeypatch: Patch) -> None:
    """Rows are lost or doubled, or the query comes to nothing for the reason that the bug stands for."""
    case.bug(monkeypatch)
    if case.sign:
        with pytest.raises((Refused, pytest.fail.Exception)) as caught:
            case.scene(it, monkeypatch)
        # Spark's own sentence is below "Exception thrown in awaitResult".
        assert re.search(case.sign, f"{caught.value}{getattr(caught.value.__cause__, '_stackTrace', '')}")
    else:
        assert not case.scene(it, monkeypatch)
