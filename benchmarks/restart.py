"""Kill a contender in the middle of its work, start it again (or let one that stands by go on), wait for a record."""

from __future__ import annotations

import time
from contextlib import ExitStack

from contenders import Contender, Setup
from course import create_run_topics, finish, verified_after_kill
from ground import PARTITIONS, BenchmarkCluster, step_timeout_s
from memory import touch
from runs import Restart
from tree import Tree
from watch import EndOffsets, first_record, open_records

from brew.deadline import Deadline
from brew.errors import Refused

_MOMENT_S = 60.0
_FIRST_S = 150.0  # a dead dynamic member's session lasts 45 s, and its transaction up to 60 s
_WARM_S = 60.0
_STANDS_BY, _IS_WARM = " stands by, ", " is warm"
_LOOK_S = 0.005


def restart(ground: BenchmarkCluster, contender: Contender, setup: Setup, records: int, number: int) -> Restart:
    """
    Kill all of it inside a transaction (or while it writes, where it has none), and start the same command again.

    Where a second one stands by, the time counts from the kill until that one goes on.
    """
    place = create_run_topics(ground, contender, ground.input_of(records), f"restart-{number}")
    ends = EndOffsets(ground.connection, place.output, PARTITIONS)
    command = contender.command(place, setup, False)
    touch()
    with ExitStack() as ended:
        tree = ended.enter_context(Tree(command, place.home))
        if contender.stands_by:
            tree, other = _roles(tree, ended.enter_context(Tree(command, place.home / "second")))
            _await_warmth(other)
        waiting = _await_moment(tree, ends, transactions=contender.exactly_once)
        started = time.monotonic()
        tree.kill()
        stable = ends.ask()
        if not contender.stands_by:
            started = time.monotonic()
            other = ended.enter_context(Tree(command, place.home))
        first = first_record(ground.connection, place.output, stable, f"{place.group}.reader", Deadline(_FIRST_S))
        usage = finish(ground, contender, place, other, step_timeout_s(records))
    verdict, duplicates = verified_after_kill(ground, contender, place, records)
    ground.drop_topics([place.output, place.dead_letter])
    return Restart(
        contender.name,
        records,
        number,
        sum(stable.values()),
        waiting,
        first - started,
        usage.wall_s,
        duplicates,
        verdict,
    )


def _roles(one: Tree, other: Tree) -> tuple[Tree, Tree]:
    """(who works, who stands by) of two that were started together, once one of them stands by."""
    deadline = Deadline(_WARM_S)
    while True:
        if _STANDS_BY in other.tail():
            return one, other
        if _STANDS_BY in one.tail():
            return other, one
        deadline.check("one that stands by")
        time.sleep(_LOOK_S)


def _await_warmth(other: Tree) -> None:
    deadline = Deadline(_WARM_S)
    while _IS_WARM not in other.tail():
        deadline.check("one that stands by and is warm")
        time.sleep(_LOOK_S)


def _await_moment(tree: Tree, ends: EndOffsets, *, transactions: bool) -> int:
    """
    Return while something is visible and, with ``transactions``, more waits in an open one; how many offsets wait.

    Raises:
        Refused: the run ended before that; more orders would give more time.
    """
    deadline = Deadline(_MOMENT_S)
    while tree.running():
        if sum(ends.ask().values()):
            waiting = open_records(ends)
            if waiting > 0 or not transactions:
                return waiting
        deadline.check("the moment to kill in")
        time.sleep(_LOOK_S)
    raise Refused(f"the run ended before it could be killed inside a transaction; its last lines:\n{tree.tail()}")
