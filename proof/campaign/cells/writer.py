"""The writer crashes, hangs and restarts at every point of its transaction, and competes with another one."""

from __future__ import annotations

import signal
import time
from functools import partial

from brew.journal import Entry, Phase, Step
from brew.names import CrashPoint
from proof.campaign.cell import CellTable, nothing
from proof.campaign.effects import fenced_since
from proof.campaign.journals import Kill, recoveries
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment, StalledError

CELLS = CellTable()
_PER_TRANSACTION, _PROBABILITY = 20, 0.1
# How many orders a loop uses per kill, with a margin; missing ones are seeded on demand.
_PER_KILL = 1.5 * _PER_TRANSACTION / _PROBABILITY
_RESERVE = 1000
# Before the first record is in the log, and after the commit, there is nothing to abort.
_LEAVES_RECORDS = {CrashPoint.MID_PRODUCE, CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS}
ROWS = dict.fromkeys(CrashPoint, "F01") | dict.fromkeys((CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT), "F03")
ROWS[CrashPoint.COMMIT_IN_FLIGHT] = "F02"
_TRIES, _ROUNDS = 2000, 8
_RANGES = ("--max-records-per-transaction", "1000")
# The last journal line of a partition that shows how far its transaction is.
_MOMENTS = {
    "mid-produce": {(Step.BEGIN, Phase.DONE), (Step.FLUSH, Phase.INTENT)},
    "sending-offsets": {(Step.SEND_OFFSETS, Phase.INTENT)},
    "committing": {(Step.COMMIT, Phase.INTENT)},
}
rivals = partial(CELLS, moment="always", needed={"rivals": 2, "fences": 1})


def crash_loop(point: CrashPoint, stage: CellEnvironment) -> None:
    """Restart the writer until it has died often enough at ``point``; each start recovers the last death."""
    stage.orders(int(_RESERVE + _PER_KILL * stage.kills), "--transactional")
    while stage.fired["kills"] < stage.kills:
        seed, size = str(stage.random.randrange(2**31)), str(_PER_TRANSACTION)
        crash = ("--crash-prob", str(_PROBABILITY), "--crash-point", point, "--crash-mode", "worker")
        writer = stage.writer(*crash, "--crash-seed", seed, "--max-records-per-transaction", size)
        if (code := writer.wait(stage.deadline)) == -signal.SIGKILL:
            died(stage, writer)
        elif code == 0:
            stage.orders(int(_PER_KILL * max(1, stage.kills - stage.fired["kills"])))
        else:
            raise StalledError(f"instead of crashing, {writer.ending}")
    stage.drain()  # recovers the last death, with what is left to commit
    stage.recovery_s += recoveries(stage.journals, stage.killed)


for _point in CrashPoint:
    _needed = {"kills": 0} | ({"aborted_records": 1} if _point in _LEAVES_RECORDS else {})
    _cells = partial(CELLS, moment=_point, needed=_needed, bound_s=2.0, limit_s=600.0, marks="prove")
    _cells(f"{ROWS[_point]}-{_point}-writer", "SIGKILL", "writer", _point)(crash_loop)


def died(stage: CellEnvironment, writer: Program) -> None:
    assert writer.ended_at is not None
    stage.killed.append(Kill(writer.ended_at, writer.pid))
    stage.fire("kills")


def freeze(stage: CellEnvironment, writer: Program, moment: str) -> dict[int, float]:
    """Stop the writer repeatedly until it is at ``moment``; return its partitions there, and since when."""
    for _ in range(_TRIES):
        writer.signal(signal.SIGSTOP)
        stopped_at = time.time()
        time.sleep(0.003)
        last: dict[int, Entry] = {e.fields["partition"]: e for e in stage.journals.look() if e.pid == writer.pid}
        frozen = {p: stopped_at for p, e in last.items() if (e.step, e.phase) in _MOMENTS[moment]}
        if frozen:
            stage.fire("pauses")
            return frozen
        writer.signal(signal.SIGCONT)
        time.sleep(stage.random.uniform(0.001, 0.03))
    return {}


def zombie(moment: str, stage: CellEnvironment) -> None:
    """A writer hangs at ``moment``, another takes over; the first one wakes up and must find itself fenced."""
    with stage.feeding(600):
        stage.orders(2000, "--transactional")
        for _ in range(_ROUNDS):
            sleeper = stage.writer("--follow", *_RANGES, name="sleeper")
            stage.await_commits(4)
            frozen = freeze(stage, sleeper, moment)
            rival = stage.writer("--follow", *_RANGES, name="rival")
            if frozen:
                stage.recovered(max(frozen.values()), frozen)
            sleeper.signal(signal.SIGCONT)
            if fenced_since(stage, {sleeper.pid}):
                stage.fire("zombies_fenced")
            stage.stop(sleeper)
            stage.stop(rival)
            if stage.fired["zombies_fenced"]:
                return


for _moment in _MOMENTS:
    _marks, _fault = "prove" if _moment == "mid-produce" else "", "SIGSTOP until another took over, then SIGCONT"
    _cells = partial(CELLS, needed=("pauses", "zombies_fenced"), moment=_moment, bound_s=5.0, limit_s=180.0)
    _cells(f"F04-{_moment}", _fault, "writer", _moment, marks=_marks)(zombie)


@CELLS(
    *("F05-overslept", "SIGSTOP for longer than the transaction's time-out", "writer"),
    moment="sending-offsets",
    needed=("pauses", "aborted_records"),
    bound_s=15.0,
)
def overslept(stage: CellEnvironment) -> None:
    """The writer hangs past its transaction time-out; the broker aborts the transaction, and the writer starts over."""
    with stage.feeding():
        writer = stage.writer("--follow", *_RANGES, "--transaction-timeout", "5")
        stage.await_commits(4)
        frozen = freeze(stage, writer, "sending-offsets")
        # The coordinator looks for expired transactions every ten seconds.
        stage.pause(5 + 10 + 2)
        woken = time.time()
        writer.signal(signal.SIGCONT)
        stage.recovered(woken, frozen or None)


@rivals("F08-two-writers", "two writers, one group, 60 s", "writer", 60.0, limit_s=180.0)
@rivals("F08-two-writers-short", "two writers, one group, 15 s", "writer", 15.0, marks="prove")
def two_writers(seconds: float, stage: CellEnvironment) -> None:
    """Two writers follow with one group; they fence each other, and everything comes out once."""
    with stage.feeding(600):
        writers = [stage.writer("--follow", *_RANGES, name=name) for name in ("first", "second")]
        stage.await_commits(4)
        stage.pause(seconds)
        stage.note_ended(*writers)
        stage.fire("rivals", 2)


CELLS(
    *("F10-old-checkpoint", "checkpoint restored, deleted, or newer than the group", "Spark"),
    moment="start",
    readers=(),
    path="spark",
    not_applicable="there is no Spark checkpoint; the group's offset is the only truth",
)(nothing)
