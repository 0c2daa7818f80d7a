"""Drivers that share one topic by claims: each on its part, taken over after a kill, handed over after SIGTERM."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from harness.pipeline import Ran, Running, Stage, until
from harness.programs import terminate_all

PARTITIONS = 8
INTERVAL_S = 2.0
LONG_S = 10.0
# Two intervals, a look at the log, a cycle. Measured with intervals of 1 s: 4.23 s (row F08, 2026-11-21, docs/proof).
TAKE_OVER_S = 2 * (4.23 + 2 * (INTERVAL_S - 1.0))
FEW = 4  # fences when a starved machine's heartbeat comes late; without claims there are dozens at least
SMALL = {"connector": ("--max-records-per-transaction", "20"), "direct": ("--transaction-bytes", "2048")}

TINY = ("--max-records-per-transaction", "5")

# The pipeline without its look at the claims: it claims, and works on everything.
BLIND = """
from brew.claims import heartbeater
heartbeater.ClaimedOwnership.refresh = lambda self, idle: heartbeater.ALL_PARTITIONS
from pipeline.__main__ import main
main()
"""


def words(stage: Stage, number: int, *options: str, interval_s: float = INTERVAL_S) -> list[str]:
    claims = ["--share", "--claim-interval", str(interval_s), "--claims", f"{stage.names.stem}.claims"]
    shared = ["--master", "none", "--progress", "json", "--client-id", f"driver-{number}"]
    return ["run", *stage.options(), *claims, *shared, *options]


def driver(stage: Stage, number: int, *options: str, interval_s: float = INTERVAL_S) -> Running:
    return stage.python("pipeline", *words(stage, number, *options, interval_s=interval_s))


def works_on(program: Running, count: int, seconds: float = 20) -> None:
    """Wait until it says that it works on so many partitions."""
    program.await_line(lambda line: f"works on {count} of {PARTITIONS} partitions" in line, seconds=seconds)


@contextmanager
def two(stage: Stage, *options: str, interval_s: float = INTERVAL_S) -> Iterator[tuple[Running, Running]]:
    """Two drivers that follow, with half of the partitions each."""
    stage.create(PARTITIONS)
    with ExitStack() as stack:
        first = stack.enter_context(driver(stage, 0, "--follow", *options, interval_s=interval_s))
        works_on(first, PARTITIONS)
        second = stack.enter_context(driver(stage, 1, "--follow", *options, interval_s=interval_s))
        for program in (first, second):
            works_on(program, PARTITIONS // 2)
        yield first, second


def so_far(program: Running) -> Ran:
    return Ran(0, program.output(), "", 0.0)


def partitions(ran: Ran) -> set[int]:
    """Where it committed."""
    return {outcome["partition"] for outcome in ran.ranges if outcome["status"] == "committed"}


def shares(*programs: Running) -> list[int]:
    """In how many partitions each told of a commit by now; it tells a moment after the brokers know."""
    return [len(partitions(so_far(program))) for program in programs]


def fences(*results: Ran) -> int:
    return sum(outcome["status"] == "fenced" for result in results for outcome in result.ranges)


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_two_drivers_divide_the_partitions_and_one_takes_over_when_the_other_is_killed(
    stage: Stage, reader: str
) -> None:
    """Nobody fences anybody; the part of the one that is killed goes on before anything times out."""
    with two(stage, "--reader", reader, *SMALL[reader]) as (first, second):
        stage.seed(400)
        until(stage.drained, "the work of both")
        until(lambda: shares(first, second) == [4, 4], "what both tell of it")
        assert partitions(so_far(first)).isdisjoint(partitions(so_far(second)))
        assert fences(so_far(first), so_far(second)) <= FEW
        stage.seed(1_600, "--start", "400")
        orphaned = partitions(so_far(first))
        killed = time.monotonic()
        first.kill_tree()
        stage.seed(80, "--start", "2000")  # a partition may have been drained before the kill
        until(lambda: orphaned <= partitions(so_far(second)), "commits in what the other one held", TAKE_OVER_S)
        seconds = time.monotonic() - killed
        print(f"{reader}: {seconds:.2f} s from the kill to a commit in each of its partitions, {INTERVAL_S:g} s apart")
        until(stage.drained, "the rest")
        assert terminate_all(second) == [0]
    stage.proven(inputs=2_080)


def test_a_driver_that_slept_is_fenced_and_takes_a_part_again(stage: Stage) -> None:
    """SIGSTOP in mid-work past two intervals, then SIGCONT: 0 duplicates, and both work again."""
    with two(stage, *SMALL["connector"]) as (first, second):
        stage.seed(80)
        until(stage.drained, "a position in each partition")
        stage.seed(4_000, "--start", "80")
        first.await_cycle()
        first.signal_tree(signal.SIGSTOP)
        works_on(second, PARTITIONS)
        second.await_cycle(times=4)
        first.signal_tree(signal.SIGCONT)
        first.await_line(lambda line: "; lost " in line)  # it may have a new part by the same look
        first.await_line(lambda line: f"works on {PARTITIONS // 2} of" in line, times=2)
        stage.seed(800, "--start", "4080")
        until(stage.drained, "the work of both")
        assert terminate_all(first, second) == [0, 0]
    stage.proven(inputs=4_880)  # each of them once


def test_who_ends_hands_over_at_once_and_who_joins_gets_a_part(stage: Stage) -> None:
    """SIGTERM needs no heartbeat to go stale; a third one is given what the others hold too much of."""
    with ExitStack() as stack:
        first, second = stack.enter_context(two(stage, *SMALL["connector"], interval_s=LONG_S))
        third = stack.enter_context(driver(stage, 2, "--follow", interval_s=LONG_S))
        third.await_line(lambda line: "driver-2 works on 2 of" in line)
        for program in (first, second):
            works_on(program, 3)
        stage.seed(800)
        until(stage.drained, "the work of all three")
        until(lambda: shares(first, second, third) == [3, 3, 2], "what all three tell of it")
        assert fences(*(so_far(program) for program in (first, second, third))) <= FEW
        stopped = time.monotonic()
        assert terminate_all(first) == [0]
        second.await_line(lambda line: "driver-1 works on 4 of" in line, times=2)
        third.await_line(lambda line: "driver-2 works on 4 of" in line)
        assert time.monotonic() - stopped < LONG_S
        assert terminate_all(second, third) == [0, 0]
    stage.proven(inputs=800)


def test_drivers_that_drain_end_when_all_is_drained_whoever_did_it(stage: Stage) -> None:
    """Also where one of them is killed on the way: the other does its part, and only then ends with 0."""
    stage.create(PARTITIONS, orders=1_600)
    with driver(stage, 0, *TINY) as first:
        first.await_cycle()
        stage.seed(400, "--start", "1600")  # behind the first one's goal: whatever it does, the others have a part
        with driver(stage, 1, *TINY) as second, driver(stage, 2, *TINY) as third:
            until(lambda: any(" works on " in program.output() for program in (second, third)), "another one works")
            first.kill_tree()
            results = [second.wait(90), third.wait(90)]
    assert [ran.code for ran in results] == [0, 0], [ran.text for ran in results]
    assert partitions(results[0]) | partitions(results[1])
    stage.proven(inputs=2_000)


def test_without_a_look_at_the_claims_drivers_fence_each_other(stage: Stage) -> None:
    """Nothing comes twice even so; what the tests above count is no empty count."""
    stage.create(PARTITIONS)
    blind = [stage.start([sys.executable, "-c", BLIND, *words(stage, number, "--follow", *TINY)]) for number in (0, 1)]
    with blind[0], blind[1]:
        until(lambda: all("probes at" in program.output() for program in blind), "both are up")
        stage.seed(2_000)

        def in_each_others_way() -> bool:
            results = [so_far(program) for program in blind]
            return fences(*results) > FEW and all(map(partitions, results))

        until(lambda: in_each_others_way() or stage.drained(), "fences, and commits of both", 60)
        # Two that fence each other may go on so for long; one of them goes, and the other does the rest.
        assert terminate_all(blind[0]) == [0], blind[0].output()
        until(stage.drained, "the work of the one that is left", 60)
        assert terminate_all(blind[1]) == [0], blind[1].output()
        results = [so_far(program) for program in blind]
    assert fences(*results) > FEW
    assert partitions(results[0]) & partitions(results[1])
    print(f"without a look at the claims: {fences(*results)} fences")
    stage.proven(inputs=2_000)
