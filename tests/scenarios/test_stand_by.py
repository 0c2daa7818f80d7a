"""Drivers that stand by: the next one takes over after a kill, at once after SIGTERM, and one that slept is fenced."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from harness.pipeline import Running, Stage, until
from harness.programs import terminate_all

INTERVAL_S = 1.0
# Two intervals and a fence. Measured: 4.23 s at most (row F08, 2026-11-21, docs/proof); this is twice that.
TAKE_OVER_S = 2 * 4.23
LONG_S = 10.0


def drivers(stage: Stage, count: int, *options: str, interval_s: float = INTERVAL_S) -> list[list[str]]:
    shared = ["--stand-by", "--claim-interval", str(interval_s), "--claims", f"{stage.names.stem}.claims"]
    without_spark = ["--master", "none", "--progress", "json", *options]
    command = ["pipeline", "run", *stage.options(), *without_spark, *shared]
    return [[*command, "--client-id", f"driver-{number}"] for number in range(count)]


@contextmanager
def two(stage: Stage, *options: str, interval_s: float = INTERVAL_S) -> Iterator[tuple[Running, Running]]:
    """Driver 0 works, driver 1 stands by and says so."""
    first, second = drivers(stage, 2, *options, interval_s=interval_s)
    with ExitStack() as stack:
        worker = stack.enter_context(stage.python(*first))
        worker.await_line(lambda line: "driver-0 works" in line)
        standby = stack.enter_context(stage.python(*second))
        standby.await_line(lambda line: "driver-1 stands by, driver-0 works" in line)
        yield worker, standby


def committed(line: str) -> bool:
    return '"committed"' in line


def took(program: Running, since: float) -> float:
    """Seconds from ``since`` to the program's first commit."""
    program.await_line(committed, seconds=TAKE_OVER_S)
    return time.monotonic() - since


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_after_kill_9_the_next_one_takes_over_before_anything_times_out(stage: Stage, reader: str) -> None:
    """In the middle of its work, transactions open; what comes out is proven."""
    stage.create()
    small = ("--max-records-per-transaction", "20") if reader == "connector" else ("--transaction-bytes", "2048")
    with two(stage, "--follow", "--reader", reader, *small) as (worker, standby):
        stage.seed(1_600)
        worker.await_line(committed)
        killed = time.monotonic()
        worker.kill_tree()
        stage.seed(40)  # it may have been through
        seconds = took(standby, killed)
        print(f"{reader}: {seconds:.2f} s from the kill to the first commit, interval {INTERVAL_S:g} s")
        until(stage.drained, "the rest")
        assert terminate_all(standby) == [0]
    stage.proven(inputs=1_640)


def test_after_sigterm_the_next_one_takes_over_at_once_and_waiting_is_ended_at_once(stage: Stage) -> None:
    """Leadership is given up, nobody waits for heartbeats to go stale; a driver that waits ends at once."""
    stage.create()
    with two(stage, "--follow", interval_s=LONG_S) as (worker, standby):
        stopped = time.monotonic()
        worker.terminate()
        standby.await_line(lambda line: "driver-1 works" in line)
        assert time.monotonic() - stopped < LONG_S
        assert worker.wait(20).code == 0
        stage.seed(40)
        until(stage.drained, "the work of the next one")
        [third] = drivers(stage, 3, interval_s=LONG_S)[2:]
        with stage.python(*third) as idle:
            idle.await_line(lambda line: "driver-2 stands by" in line)
            stopped = time.monotonic()
            assert terminate_all(idle) == [143], "it was to drain, and did not come to it"
            assert time.monotonic() - stopped < LONG_S
        assert terminate_all(standby) == [0]
    stage.proven(inputs=40)


def test_a_driver_that_slept_is_fenced_and_stands_by_again(stage: Stage) -> None:
    """SIGSTOP in mid-work for longer than two intervals, then SIGCONT: 0 duplicates, and it takes its turn again."""
    stage.create()
    with two(stage, "--follow", "--max-records-per-transaction", "20") as (worker, standby):
        stage.seed(1_600)
        worker.await_line(committed)
        worker.signal_tree(signal.SIGSTOP)
        stage.seed(40)  # it may have been through
        standby.await_line(committed)
        worker.signal_tree(signal.SIGCONT)
        worker.await_line(lambda line: "driver-0 stands by, driver-1 works" in line)
        until(stage.drained, "the work of both")
        standby.kill_tree()
        stage.seed(40)
        worker.await_line(lambda line: "driver-0 works, after driver-1" in line)
        until(stage.drained, "its second turn")
        assert terminate_all(worker) == [0]
    stage.proven(inputs=1_680)  # each of them once


def test_a_paused_group_works_nowhere_until_the_pause_is_ended(stage: Stage) -> None:
    """`brew claims release` waited in vain: the active driver went on, and the pause was ended."""
    stage.create()
    where = ["--bootstrap", stage.broker.bootstrap, "--claims", f"{stage.names.stem}.claims"]
    release = ["downstream", "claims", "release", *where, "--group", stage.names.group]
    with two(stage, "--follow") as (worker, standby):
        stage.seed(40)
        until(stage.drained, "the work before the pause")
        with stage.python(*release, "--for-s", "600", "--wait-s", "20") as pausing:
            assert pausing.wait(60).code == 0
        worker.await_line(lambda line: "driver-0 was paused" in line)
        stage.seed(40)
        time.sleep(4 * INTERVAL_S)
        assert not stage.drained(), "nobody works"
        with stage.python(*release, "--end") as resuming:
            assert resuming.wait(60).code == 0
        until(stage.drained, "the work after the pause")
        assert terminate_all(worker, standby) == [0, 0]
    stage.proven(inputs=80)


def test_drivers_that_drain_end_one_after_the_other(stage: Stage) -> None:
    """Who becomes leader when all is done finds that, and ends with 0."""
    stage.create(orders=400)
    with ExitStack() as stack:
        programs = [stack.enter_context(stage.python(*words)) for words in drivers(stage, 3)]
        results = [program.wait(30) for program in programs]
    assert [ran.code for ran in results] == [0, 0, 0], [ran.text for ran in results]
    committers = [ran for ran in results if any(one["status"] == "committed" for one in ran.ranges)]
    assert len(committers) == 1, [json.dumps(ran.ranges) for ran in results]
    stage.proven(inputs=400)
