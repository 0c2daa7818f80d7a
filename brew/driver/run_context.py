"""What all parts of a run share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brew.attempt import Job
from brew.driver.limits import FirstRecordsCheck
from brew.driver.ownership import FullOwnership, Ownership
from brew.driver.progress import ProgressView, RunProgress
from brew.fault_injection import CrashInjector
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.offsets import OffsetRange
from brew.outcome import Outcome
from brew.settings import PipelineSettings
from brew.transformation import transformation


class Interval:
    """A first time after ``seconds``, too: what begins with it has just been looked at."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._lock, self._next = threading.Lock(), clock() + seconds

    def due(self) -> bool:
        """Whether it is time; who is told so is the only one until the next time."""
        with self._lock:
            if self._clock() < self._next:
                return False
            self._next = self._clock() + self._seconds
            return True


_MEMBERS_S = 5.0


@dataclass
class RunContext:
    """
    ``targets`` are input, output and dead-letter topic by name, ``goals`` where a draining run ends (partition ->
    offset; None follows for ever), ``running`` what may have a transaction open now (partition -> range). ``replaced``:
    another driver works now, and what is left open is that one's to fence. ``lost``: ranges whose worker is gone: their
    transactions may be open until the next attempt fences them. ``members_due``: to ask who has joined.
    """

    settings: PipelineSettings
    targets: Mapping[str, Topic]
    stop: threading.Event
    board: RunProgress
    view: ProgressView
    goals: Mapping[int, int] | None
    dead_letter_max_bytes: int
    transaction: TransactionSettings
    crash_injector: CrashInjector
    crashed: list[Outcome] = field(default_factory=list)
    running: dict[int, OffsetRange] = field(default_factory=dict)
    lost: dict[int, OffsetRange] = field(default_factory=dict)
    replaced: threading.Event = field(default_factory=threading.Event)
    ownership: Ownership = field(default_factory=FullOwnership)
    first: FirstRecordsCheck = field(init=False)
    member_check_due: Interval = field(default_factory=lambda: Interval(_MEMBERS_S))

    def __post_init__(self) -> None:
        advice = str if self.settings.transform is None else transformation(self.settings).advice
        self.first = FirstRecordsCheck(self.settings.max_rejected, advice)


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
