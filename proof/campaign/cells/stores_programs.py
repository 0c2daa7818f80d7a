"""The downstream programs as a cell runs them: started as users start them, killed, checked by their own commands."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from proof.campaign.programs import Program, ProgramFailedError
from proof.campaign.stage import Stage, StalledError
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka import offsets, operate
from protocol.kafka.clients import READ_UNCOMMITTED
from protocol.names import ExitCode

_POLL_S = 0.02
_ASK_S = 30.0
_END_S = 60.0
_ROOM = 1.5


@dataclass(frozen=True)
class Consumer:
    """
    One downstream pattern on the cell's output, in a group of its own.

    ``words`` is its command line without broker, topic and group; ``made`` are topics that it makes. With ``bug`` the
    same program runs with that bug in it (`python -m tests.kills.broken`): it has to be found out.
    """

    stage: Stage
    words: tuple[str, ...]
    made: tuple[str, ...] = ()
    bug: str = ""

    @property
    def all_partitions(self) -> tuple[str, str]:
        """The option that takes all of them without group assignment: nobody waits for a dead member's session."""
        return "--partitions", ",".join(map(str, range(self.stage.cell.partitions)))

    @property
    def pattern(self) -> str:
        return self.words[0]

    @property
    def group(self) -> str:
        return f"{self.stage.names.stem}.{self.pattern}"

    def start(self, *options: str, name: str = "") -> Program:
        """A member that drains what is there, unless ``options`` say otherwise."""
        program = ("tests.kills.broken", self.bug) if self.bug else ("downstream",)
        return self.stage.other(name or self.pattern, *program, *self._line(), *options)

    def drain(self, *options: str) -> Program:
        """
        A member works to the end of the log.

        Raises:
            StalledError: it could not.
        """
        program = self.start(*options)
        return ended(self.stage, program)

    def checked(self, option: str = "--check") -> dict[str, Any]:
        """Its own comparison, as it tells it in JSON; exit code 0 or 1."""
        program = self.stage.other(f"{self.pattern}-check", "downstream", *self._line(), option, "--json")
        code = program.wait(Deadline(_END_S))
        if code not in (ExitCode.DONE, ExitCode.VIOLATION):
            raise ProgramFailedError(f"{self.pattern} {option} ended with {code}: {program.last_words()}")
        told: dict[str, Any] = json.loads(program.printed())
        return told

    def position(self, topic: str | None = None) -> int:
        """The sum of the group's committed offsets in Kafka; grows with every commit that is told."""
        topic = topic or self.stage.names.output
        whose = (self.stage.cluster.connection, self.group, topic)
        found = offsets.committed_by(*whose, range(self.stage.cell.partitions), READ_UNCOMMITTED, Deadline(_ASK_S))
        return sum(one.offset for one in found.values() if one is not None)

    def forget(self) -> None:
        """Remove what it made on the brokers."""
        client = self.stage.cluster.admin
        with contextlib.suppress(BrewError):
            if self.made:
                operate.delete_topics(client, list(self.made), Deadline(_ASK_S))
            operate.delete_group(self.stage.cluster.connection, self.group, Deadline(_ASK_S))

    def _line(self) -> list[str]:
        where = ["--bootstrap", self.stage.cluster.bootstrap, "--topic", self.stage.names.output]
        return [self.pattern, *where, "--group", self.group, *self.words[1:]]


def filled(stage: Stage, count: int) -> None:
    """So many more orders go through the pipeline, aborted ones between them."""
    stage.orders(count, "--transactional")
    stage.drain()


def ended(stage: Stage, program: Program, code: int = 0) -> Program:
    """
    The program, ended with ``code``.

    Raises:
        StalledError: it ended otherwise, or not at all.
    """
    try:
        found = program.wait(Deadline(min(_END_S, max(0.1, stage.deadline.remaining_s()))))
    except BrewError as error:
        raise StalledError(f"{program.name} did not end: {program.last_words()}") from error
    if found != code:
        raise StalledError(f"{program.name} ended with {found} instead of {code}: {program.last_words()}")
    return program


def stopped(stage: Stage, program: Program) -> bool:
    """Wait until the program has stopped itself where it was told to; False when it has ended instead."""

    def there() -> bool:
        if program.code() is not None:
            return True
        with contextlib.suppress(psutil.NoSuchProcess):
            return bool(psutil.Process(program.pid).status() == psutil.STATUS_STOPPED)
        return True

    stage.until(there, f"{program.name} at its crash point", _END_S)
    return program.code() is None


def moved(stage: Stage, position: Callable[[], int], since: float, before: int) -> None:
    """Wait until the position has left ``before``, and keep the seconds that took."""
    stage.until(lambda: position() > before, "the first commit after the fault", _END_S)
    stage.recovery_s.append(time.time() - since)


def killed_again_and_again(
    consumer_of: Consumer, dying: Callable[[], Sequence[str]], position: Callable[[], int], *, per_kill: int
) -> None:
    """
    Let members die until `stage.kills` have; each start recovers the last death, and orders are added as they run out.

    ``dying``: the options of the next one; ``per_kill``: how many orders a member works off before it dies, on average.
    """
    stage, alone = consumer_of.stage, consumer_of.all_partitions
    died_at: float | None = None
    filled(stage, int(_ROOM * per_kill * stage.kills) + per_kill)
    while stage.fired["kills"] < stage.kills:
        before, program = position(), consumer_of.start(*alone, *dying())
        moved_at = _first_move(stage, program, position, before)
        if died_at is not None and moved_at is not None:
            stage.recovery_s.append(moved_at - died_at)
        died_at, code = None, program.code()
        if code == -signal.SIGKILL:
            died_at = program.ended_at
            stage.fire("kills")
        elif code == 0:
            filled(stage, int(_ROOM * per_kill * (stage.kills - stage.fired["kills"])))
        else:
            raise StalledError(f"{program.name} ended with {code} instead of dying: {program.last_words()}")
    before, last = position(), consumer_of.start(*alone)
    moved_at = _first_move(stage, last, position, before)
    ended(stage, last)
    if died_at is not None and moved_at is not None:
        stage.recovery_s.append(moved_at - died_at)


def _first_move(stage: Stage, program: Program, position: Callable[[], int], before: int) -> float | None:
    """Wait for a program's end; when the position first left ``before``, None if it did not."""
    at = None
    while program.code() is None:
        stage.deadline.check(f"the end of {program.name}")
        if at is None and position() > before:
            at = time.time()
        time.sleep(_POLL_S)
    return program.ended_at if at is None and position() > before else at


def found_by(stage: Stage, told: dict[str, Any]) -> None:
    """Keep the findings of a program's own check."""
    for name, count in told["findings"].items():
        example = next((one for one in told["examples"] if one.startswith(name)), "no example")
        stage.findings.append({"name": name, "evidence": f"{count}, the first: {example.removeprefix(f'{name}: ')}"})


@contextlib.contextmanager
def forgetting(consumer_of: Consumer) -> Iterator[Consumer]:
    """A block that leaves nothing of a consumer on the brokers."""
    try:
        yield consumer_of
    finally:
        consumer_of.forget()


@contextlib.contextmanager
def no_stall() -> Iterator[None]:
    """For controls: what does not work at all shows nothing, and must not pass for the violation that is wanted."""
    try:
        yield
    except StalledError as error:
        raise ProgramFailedError(f"the control did not get as far as its violation: {error}") from error
