"""Intentional crashes for tests and demonstrations: which attempts crash, and how a process dies at a crash point."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from brew.errors import BrewError, UsageError
from brew.names import CrashMode, CrashPoint, quantity
from brew.offsets import OffsetRange
from brew.range_transaction import CrashedOnPurposeError, Rows, Tally
from brew.settings import CrashSettings
from brew.transaction import Transaction

logger = logging.getLogger(__name__)
_abandoned: list[Transaction] = []
"""Transactions as a killed process leaves them; kept referenced, so that no destructor cleans them up."""

_COMMITTED = {CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT}


class CrashInjector:
    """Decides which ranges crash; a worker crash hits each range start only once, so that the run can recover."""

    def __init__(self, settings: CrashSettings) -> None:
        self._settings = settings
        self._random = random.Random(settings.seed)  # noqa: S311 - dice, not a secret
        self._crashed: set[tuple[int, int]] = set()

    def next_crash(self, offered: OffsetRange) -> PlannedCrash | None:
        settings = self._settings
        if settings.probability == 0.0 or self._random.random() >= settings.probability:
            return None
        range_start = (offered.partition, offered.start)
        if settings.mode is CrashMode.WORKER and range_start in self._crashed:
            return None
        self._crashed.add(range_start)
        return PlannedCrash(settings.point, settings.mode)


@dataclass(frozen=True, slots=True)
class PlannedCrash:
    """Die at ``point``. It is sent with the task, which passes it to the kernel."""

    point: CrashPoint
    mode: CrashMode

    def at(self, point: CrashPoint, tally: Tally, transaction: Transaction) -> None:
        """Die if this is the point: by SIGKILL (worker), or by leaving everything as is until the driver is killed."""
        if point is not self.point:
            return
        if self.mode is CrashMode.WORKER:
            die(point, transaction)
        _send_commit(point, transaction)
        _abandoned.append(transaction)
        raise CrashedOnPurposeError(tally)

    def interrupting(self, batches: Iterable[Rows], half_done: Callable[[], None]) -> Iterator[Rows]:
        """Yield the batches; at `mid-produce`, split the first one in half and call ``half_done`` in between."""
        batches = iter(batches)
        if self.point is CrashPoint.MID_PRODUCE:
            for rows in batches:
                middle = (len(rows.offsets) + 1) // 2
                yield rows.part(0, middle)
                half_done()
                yield rows.part(middle, len(rows.offsets))
                break
        yield from batches


def die(point: CrashPoint, transaction: Transaction) -> NoReturn:
    """Kill this process with SIGKILL; at `commit-in-flight`, first send the commit and do not wait for the answer."""
    _send_commit(point, transaction)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returns to nobody")


def _send_commit(point: CrashPoint, transaction: Transaction) -> None:
    if point is CrashPoint.COMMIT_IN_FLIGHT:
        with contextlib.suppress(BrewError):  # no answer in time is the purpose of this crash point
            transaction.commit_without_waiting()


@dataclass(frozen=True, slots=True)
class KillAt:
    """Die at ``point`` of a transaction that reads ``topic``, with this probability each time."""

    point: CrashPoint
    topic: str
    probability: float

    def __post_init__(self) -> None:
        _check_probability(self.probability)

    def at(self, point: CrashPoint, topic: str, transaction: Transaction) -> None:
        if (point, topic) == (self.point, self.topic) and random.random() < self.probability:  # noqa: S311 - no secret
            logger.warning("💥 crash at %s of %s", point, topic)
            die(point, transaction)


def _check_probability(probability: float) -> None:
    if not 0 <= probability <= 1:
        raise UsageError(f"--crash-prob is {probability:g}: a probability between 0 and 1 is needed")


class CrashMoment(enum.StrEnum):
    """Where a consumer can be made to die, in the order in which a batch passes these points."""

    AFTER_CLAIM = "after-claim"
    BEFORE_COMMIT = "before-commit"
    COMMIT_IN_FLIGHT = "commit-in-flight"
    AFTER_COMMIT = "after-commit"


class CrashSignal(enum.StrEnum):
    """`kill` is SIGKILL. `stop` is SIGSTOP: connections and locks are kept until someone sends SIGCONT."""

    KILL = "kill"
    STOP = "stop"


@dataclass
class StoreCrash:
    """Dies with ``probability`` each time ``moment`` is passed; never if it is None. Equal seeds give equal crashes."""

    moment: CrashMoment | None = None
    probability: float = 1.0
    seed: int | None = None
    how: CrashSignal = CrashSignal.KILL
    _dice: random.Random = field(init=False, repr=False)
    _stopped: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        _check_probability(self.probability)
        self._dice = random.Random(self.seed)  # noqa: S311 - chance, not secrecy

    def due(self, moment: CrashMoment) -> bool:
        return moment is self.moment and not self._stopped and self._dice.random() < self.probability

    def at(self, moment: CrashMoment) -> None:
        """Die if a crash is due here."""
        if self.due(moment):
            self.die()

    def die(self) -> None:
        """Die without cleaning up or telling any server; a stop happens once per process."""
        self._stopped = True
        os.kill(os.getpid(), signal.SIGKILL if self.how is CrashSignal.KILL else signal.SIGSTOP)


def message(point: CrashPoint, enriched: int, rejected: int) -> str:
    """Return the line that says what a crash left behind."""
    dead_letters = f" (and {rejected} in the dead-letter log)" if rejected else ""
    if point in _COMMITTED:
        return f"💥 crash after commit: {quantity(enriched, 'record')} committed{dead_letters}, not reported"
    if point is CrashPoint.COMMIT_IN_FLIGHT:
        records = quantity(enriched, "record")
        return f"💥 crash with the commit in flight: {records} in output log{dead_letters}, outcome unknown"
    return f"💥 crash before commit: {quantity(enriched, 'record')} already in output log{dead_letters}"
