"""Several cells at once: taken from both ends, each told once, and an error ends the campaign."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proof.campaign import campaign, result
from proof.campaign.campaign import Plan, run_campaign
from proof.campaign.cell import Cell
from proof.campaign.result import Result
from proof.campaign.runner import RunSettings

MEET_S = 20.0


def _cell(name: str, meet: Callable[[], object]) -> Cell:
    def experiment(_bootstrap: str, seed: int, _kills: int) -> dict[str, Any]:
        meet()
        about = dict.fromkeys(("row", "fault", "target", "moment", "path", "began"), "")
        return {**about, "seed": seed, "verdict": "proven", "seconds": 0.0, "bound_s": None}

    return Cell(name, "T", "nothing", "nobody", "never", lambda _stage: None, experiment=experiment)


def _plan(folder: Path, cells: list[Cell], at_once: int) -> Plan:
    return Plan(cells, [1], RunSettings(folder), "test", bootstrap="nowhere:1", at_once=at_once)


def test_two_lanes_work_at_the_same_time_from_both_ends(tmp_path: Path) -> None:
    """The first two meet, or neither goes on; every cell is told once, and stands in the file once."""
    both = threading.Barrier(2)
    cells = [_cell(name, lambda: both.wait(MEET_S)) for name in "abcd"]
    began: list[str] = []
    told: list[Result] = []
    done = run_campaign(_plan(tmp_path, cells, 2), lambda cell, _seed: began.append(cell.name), told.append)
    assert set(began[:2]) == {"a", "d"}
    assert sorted(one.cell for one in told) == list("abcd")
    assert [one.cell for one in result.finished(tmp_path)] == [one.cell for one in done] == [one.cell for one in told]


def test_one_lane_keeps_the_order(tmp_path: Path) -> None:
    cells = [_cell(name, bool) for name in "abc"]
    done = run_campaign(_plan(tmp_path, cells, 1), lambda _cell, _seed: None, lambda _result: None)
    assert [one.cell for one in done] == list("abc")


def test_no_cell_begins_when_time_is_up_and_those_left_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has begun is finished, and counts."""
    up = threading.Event()
    monkeypatch.setattr(campaign, "Deadline", lambda _seconds: SimpleNamespace(expired=up.is_set))
    cells = [_cell("a", up.set), _cell("b", bool)]
    plan = replace(_plan(tmp_path, cells, 1), begin_within_s=60.0)
    done = run_campaign(plan, lambda _cell, _seed: None, lambda _result: None)
    assert ([one.cell for one in done], plan.missing_in(done)) == (["a"], ["b with seed 1"])


@pytest.mark.parametrize("at_once", [1, 2])
def test_an_error_in_a_lane_ends_the_campaign_and_is_raised(tmp_path: Path, at_once: int) -> None:
    """What was done before it is written down."""

    def fail() -> None:
        raise OSError("no brokers here")

    cells = [_cell("a", bool), _cell("b", bool), _cell("c", fail), *(_cell(f"d{n}", fail) for n in range(3))]
    with pytest.raises(OSError, match="no brokers here"):
        run_campaign(_plan(tmp_path, cells, at_once), lambda _cell, _seed: None, lambda _result: None)
    assert (tmp_path / result.WHOLE).exists()
    assert {one.cell for one in result.finished(tmp_path)} <= {"a", "b"}
