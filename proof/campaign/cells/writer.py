"""The writer dies, or is held up, at every point of its transaction."""

from __future__ import annotations

import functools
import signal

from brew.names import CrashPoint
from proof.campaign.cell import Cell
from proof.campaign.journals import Kill, recoveries
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment, StalledError

_PER_TRANSACTION = 20
_PROBABILITY = 0.1
# How many orders a loop uses up for each kill, with room to spare; what is missing is seeded when it shows.
_PER_KILL = 1.5 * _PER_TRANSACTION / _PROBABILITY
_RESERVE = 1000


def crash_loop(point: CrashPoint, stage: CellEnvironment) -> None:
    """Start the writer again and again until it has died so often at ``point``; each start recovers the last death."""
    stage.orders(int(_RESERVE + _PER_KILL * stage.kills), "--transactional")
    while stage.fired["kills"] < stage.kills:
        writer = stage.writer(
            *("--crash-prob", str(_PROBABILITY), "--crash-point", point, "--crash-mode", "worker"),
            *("--crash-seed", str(stage.random.randrange(2**31))),
            *("--max-records-per-transaction", str(_PER_TRANSACTION)),
        )
        if (code := writer.wait(stage.deadline)) == -signal.SIGKILL:
            died(stage, writer)
        elif code == 0:
            stage.orders(int(_PER_KILL * max(1, stage.kills - stage.fired["kills"])))
        else:
            raise StalledError(f"the writer ended with {code} instead of crashing: {writer.last_words()}")
    stage.drain()  # recovers the last death, with what is left to commit
    stage.recovery_s += recoveries(stage.journals, stage.killed)


def died(stage: CellEnvironment, writer: Program) -> None:
    """Note that a writer was killed."""
    assert writer.ended_at is not None
    stage.killed.append(Kill(writer.ended_at, writer.pid))
    stage.fire("kills")


# Before the first record is in the log there is nothing that could be aborted, after the commit nothing any more.
_LEAVES_RECORDS = {CrashPoint.MID_PRODUCE, CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS}
ROWS = {CrashPoint.COMMIT_IN_FLIGHT: "F02", CrashPoint.AFTER_COMMIT: "F03", CrashPoint.BEFORE_REPORT: "F03"}


def _crash_cell(point: CrashPoint) -> Cell:
    row = ROWS.get(point, "F01")
    return Cell(
        name=f"{row}-{point}-writer",
        row=row,
        fault="SIGKILL",
        target="writer",
        moment=point,
        play=functools.partial(crash_loop, point),
        needed={"kills": 0} | ({"aborted_records": 1} if point in _LEAVES_RECORDS else {}),
        bound_s=2.0,
        limit_s=600.0,
        marks=frozenset({"prove"}),
    )


CELLS = tuple(map(_crash_cell, CrashPoint))
