"""What the campaign measures from journals, by hand-made ones; and where Kafka keeps a name."""

from __future__ import annotations

import pytest

from brew.journal import Entry, Phase, Step
from brew.kafka.cluster_admin import home_of
from proof.campaign.journals import Kill, first_commit, open_ranges, recoveries, stalls
from proof.campaign.result import p95


def _line(
    at: float, step: Step, phase: Phase = Phase.DONE, *, pid: int = 1, partition: int = 0, start: int = 0
) -> Entry:
    return Entry(at, "writer", pid, step, phase, {"partition": partition, "start": start, "until": start + 10})


def _read(at: float, source_partition: int, source_offset: int, count: int) -> Entry:
    run = [100 + source_offset, source_partition, source_offset, count]
    return Entry(at, "reader", 9, Step.READ, Phase.DONE, {"topic": "out", "partition": 0, "runs": [run]})


def test_a_recovery_ends_with_the_first_commit_that_was_acknowledged_after_the_kill() -> None:
    """An announced commit is none, and one from before the kill does not count."""
    lines = [
        _line(1.0, Step.COMMIT),
        _line(2.1, Step.COMMIT, Phase.INTENT, pid=2),
        _line(2.5, Step.COMMIT, pid=2),
        _line(2.6, Step.COMMIT, pid=2),
    ]
    assert recoveries(lines, [Kill(2.0, 1)]) == [0.5]


def test_a_kill_that_another_one_followed_before_a_commit_is_not_measured() -> None:
    """The second death is no fault of the first recovery."""
    kills = [Kill(1.0, 1), Kill(2.0, 2)]
    assert recoveries([_line(2.5, Step.COMMIT, pid=3)], kills) == [0.5]


def test_a_commit_elsewhere_does_not_end_a_partitions_recovery() -> None:
    """A fault goes for one partition's brokers; the others go on all the time."""
    lines = [_line(1.1, Step.COMMIT, partition=3), _line(4.0, Step.COMMIT, partition=2)]
    assert first_commit(lines, 1.0) == 1.1
    assert first_commit(lines, 1.0, [2]) == 4.0
    assert first_commit(lines, 1.0, [1]) is None


def test_open_are_the_ranges_begun_and_not_ended_by_the_process_that_died() -> None:
    """Another process's transactions are its own, and what it did after the kill can't be."""
    lines = [
        _line(1.0, Step.BEGIN, partition=0, start=0),
        _line(1.1, Step.COMMIT, partition=0),
        _line(1.2, Step.BEGIN, partition=1, start=40),
        _line(1.3, Step.COMMIT, Phase.INTENT, partition=1),
        _line(1.2, Step.BEGIN, pid=2, partition=2),
    ]
    assert open_ranges(lines, Kill(1.5, 1)) == {1: 40}


def test_readers_are_held_back_until_they_are_given_a_record_of_the_open_range() -> None:
    """What a reader gets from before the range was there already, however late it comes."""
    lines = [
        _line(1.0, Step.BEGIN, partition=1, start=40),
        _read(2.2, 1, 30, 10),
        _read(2.4, 0, 40, 10),
        _read(3.5, 1, 38, 5),
    ]
    assert stalls(lines, [Kill(2.0, 1)]) == [1.5]


def test_a_kill_between_transactions_holds_nobody_back() -> None:
    """No open transaction, no figure."""
    lines = [_line(1.0, Step.BEGIN), _line(1.1, Step.COMMIT), _read(3.0, 0, 0, 5)]
    assert stalls(lines, [Kill(2.0, 1)]) == []


def test_the_percentile_is_a_value_that_was_measured() -> None:
    """Of twenty the nineteenth, of three the last."""
    assert p95([float(n) for n in range(1, 21)]) == 19.0
    assert p95([3.0, 1.0, 2.0]) == 3.0


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("a", 97 % 50),
        ("hello", 99162322 % 50),
        ("polygenelubricants", 0),
        ("brew-enricher", 17),
        ("", 0),
        ("ä", 228 % 50),
    ],
)
def test_a_name_is_kept_where_javas_hash_says(name: str, home: int) -> None:
    """The coordinator is the leader of that partition; the smallest integer has no positive twin."""
    assert home_of(name, 50) == home
