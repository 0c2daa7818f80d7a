"""
The scripts of F11 to F13: hold a frame, cut the connection, release it inside the next transaction; or lose a reply.

Every wait is for an event: the frame is held, the client has sent it again and been answered, the late one is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from brew.deadline import Deadline
from brew.errors import BrewError
from proof.wire.codec import Api
from proof.wire.judge import Attempt, AttemptState, Try
from proof.wire.proxy import WireProxy
from proof.wire.rules import Action, Rule, Side, Trap
from proof.wire.writers import STEP_S, PositionReader, Writer

# Offsets that a try moves the group by; a script uses as many as it has transactions.
OFFSETS_PER_TRY = 10


@dataclass
class ProxiedWriter:
    """A writer behind a proxy, and the group's position."""

    proxy: WireProxy
    writer: Writer
    positions: PositionReader


class _TryRun:
    """One try in the making."""

    def __init__(self, scene: ProxiedWriter, number: int, script: str) -> None:
        self.writer, self._scene = scene.writer, scene
        self.told = Try(number, script)

    def begin(self, name: str) -> Attempt:
        self.writer.begin()
        self.told.attempts.append(Attempt(name))
        return self.told.attempts[-1]

    def write(self, attempt: Attempt, count: int) -> None:
        """Deliver some more records of this transaction."""
        stem = f"{self.told.number}/{attempt.name}"
        keys = [f"{stem}/{len(attempt.keys) + n}" for n in range(count)]
        self.writer.write([(key, b"late frames") for key in keys])
        attempt.keys += keys

    def send_offsets(self, attempt: Attempt, step: int) -> None:
        until = self.told.number * OFFSETS_PER_TRY + step
        self.writer.send_offsets(until)
        attempt.until = until

    def commit(self, attempt: Attempt) -> None:
        attempt.fate = AttemptState.UNKNOWN
        self.writer.commit()
        attempt.fate = AttemptState.COMMITTED

    def give_up(self, attempt: Attempt) -> None:
        """Abort, as after an application's error; if that fails the writer starts anew, as it has to."""
        try:
            self.writer.abort()
        except BrewError as error:
            attempt.error = str(error)
            self.writer.recover()

    def finish(self, attempt: Attempt, trap: Trap, count: int, step: int) -> None:
        """Write the rest and commit; a transaction that fails on the way is given up and done once more."""
        try:
            self._rest(attempt, count, step)
        except BrewError as error:
            attempt.error = str(error)
            self.writer.recover()
            self._rest(self.begin(f"{attempt.name}-again"), count, step)
        trap.caught(_soon())

    def _rest(self, attempt: Attempt, count: int, step: int) -> None:
        if count:
            self.write(attempt, count)
        self.send_offsets(attempt, step)
        self.commit(attempt)

    def too_late(self, trap: Trap) -> None:
        """Release the held frame and wait for what the broker says to it."""
        trap.release()
        answer = trap.answered(_soon())
        self.told.late, self.told.late_epoch = answer.error, answer.epoch


def late_commit(act: _TryRun, trap: Trap) -> None:
    """F11: the commit of the first transaction arrives inside the second one, which is then given up and done again."""
    first = act.begin("first")
    act.write(first, 2)
    act.send_offsets(first, 1)
    act.commit(first)
    trap.caught(_soon())
    second = act.begin("second")
    act.write(second, 1)
    act.too_late(trap)
    act.give_up(second)
    act.finish(act.begin("third"), trap, 2, 2)


def late_abort(act: _TryRun, trap: Trap) -> None:
    """F11: the abort of the first transaction arrives inside the second one, which goes on and commits."""
    first = act.begin("first")
    act.write(first, 1)
    act.give_up(first)
    trap.caught(_soon())
    second = act.begin("second")
    act.write(second, 2)
    act.too_late(trap)
    act.finish(second, trap, 0, 1)


def late_offsets(act: _TryRun, trap: Trap) -> None:
    """F12: the first transaction's offset arrives in the second one, behind the second one's own."""
    first = act.begin("first")
    act.write(first, 1)
    act.send_offsets(first, 1)
    trap.caught(_soon())
    act.commit(first)
    second = act.begin("second")
    act.write(second, 1)
    act.send_offsets(second, 2)
    act.too_late(trap)
    try:
        act.commit(second)
    except BrewError as error:
        second.error = str(error)
        act.writer.recover()


def late_records(act: _TryRun, trap: Trap) -> None:
    """F12: the first transaction's record batch arrives in the second one, behind a batch of the second one."""
    first = act.begin("first")
    act.write(first, 1)
    trap.caught(_soon())
    act.send_offsets(first, 1)
    act.commit(first)
    second = act.begin("second")
    act.write(second, 1)
    act.too_late(trap)
    act.finish(second, trap, 1, 2)


def lost_records_reply(act: _TryRun, trap: Trap) -> None:
    """F13: the broker has written the batch, and its reply is lost; the client sends the batch again."""
    first = act.begin("first")
    act.write(first, 2)
    trap.caught(_soon())
    act.told.late = 0  # it was answered, and nobody heard it
    act.send_offsets(first, 1)
    act.commit(first)


Script = Callable[[_TryRun, Trap], None]
SCRIPTS: dict[str, tuple[Script, Rule]] = {
    "late-commit": (late_commit, Rule(Api.END_TXN, committed=True, cut=True)),
    "late-abort": (late_abort, Rule(Api.END_TXN, committed=False, cut=True)),
    "late-offsets": (late_offsets, Rule(Api.TXN_OFFSET_COMMIT, cut=True)),
    "late-records": (late_records, Rule(Api.PRODUCE, cut=True)),
    "lost-records-reply": (lost_records_reply, Rule(Api.PRODUCE, Action.CUT, Side.REPLY)),
}


def run_script(scene: ProxiedWriter, number: int, script: str) -> Try:
    """One try; what goes wrong on the way is told in it, and the writer starts anew."""
    steps, rule = SCRIPTS[script]
    act = _TryRun(scene, number, script)
    trap = scene.proxy.add(rule)
    try:
        steps(act, trap)
    except BrewError as error:
        act.told.trouble = str(error)
        with suppress(BrewError):
            scene.writer.recover()
    finally:
        scene.proxy.remove(trap)
    act.told.position = scene.positions.position()
    return act.told


def _soon() -> Deadline:
    return Deadline(STEP_S)
