"""Crashes on purpose: the driver throws the dice for each range, the task dies at the chosen point."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from brew.errors import BrewError
from brew.names import CrashMode, CrashPoint
from brew.offsets import OffsetRange
from brew.range_transaction import CrashedOnPurposeError, Rows, Tally
from brew.settings import CrashSettings
from brew.transaction import Transaction

_abandoned: list[Transaction] = []
"""Transactions left as a killed process leaves them; referenced, so that no destructor tidies them up."""

_COMMITTED = {CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT}


class CrashInjector:
    """Decide which ranges crash; a worker's crash strikes a range's start once, so that the run can heal."""

    def __init__(self, settings: CrashSettings) -> None:
        self._settings = settings
        self._random = random.Random(settings.seed)  # noqa: S311 - dice, no secret
        self._struck: set[tuple[int, int]] = set()

    def next_crash(self, offered: OffsetRange) -> PlannedCrash | None:
        settings = self._settings
        if settings.probability == 0.0 or self._random.random() >= settings.probability:
            return None
        place = (offered.partition, offered.start)
        if settings.mode is CrashMode.WORKER and place in self._struck:
            return None
        self._struck.add(place)
        return PlannedCrash(settings.point, settings.mode)


@dataclass(frozen=True, slots=True)
class PlannedCrash:
    """Die at ``point``; travels to the task, which hands it to the kernel."""

    point: CrashPoint
    mode: CrashMode

    def at(self, point: CrashPoint, tally: Tally, transaction: Transaction) -> None:
        """Die here if this is the point: by SIGKILL (worker), or leaving all as it is for the driver's kill."""
        if point is not self.point:
            return
        if point is CrashPoint.COMMIT_IN_FLIGHT:
            with contextlib.suppress(BrewError):  # no answer in time is what this point is about
                transaction.commit_without_waiting()
        if self.mode is CrashMode.WORKER:
            os.kill(os.getpid(), signal.SIGKILL)
        _abandoned.append(transaction)
        raise CrashedOnPurposeError(tally)

    def interrupting(self, batches: Iterable[Rows], half_done: Callable[[], None]) -> Iterator[Rows]:
        """The same batches; at `mid-produce` the first one comes in two halves, with ``half_done`` between them."""
        batches = iter(batches)
        if self.point is CrashPoint.MID_PRODUCE:
            for rows in batches:
                middle = (len(rows.offsets) + 1) // 2
                yield rows.part(0, middle)
                half_done()
                yield rows.part(middle, len(rows.offsets))
                break
        yield from batches


def message(point: CrashPoint, enriched: int, rejected: int) -> str:
    """The one line that tells what a crash left behind."""
    also = f" (and {rejected} in the dead-letter log)" if rejected else ""
    if point in _COMMITTED:
        return f"💥 crash after commit: {enriched} records committed{also}, not reported"
    if point is CrashPoint.COMMIT_IN_FLIGHT:
        return f"💥 crash with the commit in flight: {enriched} records in output log{also}, outcome unknown"
    return f"💥 crash before commit: {enriched} records already in output log{also}"
