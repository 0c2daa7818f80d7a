"""The tracker, the queue by key and the back-off at the edge of each rule."""

from __future__ import annotations

import pytest

from brew.errors import UsageError
from downstream.virtual.scheduling import KeyedQueue, OffsetTracker, Retries


def test_a_tracker_begins_at_its_start_with_nothing_in_work() -> None:
    tracker = OffsetTracker(7)
    assert (tracker.position, tracker.span, tracker.unfinished) == (7, 0, 0)
    tracker.take(7)
    assert (tracker.position, tracker.span, tracker.unfinished) == (7, 1, 1)
    with pytest.raises(ValueError, match=r"^offset 7 was read already: the next one is 8 or later$"):
        tracker.take(7)
    with pytest.raises(ValueError, match=r"^offset 8 is not in work$"):
        tracker.finish(8)
    tracker.finish(7)
    assert (tracker.position, tracker.span, tracker.unfinished) == (8, 0, 0)


def test_the_end_of_the_log_never_moves_a_tracker_back() -> None:
    tracker = OffsetTracker(7)
    tracker.passed(6)
    assert tracker.position == 7
    tracker.passed(9)
    tracker.passed(8)
    assert tracker.position == 9
    with pytest.raises(ValueError, match="read already"):
        tracker.take(8)
    tracker.take(9)


def test_finished_records_behind_a_hole_count_until_the_hole_is_filled() -> None:
    tracker = OffsetTracker(0)
    for offset in (0, 1, 5):
        tracker.take(offset)
    tracker.finish(1)
    assert (tracker.position, tracker.span, tracker.unfinished) == (0, 3, 2)
    tracker.finish(0)
    assert (tracker.position, tracker.span, tracker.unfinished) == (5, 1, 1)


def test_what_was_put_off_comes_back_by_time_then_by_turn() -> None:
    """Keys need not be comparable with each other."""
    queue: KeyedQueue[str] = KeyedQueue()
    keys = [b"a", "b", None, 4]
    for key in keys:
        queue.put(key, f"of {key!r}")
        queue.put(key, "second")
        queue.take(0.0)
    assert (len(queue), queue.due(), queue.take(0.0)) == (8, None, None)
    for key, until in zip(keys, (3.0, 2.0, 2.0, 2.0), strict=True):
        queue.put_off(key, until)
    assert queue.due() == 2.0
    assert queue.take(1.9) is None
    assert [queue.take(3.0) for _ in range(5)] == [
        ("b", "of 'b'"),
        (None, "of None"),
        (4, "of 4"),
        (b"a", "of b'a'"),
        None,
    ]
    assert queue.due() is None


def test_a_key_whose_last_piece_is_finished_begins_anew() -> None:
    queue: KeyedQueue[int] = KeyedQueue()
    queue.put("a", 1)
    assert queue.take(0.0) == ("a", 1)
    queue.finish("a")
    assert (len(queue), queue.take(0.0)) == (0, None)
    queue.put("a", 2)
    assert queue.take(0.0) == ("a", 2)


def test_the_pause_after_a_failure_is_the_first_one_doubled_until_the_longest() -> None:
    """64 doublings are enough for any; more would be a number that no double holds."""
    assert [Retries(3, 0.5, 100.0).after(failures) for failures in (1, 2, 3, 4)] == [0.5, 1.0, None, None]
    endless = Retries(10**6, 1.0, 1e30)
    assert endless.after(64) == 2.0**63
    assert endless.after(65) == endless.after(66) == endless.after(99_999) == 2.0**64
    assert isinstance(Retries(3, 1, 10).after(1), float)  # type: ignore[arg-type]
    assert Retries(1, 5.0, 5.0).after(0) == 2.5
    assert Retries(1).after(1) is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [((0,), "--attempts is 0"), ((1, 0.0), "--back-off-s is 0 "), ((1, 2.1, 2.0), "--back-off-s is 2.1")],
)
def test_retries_that_make_no_sense_are_refused(fields: tuple[float, ...], named: str) -> None:
    """One attempt and two equal pauses do."""
    Retries(1, 2.0, 2.0)
    with pytest.raises(UsageError, match=f"^{named}"):
        Retries(*fields)  # type: ignore[arg-type]
