"""How old what is left is, as the memory of a running program tells it."""

from __future__ import annotations

import pytest
from harness.recorded import PLACE, Scene

from brew.observability.counters import Ending


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_the_lag_in_seconds_is_0_where_nothing_is_left_and_else_as_old_as_the_last_one_done(scene: Scene) -> None:
    """The scene's clock is the wall's, too: at 1000 s a record of 900,000 ms is 100 s old."""

    def lag_s() -> float | None:
        return scene.partition().lag_s

    scene.recorder.polled([PLACE])
    assert lag_s() is None
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    scene.after(7)
    assert lag_s() == 7, "at the start nobody knows more: it has been there since then at least"
    scene.end(Ending.ABORTED, newest_ms=1_000_000)
    assert lag_s() == 7, "what was not committed is not done"
    scene.end(Ending.COMMITTED, 0, 5, newest_ms=907_000)
    assert lag_s() == 100
    scene.after(5).surveyed(PLACE, 5, 10, 10)
    assert lag_s() == 105
    scene.end(Ending.COMMITTED, 5, 10, newest_ms=950_000)
    assert lag_s() == 0
    scene.after(50).surveyed(PLACE, 10, 12, 12)
    scene.after(2)
    assert lag_s() == 2, "what came after a pause is not as old as the last one before it"
    scene.end(Ending.COMMITTED, 10, 11, newest_ms=9_999_000)
    assert lag_s() == 0, "from a clock that is ahead of ours"


def test_who_does_not_know_its_records_times_tells_no_age_of_what_is_left(scene: Scene) -> None:
    """A small number would be a lie: a position that moves may be hours behind."""
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    scene.after(3).moved(PLACE, 5)
    assert scene.partition().lag_s is None
    scene.recorder.moved(PLACE, 6, 1_000_000)
    assert scene.partition().lag_s == 3
    scene.recorder.moved(PLACE, 7, -1)
    assert scene.partition().lag_s is None
    scene.recorder.moved(PLACE, 10)
    assert scene.partition().lag_s == 0
