"""Dying on purpose around a store's commit, as `SIGKILL` would at the worst moments; for tests and demonstrations."""

from __future__ import annotations

import enum
import os
import random
import signal
from dataclasses import dataclass, field

from protocol.errors import UsageError


class Moment(enum.StrEnum):
    """Where a consumer can be made to die, in the order in which a batch passes them."""

    AFTER_CLAIM = "after-claim"
    BEFORE_COMMIT = "before-commit"
    COMMIT_IN_FLIGHT = "commit-in-flight"
    AFTER_COMMIT = "after-commit"


class How(enum.StrEnum):
    """`kill` is SIGKILL; `stop` is SIGSTOP, with every connection and lock kept until somebody sends SIGCONT."""

    KILL = "kill"
    STOP = "stop"


@dataclass
class Crash:
    """Dies with ``probability`` at each passing of ``moment``; never without a moment. Equal seeds die alike."""

    moment: Moment | None = None
    probability: float = 1.0
    seed: int | None = None
    how: How = How.KILL
    _dice: random.Random = field(init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise UsageError(f"--crash-prob is {self.probability}: a probability is between 0 and 1")
        self._dice = random.Random(self.seed)  # noqa: S311 - chance, not secrecy

    def due(self, moment: Moment) -> bool:
        return moment is self.moment and not self._stopped and self._dice.random() < self.probability

    def at(self, moment: Moment) -> None:
        """Die here, if it is due."""
        if self.due(moment):
            self.die()

    def die(self) -> None:
        """Go down without cleaning up and without a last word to any server; a stop happens once per process."""
        self._stopped = True
        os.kill(os.getpid(), signal.SIGKILL if self.how is How.KILL else signal.SIGSTOP)
