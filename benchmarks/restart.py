"""Kill a contender in the middle of its work, start it again, and wait for the first new record."""

from __future__ import annotations

import time

from contenders import Contender, Setup
from course import finish, place_for, verified_after_kill
from ground import PARTITIONS, Ground, patience
from runs import Restart
from tree import Tree
from watch import Ends, first_record, open_records

from protocol.deadline import Deadline
from protocol.errors import Refused

_MOMENT_S = 60.0
_FIRST_S = 150.0  # a dead dynamic member's session lasts 45 s, and its transaction up to 60 s
_LOOK_S = 0.005


def restart(ground: Ground, contender: Contender, setup: Setup, records: int, number: int) -> Restart:
    """Kill all of it inside a transaction (or while it writes, where it has none), and start the same command again."""
    place = place_for(ground, contender, ground.input_of(records), f"restart-{number}")
    ends = Ends(ground.connection, place.output, PARTITIONS)
    command = contender.command(place, setup, False)
    with Tree(command, place.home) as tree:
        waiting = _await_moment(tree, ends, transactions=contender.exactly_once)
        tree.kill()
    stable = ends.ask()
    started = time.monotonic()
    with Tree(command, place.home) as tree:
        first = first_record(ground.connection, place.output, stable, f"{place.group}.reader", Deadline(_FIRST_S))
        usage = finish(ground, contender, place, tree, patience(records))
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


def _await_moment(tree: Tree, ends: Ends, *, transactions: bool) -> int:
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
