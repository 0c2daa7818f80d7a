"""Crashes on purpose around a store's commit, for tests and demonstrations."""

from __future__ import annotations

import contextlib
import enum
import os
import random
import signal
import sys
from dataclasses import dataclass, field

from brew.errors import BrewError, UsageError
from brew.kafka.transaction import KafkaTransaction
from brew.names import CrashPoint


class CrashMoment(enum.StrEnum):
    """Where a consumer can be made to die, in the order in which a batch passes them."""

    AFTER_CLAIM = "after-claim"
    BEFORE_COMMIT = "before-commit"
    COMMIT_IN_FLIGHT = "commit-in-flight"
    AFTER_COMMIT = "after-commit"


class CrashSignal(enum.StrEnum):
    """`kill` is SIGKILL; `stop` is SIGSTOP, with every connection and lock kept until somebody sends SIGCONT."""

    KILL = "kill"
    STOP = "stop"


@dataclass
class Crash:
    """Dies with ``probability`` at each passing of ``moment``; never without a moment. Equal seeds die alike."""

    moment: CrashMoment | None = None
    probability: float = 1.0
    seed: int | None = None
    how: CrashSignal = CrashSignal.KILL
    _dice: random.Random = field(init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise UsageError(f"--crash-prob is {self.probability}: a probability is between 0 and 1")
        self._dice = random.Random(self.seed)  # noqa: S311 - chance, not secrecy

    def due(self, moment: CrashMoment) -> bool:
        return moment is self.moment and not self._stopped and self._dice.random() < self.probability

    def at(self, moment: CrashMoment) -> None:
        """Die here, if it is due."""
        if self.due(moment):
            self.die()

    def die(self) -> None:
        """Go down without cleaning up and without a last word to any server; a stop happens once per process."""
        self._stopped = True
        os.kill(os.getpid(), signal.SIGKILL if self.how is CrashSignal.KILL else signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class KillAt:
    """Die at ``point`` of a transaction that reads ``topic``, with this probability each time."""

    point: CrashPoint
    topic: str
    probability: float

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise UsageError(f"--crash-prob is {self.probability:g}: a probability between 0 and 1 is needed")

    def at(self, point: CrashPoint, topic: str, kafka: KafkaTransaction) -> None:
        if (point, topic) != (self.point, self.topic) or random.random() >= self.probability:  # noqa: S311 - dice, no secret
            return
        if point is CrashPoint.COMMIT_IN_FLIGHT:
            with contextlib.suppress(BrewError):  # no answer in time is what this point is about
                kafka.commit_without_waiting()
        sys.stderr.write(f"💥 crash at {point} of {topic}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
