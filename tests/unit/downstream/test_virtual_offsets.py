"""Which record may run and which offset may be stored."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.errors import UsageError
from downstream.virtual.scheduling import KeyedQueue, OffsetTracker, Retries


class Hasty(OffsetTracker):
    """The fault that the tracker is there against: the last finished offset is stored."""

    def finish(self, offset: int) -> None:
        super().finish(offset)
        self.hasty = max(getattr(self, "hasty", 0), offset + 1)

    @property
    def position(self) -> int:
        return max(getattr(self, "hasty", 0), super().position)


def skipped(tracker: OffsetTracker, taken: list[int], finished: list[int]) -> list[int]:
    """Records below the position that a crash now would lose."""
    return [one for one in taken if one < tracker.position and one not in finished]


@settings(max_examples=150, deadline=None)
@given(st.data(), st.lists(st.integers(0, 200), unique=True, max_size=60).map(sorted))
def test_no_unfinished_record_is_ever_below_the_position(data: st.DataObject, log: list[int]) -> None:
    tracker = OffsetTracker(0)
    taken: list[int] = []
    finished: list[int] = []
    before = 0
    while len(finished) < len(log):
        open_ones = [one for one in taken if one not in finished]
        if open_ones and (len(taken) == len(log) or data.draw(st.booleans())):
            finished.append(one := data.draw(st.sampled_from(open_ones)))
            tracker.finish(one)
        else:
            taken.append(log[len(taken)])
            tracker.take(taken[-1])
        assert skipped(tracker, taken, finished) == []
        assert tracker.position >= before
        before = tracker.position
        left = [one for one in taken if one not in finished]
        assert tracker.position == (min(left) if left else taken[-1] + 1), "a lower position would repeat finished work"
        assert tracker.unfinished == len(left)
        assert tracker.span == len([one for one in taken if one >= tracker.position])
    tracker.passed(500)
    assert tracker.position == 500, "markers behind the last record need no effect"


def test_a_tracker_that_stores_the_last_finished_offset_is_caught() -> None:
    """The look above goes red where a hole is stepped over."""
    tracker = Hasty(0)
    for offset in (0, 1, 2):
        tracker.take(offset)
    tracker.finish(2)
    assert skipped(tracker, [0, 1, 2], [2]) == [0, 1]


def test_what_was_not_taken_can_not_be_finished() -> None:
    tracker = OffsetTracker(10)
    assert (tracker.position, tracker.span, tracker.unfinished) == (10, 0, 0)
    tracker.take(12)
    assert (tracker.position, tracker.span, tracker.unfinished) == (12, 1, 1)
    for wrong in (9, 10, 11, 13):
        with pytest.raises(ValueError, match=f"^offset {wrong} is not in progress$"):
            tracker.finish(wrong)
    tracker.finish(12)
    with pytest.raises(ValueError, match="not in progress"):
        tracker.finish(12)
    with pytest.raises(ValueError, match=r"^offset 12 was read already: the next one is 13 or later$"):
        tracker.take(12)
    assert (tracker.position, tracker.span, tracker.unfinished) == (13, 0, 0)


Pieces = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 999)), max_size=40)


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), Pieces)
def test_a_keys_pieces_are_finished_in_order_one_at_a_time(dice: random.Random, pieces: list[tuple[str, int]]) -> None:
    queue: KeyedQueue[tuple[str, int]] = KeyedQueue()
    running: dict[str, tuple[str, int]] = {}
    done: list[tuple[str, int]] = []
    now, left = 0.0, pieces[::-1]
    while len(done) < len(pieces):
        step = dice.choice(["put"] * bool(left) + ["take"] + ["finish", "finish", "put off"] * bool(running))
        if step == "put":
            queue.put(left[-1][0], left.pop())
        elif step == "take":
            now += 1
            if (taken := queue.take(now)) is not None:
                assert taken[0] not in running, "two workers had one key"
                running[str(taken[0])] = taken[1]
        else:
            key = dice.choice(sorted(running))
            if step == "finish":
                queue.finish(key)
                done.append(running.pop(key))
            else:
                queue.put_off(key, now + dice.randrange(5))
                del running[key]
    for key in "abc":
        assert [one for one in done if one[0] == key] == [one for one in pieces if one[0] == key]
    assert len(queue) == 0


def test_a_key_that_waits_holds_up_no_other() -> None:
    """The second piece of the waiting key waits too, at the last early moment and not at the first late one."""
    queue: KeyedQueue[int] = KeyedQueue()
    for key, piece in (("a", 1), ("a", 2), ("b", 3)):
        queue.put(key, piece)
    assert queue.take(0.0) == ("a", 1)
    queue.put_off("a", 5.0)
    assert queue.take(0.0) == ("b", 3)
    queue.finish("b")
    assert (queue.take(4.999), queue.due()) == (None, 5.0)
    assert queue.take(5.0) == ("a", 1)
    queue.finish("a")
    assert queue.take(5.0) == ("a", 2)


@pytest.mark.parametrize(("taken", "end", "position"), [(4, 9, 9), (9, 5, 10)])
def test_the_logs_end_passes_no_unfinished_record_and_takes_nothing_back(taken: int, end: int, position: int) -> None:
    """One that was seen earlier may lie below what has been read by now."""
    tracker = OffsetTracker(3)
    tracker.take(taken)
    tracker.passed(end)
    assert tracker.position == taken
    tracker.finish(taken)
    assert tracker.position == position
    for seen, moved in ((position - 1, position), (20, 20), (19, 20)):
        tracker.passed(seen)
        assert tracker.position == moved
    with pytest.raises(ValueError, match="read already"):
        tracker.take(19)
    tracker.take(20)


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
    assert [queue.take(3.0) for _ in range(5)] == [*((key, f"of {key!r}") for key in ("b", None, 4, b"a")), None]
    assert queue.due() is None


def test_the_pause_after_a_failure_is_the_first_one_doubled_until_the_longest() -> None:
    """64 doublings are enough for any; more would be a number that no double holds."""
    assert [Retries(3, 0.5, 100.0).after(failures) for failures in (1, 2, 3, 4)] == [0.5, 1.0, None, None]
    assert [Retries(4, 0.5, 1.5).after(failures) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 1.5, None]
    assert Retries(attempts=10**6).after(10**5) == 10.0
    endless = Retries(10**6, 1.0, 1e30)
    assert endless.after(64) == 2.0**63
    assert endless.after(65) == endless.after(66) == endless.after(99_999) == 2.0**64
    assert isinstance(Retries(3, 1, 10).after(1), float)
    assert Retries(1, 5.0, 5.0).after(0) == 2.5
    assert Retries(1).after(1) is None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ((0,), "--attempts is 0"),
        ((1, 0.0), "--back-off-s is 0 "),
        ((1, 2.1, 2.0), "--back-off-s is 2.1"),
        ((5, 20.0), "--back-off-s is 20 "),
    ],
)
def test_retries_that_make_no_sense_are_refused(fields: tuple[float, ...], named: str) -> None:
    Retries(1, 2.0, 2.0)
    with pytest.raises(UsageError, match=f"^{named}"):
        Retries(*fields)
