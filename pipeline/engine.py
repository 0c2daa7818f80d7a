"""What carries a lane's attempts: Spark's tasks, or this process alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pipeline.attempt import Job
from pipeline.outcome import Outcome
from protocol.position import OffsetRange


class Carrier(Protocol):
    """Whatever runs transactions somewhere else than in the thread that decides."""

    def interrupt(self) -> None:
        """Give up what runs; the caller fences it."""

    def close(self) -> None:
        """Return once all that was started has ended."""


class Engine(Carrier, Protocol):
    """Runs attempts, called by several lanes at once."""

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        """
        One attempt for each range; partition -> what became of it.

        A range may be missing in the answer: the engine saw no visible row in it, and no transaction was tried.

        Raises:
            BrewError: nothing that is tried again can succeed.
        """
