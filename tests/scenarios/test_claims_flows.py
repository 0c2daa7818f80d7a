"""Workers that share a topic by claim, killed and put to sleep: what is repeated, what is dropped, who goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.claims_stage import INTERVAL_S, PARTITIONS, ClaimsStage, Watching
from harness.programs import Running, terminate_all, until
from harness.servers import Broker, Names

RECORDS = 300
WORK_S = 0.03  # the worker's, per slice
BATCH = 20


@pytest.fixture
def claims(broker: Broker, names: Names, tmp_path: Path) -> ClaimsStage:
    stage = ClaimsStage(broker.bootstrap, names, tmp_path)
    stage.create()
    return stage


@contextmanager
def two(stage: ClaimsStage, *more: str) -> Iterator[tuple[Running, Running, Watching]]:
    """Workers a and b in mid-work, which is there once each has its half: the first to be up would do it alone."""
    a, b = (stage.worker(name, *more) for name in "ab")
    with a, b, stage.watching() as log:
        until(lambda: sorted(row.owner or "" for row in log.rows()) == ["a", "a", "b", "b"], "each has its half")
        stage.seed(RECORDS)
        until(lambda: record_count(stage, "a") > 100 and record_count(stage, "b") > 100, "both work")
        yield a, b, log


def record_count(stage: ClaimsStage, client: str) -> int:
    return sum(worker == client for worker, _, _ in stage.done())


def test_a_killed_workers_partitions_go_on_elsewhere_and_at_most_an_interval_is_repeated(claims: ClaimsStage) -> None:
    """At-least-once: nothing is left out; what comes twice was done since the last heartbeat."""
    with two(claims) as (a, b, _):
        before = claims.counts()
        killed = time.monotonic()
        a.kill_tree()
        held = {partition for client, partition, _ in claims.done() if client == "a"}
        until(lambda: len(claims.counts()) == RECORDS * PARTITIONS, "all is done")
        took = time.monotonic() - killed
        assert terminate_all(b, seconds=90) == [0]

    counts = claims.counts()
    repeats = sum(counts.values()) - len(counts)
    print(f"at-least-once: {repeats} of {len(counts)} repeated, the rest done {took:.1f} s after the kill")
    assert max(counts.values()) <= 2
    # What one worker can do in an interval, and the batch at hand.
    assert repeats <= (INTERVAL_S / WORK_S + 1) * BATCH
    assert {partition for (partition, _), count in counts.items() if count > 1} <= held
    assert len(before) < RECORDS * PARTITIONS


def test_a_killed_worker_drops_what_it_had_claimed_and_nothing_comes_twice(claims: ClaimsStage) -> None:
    """At-most-once: the batch at hand is lost, nothing else, and no record is worked on twice."""
    with two(claims, "--flow", "at-most-once") as (a, b, log):
        a.kill_tree()
        until(lambda: log.positions() == {RECORDS}, "all is claimed")
        assert terminate_all(b, seconds=90) == [0]

    counts = claims.counts()
    dropped = RECORDS * PARTITIONS - len(counts)
    print(f"at-most-once: {dropped} of {RECORDS * PARTITIONS} dropped")
    assert set(counts.values()) == {1}
    assert dropped <= BATCH


def test_a_worker_that_ends_cleanly_repeats_and_drops_nothing(claims: ClaimsStage) -> None:
    """SIGTERM: it finishes the batch, releases at its position, and the next one goes on there at once."""
    with two(claims, "--interval-s", "3") as (a, b, log):  # whoever is starved for two of them repeats something
        a.terminate()
        until(lambda: log.owners() == {"b"}, "the other one has all", 11)
        assert a.wait().code == 0
        until(lambda: len(claims.counts()) == RECORDS * PARTITIONS, "all is done")
        assert terminate_all(b, seconds=90) == [0]
        until(lambda: {(row.owner, row.position) for row in log.rows()} == {(None, RECORDS)}, "the release is told")
    assert set(claims.counts().values()) == {1}


def test_a_worker_that_slept_past_two_heartbeats_writes_nothing_that_counts(claims: ClaimsStage) -> None:
    """SIGSTOP, the other takes over, SIGCONT: what it owned has other tokens, and it works on with new ones."""
    with two(claims) as (a, b, log):
        os.kill(a.pid, signal.SIGSTOP)
        until(lambda: log.owners() == {"b"}, "b has all")
        tokens = {row.partition: row.token for row in log.rows()}
        os.kill(a.pid, signal.SIGCONT)
        until(lambda: log.owners() == {"a", "b"}, "a works again")
        later = log.rows()
        until(lambda: len(claims.counts()) == RECORDS * PARTITIONS, "all is done")
        until(lambda: log.positions() == {RECORDS}, "and told")
        assert terminate_all(a, b, seconds=90) == [0, 0]

    assert all(row.token > tokens[row.partition] for row in later if row.owner == "a")
    assert max(claims.counts().values()) <= 2


def test_a_restarted_worker_takes_its_partitions_back_without_waiting(claims: ClaimsStage) -> None:
    """Under its stable name, while it still counts as the owner: every token is one of a heartbeat, not of a claim."""
    long_s = 20.0  # a start of Python is far shorter
    claims.seed(RECORDS)
    a = claims.worker("a", "--interval-s", str(long_s))
    with a:
        until(lambda: record_count(claims, "a") > 100, "it works")
        with claims.watching() as log:
            owned = {row.partition: row.token for row in log.rows()}
            a.kill_tree()
            a.wait()
            done = record_count(claims, "a")
            claims.seed(RECORDS)  # it may have been through
            restarted = claims.worker("a", "--interval-s", str(long_s))
            with restarted:
                until(
                    lambda: all(row.token > owned[row.partition] for row in log.rows()), "it has all back", 1.8 * long_s
                )
                until(lambda: record_count(claims, "a") > done, "it works again")
                assert terminate_all(restarted, seconds=90) == [0]
            assert {row.partition for row in log.rows()} == set(owned) == set(range(PARTITIONS))
