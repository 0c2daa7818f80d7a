"""Liveness, readiness and lag of partitions."""

from __future__ import annotations

import dataclasses

import pytest
from harness.recorded import PLACE, TimedRecorder

from brew.observability.counters import Ending, Rate
from brew.observability.health import BROKERS, Bounds, Partition, Program, live, ready, started, state_of
from brew.observability.status import UNHEALTHY, PartitionState, PartitionStatus, Phase, State

BOUNDS = Bounds(polling_ttl_s=300, consuming_ttl_s=200, unanswered_ttl_s=180)
WELL = Partition(1000, Rate(1000))
HELD_BACK = {"blocked_since": 0, "position": 5, "last_stable": 5, "end": 8}
LOOKED_AT = {"polled_at": 10_000_000 - 300}


def state(now: float, fatal: str = "", **times: object) -> PartitionState:
    return dataclasses.replace(WELL, **times).state_and_reason(BOUNDS, fatal, now)[0]


@pytest.mark.parametrize(
    ("now", "times", "expected"),
    [
        (1300, {}, PartitionState.IDLE),
        (1300.001, {}, PartitionState.STUCK),
        (1200, {"waiting_since": 1000}, PartitionState.WORKING),
        (1200.001, {"waiting_since": 1000}, PartitionState.STUCK),
        (1200, {"waiting_since": 1000, "fenced": True}, PartitionState.FENCED),
        (1200.001, {"waiting_since": 1000, "fenced": True}, PartitionState.STUCK),
        (1180, {"unanswered_since": {BROKERS: 1000}, "waiting_since": 900}, PartitionState.BLOCKED),
        (1180.001, {"unanswered_since": {BROKERS: 1000}}, PartitionState.STUCK),
        (1300, HELD_BACK, PartitionState.BLOCKED),
        (1300.001, HELD_BACK, PartitionState.STUCK),
        (1000, {"fatal": "gone"}, PartitionState.UNRECOVERABLE),
        # A quiet night, and an upstream that sleeps over its open transaction, are no reasons to restart anything.
        (10_000_000, LOOKED_AT, PartitionState.IDLE),
        (10_000_000, {**LOOKED_AT, "blocked_since": 0.0}, PartitionState.BLOCKED),
        (10_000_000, {**LOOKED_AT, **HELD_BACK}, PartitionState.BLOCKED),
        # A thread that hangs leaves the rest of what is known as it was, so that comes first.
        (1301, {"unanswered_since": {BROKERS: 1290.0}}, PartitionState.STUCK),
        (1301, {"blocked_since": 1290.0}, PartitionState.STUCK),
        (1301, {"waiting_since": 1290.0, "fenced": True}, PartitionState.STUCK),
    ],
)
def test_each_state_holds_to_its_very_edge(now: float, times: dict[str, object], expected: PartitionState) -> None:
    """The last good second, and the first bad one; blocked is only ill when nobody looks any more."""
    assert state(now, **times) is expected
    assert {PartitionState.IDLE, PartitionState.BLOCKED}.isdisjoint(UNHEALTHY)


def test_the_reason_names_number_limit_and_what_went_wrong() -> None:
    partition = dataclasses.replace(WELL, waiting_since=1000, position=5, last_stable=25, last_error="fenced: epoch 3")
    _, reason = partition.state_and_reason(BOUNDS, "", 1201)
    assert reason == "20 offsets to read, no progress for 201 s (--consuming-ttl 200): fenced: epoch 3"


# The program as a whole.


def partition(number: int, of: PartitionState) -> PartitionStatus:
    return PartitionStatus("orders", number, of, f"reason {number}")


@pytest.mark.parametrize("of", list(PartitionState))
def test_one_ill_partition_among_many_is_enough_and_is_named(of: PartitionState) -> None:
    """A check of the process as a whole misses the one partition that is stuck."""
    many = [*(partition(n, PartitionState.IDLE) for n in range(7)), partition(7, of)]
    verdict = live(Program(Phase.WORKING, 1000), many, BOUNDS, 1000)
    assert verdict.ok is (of not in UNHEALTHY)
    if not verdict.ok:
        assert verdict.reason == f"orders[7] is {of}: reason 7"


def test_many_ill_partitions_are_told_in_a_line() -> None:
    verdict = live(Program(Phase.WORKING, 0), [partition(n, PartitionState.STUCK) for n in range(64)], BOUNDS, 0)
    assert verdict.reason.count("is stuck") == 3
    assert verdict.reason.endswith("and 61 more")


@pytest.mark.parametrize("phase", [Phase.WORKING, Phase.STANDING_BY])
def test_a_program_without_partitions_lives_as_long_as_its_heart_beats(phase: Phase) -> None:
    """Who stands by has nothing to be stuck at; liveness would kill a slow start again and again."""
    assert live(Program(phase, 1000), [], BOUNDS, 1300).ok
    assert not live(Program(phase, 1000), [], BOUNDS, 1300.001).ok
    slow = Program(Phase.STARTING, 0)
    alive = live(slow, [], BOUNDS, 100_000)
    assert (alive.ok, started(slow).ok, ready(slow, alive).ok) == (True, False, False)
    assert live(Program(Phase.STOPPING, 0), [partition(0, PartitionState.STUCK)], BOUNDS, 100_000).ok


@pytest.mark.parametrize(
    ("phase", "begun", "able"),
    [
        (Phase.STARTING, False, False),
        (Phase.STANDING_BY, True, True),
        (Phase.WORKING, True, True),
        (Phase.STOPPING, True, False),
        (Phase.STOPPED, True, False),
    ],
)
def test_ready_is_who_works_or_could_at_once(phase: Phase, begun: bool, able: bool) -> None:
    """A driver that stands by is ready to take over, so a rollout may go on."""
    program = Program(phase, 0)
    assert (started(program).ok, ready(program, live(program, [], BOUNDS, 0)).ok) == (begun, able)


def test_brokers_or_a_store_that_are_away_make_a_program_unready_and_leave_it_alive() -> None:
    """A rollout whose new pods can't reach the database must stop; a restart brings neither back."""
    program = Program(Phase.WORKING, 1000, unanswered_reason="no answer")
    alive = live(program, [partition(0, PartitionState.BLOCKED)], BOUNDS, 1000)
    assert alive.ok
    assert ready(program, alive).reason == "the brokers do not answer: no answer"
    program = Program(Phase.WORKING, 1000)
    alive = live(program, [partition(0, PartitionState.BLOCKED)], BOUNDS, 1000)
    assert alive.ok
    assert ready(program, alive, "no route").reason == "every partition waits: no route"
    ill = live(program, [partition(0, PartitionState.STUCK)], BOUNDS, 1000)
    assert ready(program, ill, "no route").reason == ill.reason


def test_a_topic_that_was_deleted_makes_a_program_unready_and_leaves_it_alive() -> None:
    """A run can't write until the topic exists again; a restart creates it, but its records are gone."""
    program = Program(Phase.WORKING, 1000, missing="output topic 'out' does not exist any more")
    alive = live(program, [partition(0, PartitionState.IDLE)], BOUNDS, 1000)
    assert alive.ok
    answer = ready(program, alive)
    assert (answer.ok, answer.reason) == (
        False,
        "output topic 'out' does not exist any more; what is missing is created at the next start",
    )


def test_what_is_fatal_is_told_in_every_phase() -> None:
    for phase in Phase:
        program = Program(phase, 0, fatal="input-lost")
        alive = live(program, [], BOUNDS, 0)
        assert (alive.ok, alive.reason) == (False, "unrecoverable: input-lost")
        assert not ready(program, alive).ok


def test_a_program_whose_partitions_are_all_idle_is_idle() -> None:
    idle, busy = partition(0, PartitionState.IDLE), partition(1, PartitionState.FENCED)
    assert state_of(Program(Phase.WORKING, 0), [idle]) is State.IDLE
    assert state_of(Program(Phase.WORKING, 0), [idle, busy]) is State.WORKING
    assert state_of(Program(Phase.STANDING_BY, 0), []) is State.IDLE
    assert state_of(Program(Phase.STOPPING, 0), [busy]) is State.STOPPING


def test_the_lag_in_seconds_is_0_where_nothing_is_left_and_else_as_old_as_the_last_one_done(
    scene: TimedRecorder,
) -> None:
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


def test_who_does_not_know_its_records_times_tells_no_age_of_what_is_left(scene: TimedRecorder) -> None:
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
