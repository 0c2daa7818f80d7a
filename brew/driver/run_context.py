"""The state that all parts of a run share, and the protocols of what runs transactions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brew.attempt import Job
from brew.claims.heartbeater import FullOwnership, Ownership
from brew.driver.limits import FirstRecordsCheck
from brew.driver.progress import ProgressView, RunProgress
from brew.fault_injection import CrashInjector
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.offsets import OffsetRange
from brew.outcome import Outcome
from brew.settings import PipelineSettings
from brew.transformation import transformation


class Interval:
    """A periodic check, first due after ``seconds``."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._lock, self._next = threading.Lock(), clock() + seconds

    def due(self) -> bool:
        """True once per interval, for one caller only."""
        with self._lock:
            if self._clock() < self._next:
                return False
            self._next = self._clock() + self._seconds
            return True


_MEMBERS_S = 5.0


@dataclass
class RunContext:
    """
    Shared state of one run.

    ``targets``: input, output and dead-letter topic by name. ``goals``: partition -> offset where a draining run ends;
    None follows for ever. ``running``: partition -> range that may have an open transaction now. ``replaced``: another
    driver works now, and fences what is left open. ``lost``: ranges whose worker is gone; their transactions may be
    open until the next attempt fences them. ``member_check_due``: when to check the group for members.
    """

    settings: PipelineSettings
    targets: Mapping[str, Topic]
    stop: threading.Event
    progress: RunProgress
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


class Runner(Protocol):
    """Runs transactions outside of the thread that plans them."""

    def interrupt(self) -> None:
        """Interrupt running transactions; the caller fences them."""

    def close(self) -> None:
        """Return once everything that was started has ended."""


class Engine(Runner, Protocol):
    """Runs attempts; several lanes call it at the same time."""

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        """
        Attempt each range once; return partition -> outcome.

        A range is missing in the result if the engine saw no visible row in it; no transaction was attempted then.

        Raises:
            BrewError: no retry can succeed.
        """
