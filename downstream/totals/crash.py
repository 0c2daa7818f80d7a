"""Crashes on purpose: this process dies by SIGKILL at a chosen point of a transaction."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
from dataclasses import dataclass

from protocol.errors import BrewError, UsageError
from protocol.kafka.transaction import KafkaTransaction
from protocol.names import CrashPoint


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
