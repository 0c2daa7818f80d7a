"""The memory of a running program, on a clock that the tests move."""

from __future__ import annotations

import copy
import threading

import pytest
from harness.recorded import PLACE, TimedRecorder

from brew.observability.counters import MAX_REASONS, Ended, Ending, Histogram, Rate
from brew.observability.status import Answer, PartitionState, Phase, Status, from_json
from brew.record import OTHER_REASONS


def test_a_partition_that_stands_still_with_work_is_stuck_and_heals_with_a_commit(scene: TimedRecorder) -> None:
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    for _ in range(10):
        scene.after(20).surveyed(PLACE, 0, 10, 10)
    assert scene.state() is PartitionState.WORKING
    assert scene.recorder.status().live.ok
    scene.after(1).surveyed(PLACE, 0, 10, 10)
    assert scene.state() is PartitionState.STUCK
    assert not scene.recorder.status().live.ok
    scene.end(Ending.COMMITTED)
    assert scene.state() is PartitionState.IDLE


def test_commits_that_keep_coming_keep_a_partition_with_endless_work_healthy(scene: TimedRecorder) -> None:
    for number in range(100):
        scene.after(150).surveyed(PLACE, number, 1_000_000, 1_000_000)
        scene.end(Ending.COMMITTED, number, number + 1)
        assert scene.state() is PartitionState.WORKING


@pytest.mark.parametrize("ending", sorted({*Ending} - {Ending.COMMITTED}))
def test_attempts_that_fail_do_not_count_as_progress(scene: TimedRecorder, ending: Ending) -> None:
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    for _ in range(11):
        scene.after(20).surveyed(PLACE, 0, 10, 10)
        scene.end(ending)
    assert scene.state() is PartitionState.STUCK


def test_fenced_is_told_until_something_is_committed(scene: TimedRecorder) -> None:
    scene.recorder.surveyed(PLACE, 0, 20, 20)
    scene.end(Ending.FENCED, detail="a newer attempt")
    assert (scene.state(), scene.partition().transactions.fenced) == (PartitionState.FENCED, 1)
    assert "a newer attempt" in scene.partition().reason
    scene.end(Ending.COMMITTED)
    assert (scene.state(), scene.partition().reason) == (PartitionState.WORKING, "10 offsets to read")


def test_work_behind_somebodys_open_transaction_is_blocked_and_its_time_does_not_count(scene: TimedRecorder) -> None:
    """When the transaction ends, the partition has its whole time again."""
    scene.recorder.surveyed(PLACE, 10, 10, 15)
    for _ in range(100):
        scene.after(100).surveyed(PLACE, 10, 10, 15)
    assert (scene.state(), scene.partition().held_back, scene.partition().lag) == (PartitionState.BLOCKED, 5, 0)
    assert scene.partition().reason == "5 offsets behind an open transaction, for 10000 s"
    scene.after(1).surveyed(PLACE, 10, 15, 15)
    assert scene.state() is PartitionState.WORKING
    scene.after(200).surveyed(PLACE, 10, 15, 15)
    assert scene.state() is PartitionState.WORKING


def test_brokers_that_are_away_are_waited_for_as_long_as_the_program_does(scene: TimedRecorder) -> None:
    """Then it should have ended by itself; when they are back, time starts anew."""
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    for _ in range(18):
        scene.after(10).unanswered("no broker")
    assert scene.state() is PartitionState.BLOCKED
    assert scene.recorder.status().live.ok
    assert not scene.recorder.status().ready.ok
    scene.after(11).unanswered("no broker")
    assert scene.state() is PartitionState.STUCK
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    assert (scene.state(), scene.partition().reason) == (PartitionState.WORKING, "10 offsets to read")
    assert scene.recorder.status().ready.ok
    assert scene.recorder.snapshot()[1].unanswered == 19
    scene.after(200).surveyed(PLACE, 0, 10, 10)
    assert scene.state() is PartitionState.WORKING


def test_each_ending_is_told_as_itself(scene: TimedRecorder) -> None:
    """A commit without an answer may have been applied: who calls it aborted looks for an abort that never was."""
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    for times, ending in enumerate(Ending, 1):
        for _ in range(times):
            scene.end(ending)
        last = scene.partition().last_transaction
        assert last is not None
        assert last.until == (10 if ending is Ending.COMMITTED else None)
    transactions = scene.partition().transactions
    assert {ending: getattr(transactions, ending) for ending in Ending} == {one: n for n, one in enumerate(Ending, 1)}


def test_an_open_transaction_has_an_age(scene: TimedRecorder) -> None:
    scene.recorder.begun(PLACE)
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    assert scene.partition().open_s is None, "nobody has the partition then"
    scene.recorder.begun(PLACE)
    scene.after(2.5)
    assert scene.partition().open_s == 2.5
    scene.end(Ending.INDEFINITE)
    assert scene.partition().open_s is None


@pytest.mark.parametrize(
    ("first", "recovery_s"),
    [(Ending.FENCED, 3.5), (Ending.ABORTED, 3.5), (Ending.INDEFINITE, 3.5), (Ending.REFUSED, 1.5)],
)
def test_recovery_is_from_the_first_failure_in_a_row_to_the_commit(
    scene: TimedRecorder, first: Ending, recovery_s: float
) -> None:
    """A range that somebody else has done is no failure."""
    scene.recorder.surveyed(PLACE, 0, 0, 0)
    scene.after(5)
    scene.end(first)
    scene.after(2)
    scene.end(Ending.INDEFINITE)
    assert scene.recorder.status().totals.recovery_s is None
    scene.after(1.5)
    scene.end(Ending.COMMITTED)
    assert scene.recorder.status().totals.recovery_s == recovery_s
    scene.after(50)
    scene.end(Ending.COMMITTED)
    assert scene.recorder.snapshot()[1].recoveries == 1


def test_what_was_left_over_at_the_start_is_recovered_with_the_first_commit(scene: TimedRecorder) -> None:
    """After a crash that is the time in which nobody worked, as far as this process can know it."""
    scene.after(4).surveyed(PLACE, 0, 10, 10)
    scene.after(1)
    scene.end(Ending.COMMITTED)
    assert scene.recorder.status().totals.recovery_s == 5


def test_what_a_stand_by_finds_is_recovered_from_the_moment_it_works(scene: TimedRecorder) -> None:
    """It had waited for days while another one worked: an alert said that it took days to recover."""
    scene.after(100_000).released()
    scene.recorder.phase(Phase.STANDING_BY)
    scene.after(1).phase(Phase.WORKING)
    scene.after(2).surveyed(PLACE, 0, 10, 10)
    scene.after(1)
    scene.end(Ending.COMMITTED)
    assert scene.recorder.status().totals.recovery_s == 4


@pytest.mark.parametrize(("later_s", "recovery_s"), [(60, 63), (60.5, 1)])
@pytest.mark.parametrize("first_look", ["surveyed", "polled", "released"])
def test_a_partition_that_comes_later_is_recovered_from_then_on(
    scene: TimedRecorder, first_look: str, later_s: float, recovery_s: float
) -> None:
    """It was another one's until a rebalance, also where it is the first one; those of the start come in a minute."""
    recorder = scene.after(2)
    recorder.surveyed(("in", 1), 10, 10, 10) if first_look == "surveyed" else getattr(recorder, first_look)([])
    scene.after(later_s).surveyed(PLACE, 0, 10, 10)
    scene.after(1)
    scene.end(Ending.COMMITTED)
    assert scene.recorder.status().totals.recovery_s == recovery_s


def test_a_position_that_another_one_moved_ends_a_failure_as_a_commit_does(scene: TimedRecorder) -> None:
    """An attempt whose commit got no answer was committed, or a newer holder goes on: the partition moves."""
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    scene.end(Ending.FENCED)
    scene.after(3).surveyed(PLACE, 5, 10, 10)
    assert (scene.state(), scene.partition().progress_age_s) == (PartitionState.WORKING, 0)
    assert scene.recorder.status().totals.recovery_s == 3
    scene.after(1).surveyed(PLACE, 5, 10, 10)
    assert (scene.partition().progress_age_s, scene.recorder.snapshot()[1].recoveries) == (1, 1)


def test_counters_outlive_partitions_that_go_and_come_back(scene: TimedRecorder) -> None:
    """Prometheus takes a counter that falls for a restart."""
    scene.end(Ending.COMMITTED, records=10, dead_letters={"not-json": 2})
    scene.recorder.released([PLACE])
    status, counts = scene.recorder.snapshot()
    assert status.partitions == ()
    assert (status.totals.records, status.totals.dead_letters, status.totals.transactions) == (10, 2, 1)
    before = copy.deepcopy(counts)
    scene.end(Ending.COMMITTED, records=5, steps={"fence": 0.1}, dead_letters={"not-json": 1})
    now = scene.recorder.snapshot()[1]
    scene.end(Ending.COMMITTED, steps={"fence": 0.1})
    assert counts == before, "a copy does not change"
    assert (now.records[PLACE], sum(now.steps["fence"].counts)) == (15, 1)


def test_reasons_without_end_are_counted_together(scene: TimedRecorder) -> None:
    """Each one is a series of Prometheus: a function may name the record in them."""
    for number in range(MAX_REASONS + 9):
        scene.end(Ending.COMMITTED, dead_letters={f"reason-{number}": 1})
    scene.end(Ending.COMMITTED, dead_letters={"reason-0": 1})
    letters = scene.recorder.snapshot()[1].dead_letters
    assert (len(letters), letters[OTHER_REASONS], letters["reason-0"]) == (MAX_REASONS + 1, 9, 2)


def test_who_looks_from_beside_is_no_sign_that_the_loop_lives(scene: TimedRecorder) -> None:
    """A consumer's log ends are asked for by another thread; that one must not hide a loop that hangs."""
    scene.recorder.polled([PLACE])
    scene.recorder.moved(PLACE, 0)
    for _ in range(100):
        scene.after(3).end_offsets(PLACE, 10, 10)
    assert scene.partition().lag == 10
    scene.after(1).end_offsets(PLACE, 10, 10)
    scene.recorder.unanswered("no broker", refresh=False)
    assert (scene.state(), scene.partition().polled_age_s) == (PartitionState.STUCK, 301)
    assert not scene.recorder.status().live.ok
    scene.recorder.released()
    assert "nothing was polled for 301 s" in scene.recorder.status().live.reason


def test_a_program_that_owns_no_partition_is_alive_and_ready_after_an_outage(scene: TimedRecorder) -> None:
    """A driver that shares, with more drivers than partitions: it was restarted every five minutes."""
    scene.recorder.polled([PLACE])
    scene.recorder.unanswered("no broker")
    for _ in range(4):
        scene.after(100).released([PLACE])
    assert (scene.recorder.status().live.ok, scene.recorder.status().ready.ok) == (True, True)


def test_a_store_that_is_away_is_waited_for_although_brokers_answer(scene: TimedRecorder) -> None:
    """Each server is counted by itself; both have to be back."""
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    for _ in range(18):
        scene.after(10).waits([PLACE], "the database is away")
        scene.recorder.end_offsets(PLACE, 10, 10)
    assert scene.state() is PartitionState.BLOCKED
    assert (scene.recorder.status().live.ok, scene.recorder.status().ready.ok) == (True, False)
    scene.after(11).end_offsets(PLACE, 10, 10)
    assert scene.state() is PartitionState.STUCK
    scene.recorder.read(PLACE, 10)
    assert scene.state() is PartitionState.WORKING
    scene.recorder.moved(PLACE, 10)
    assert scene.state() is PartitionState.IDLE
    assert scene.recorder.status().totals.recovery_s == 191
    assert scene.recorder.snapshot()[1].unanswered == 18


def test_a_store_that_is_away_is_told_where_nothing_is_left_until_the_loop_has_looked(scene: TimedRecorder) -> None:
    """Such a partition hears from the store only when a record comes."""
    scene.recorder.surveyed(PLACE, 10, 10, 10)
    scene.recorder.waits([PLACE], "the database is away")
    scene.after(5).end_offsets(PLACE, 10, 10)
    assert scene.recorder.status().ready.reason == "every partition waits: the database is away"
    assert scene.partition().reason.endswith("(at most 180 s): the database is away")
    scene.recorder.surveyed(PLACE, 10, 10, 10)
    assert (scene.state(), scene.recorder.status().ready.ok) == (PartitionState.IDLE, True)


def test_of_two_servers_that_are_away_the_first_one_counts(scene: TimedRecorder) -> None:
    """And when it is back the other one's time, not the time of both."""
    scene.recorder.surveyed(PLACE, 0, 10, 10)
    scene.recorder.unanswered("no broker")
    scene.after(100).waits([PLACE], "the database is away")
    scene.after(81).waits([PLACE], "the database is away")
    assert scene.state() is PartitionState.STUCK
    scene.recorder.end_offsets(PLACE, 10, 10)
    assert scene.state() is PartitionState.BLOCKED


@pytest.mark.parametrize("sign", ["phase", "waits", "ended"])
def test_a_loop_that_waits_for_long_is_alive_as_long_as_it_says_so(scene: TimedRecorder, sign: str) -> None:
    """Without partitions, or with those that it lost meanwhile, nothing else tells."""
    signs = {
        "phase": lambda recorder: recorder.phase(Phase.STANDING_BY),
        "waits": lambda recorder: recorder.waits([], "the database is away"),
        "ended": lambda recorder: recorder.ended(Ended(*PLACE, Ending.ABORTED, 0, 10)),
    }
    for _ in range(4):
        signs[sign](scene.after(100))
        scene.recorder._partitions.clear()
    assert scene.recorder.status().live.ok


def test_a_late_report_moves_no_position_back_and_what_is_held_back_counts_from_the_position(
    scene: TimedRecorder,
) -> None:
    """Another thread's last stable offset may be older than the position."""
    scene.recorder.surveyed(PLACE, 8, 20, 20)
    scene.after(5).moved(PLACE, 12)
    scene.after(5).moved(PLACE, 10)
    assert (scene.partition().position, scene.partition().progress_age_s) == (12, 5)
    scene.recorder.end_offsets(PLACE, 10, 15)
    assert (scene.partition().lag, scene.partition().held_back) == (0, 3)


def test_what_a_released_partition_reports_late_brings_it_not_back(scene: TimedRecorder) -> None:
    """Work behind the loop's back may end after the partition has left."""
    scene.recorder.polled([PLACE])
    scene.recorder.released()
    scene.recorder.moved(PLACE, 10)
    assert scene.recorder.topic_partitions() == []


def test_a_driver_that_lost_leadership_over_an_error_is_healthy_again_when_it_stands_by(scene: TimedRecorder) -> None:
    scene.recorder.fatal("fenced")
    scene.recorder.fatal("a second one")
    assert scene.recorder.status().live.reason == "unrecoverable: fenced"
    scene.recorder.phase(Phase.STANDING_BY, "the other works")
    assert scene.recorder.status().live.reason == "standing by: the other works"


def test_a_driver_that_lost_leadership_with_its_brokers_is_ready_when_it_stands_by(scene: TimedRecorder) -> None:
    """Nothing asks for brokers and topics there: `/readyz` failed until it worked again. Its last survey ends late."""
    scene.recorder.missing("output topic 'out' does not exist any more")
    scene.recorder.phase(Phase.STANDING_BY, "the other works")
    scene.recorder.unanswered("no broker")
    scene.after(1).phase(Phase.STANDING_BY, "the other works")
    assert scene.recorder.status().ready == Answer(True, "standing by: the other works")


def test_the_document_is_read_back_as_it_was(scene: TimedRecorder) -> None:
    scene.recorder.surveyed(PLACE, 0, 10, 12)
    scene.end(Ending.COMMITTED, records=10, seconds=0.5, steps={"fence": 0.1, "commit": 0.2}, transactional_id="g:o:3")
    status = scene.recorder.status()
    assert from_json(status.to_json()) == status
    assert from_json(status.to_json().replace(b'"pid"', b'"news": 1, "pid"', 1)) == status


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"partitions": [1]}'])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a status document"):
        from_json(text)


def test_many_threads_lose_no_count(scene: TimedRecorder) -> None:
    seen: list[Status] = []

    def work(partition: int) -> None:
        for number in range(300):
            scene.recorder.ended(Ended("orders", partition, Ending.COMMITTED, number, number + 1, 1))

    threads = [threading.Thread(target=work, args=[p]) for p in range(8)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.append(scene.recorder.status())
    totals = scene.recorder.status().totals
    assert (totals.records, totals.transactions) == (2400, 2400)
    assert [one.totals.records for one in seen] == sorted(one.totals.records for one in seen)


def test_the_rate_forgets_what_is_older_than_ten_seconds() -> None:
    rate = Rate(0.0)
    for tenth in range(200):
        rate.add(10, tenth / 10)
    assert rate.per_s(19.9) == pytest.approx(100, rel=0.05)
    assert rate.per_s(25.0) == pytest.approx(50, rel=0.1)
    assert rate.per_s(40.0) == 0
    assert len(rate._grains) < 60
    young = Rate(0.0)
    young.add(10, 1.0)
    assert [young.per_s(now) for now in (0.5, 2.0, 11.0)] == [10, 5, 1], "a program of two seconds has no ten behind it"


def test_a_histogram_counts_the_bound_itself_below_it() -> None:
    one = Histogram()
    for seconds in (0.001, 0.0011, 60.0, 61.0):
        one.add(seconds)
    assert (one.counts[0], one.counts[1], one.counts[-2], one.counts[-1]) == (1, 1, 1, 1)
