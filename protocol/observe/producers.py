"""Who holds a transactional id: the brokers know and the client library does not tell, so they are asked on request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.observe.status import PartitionStatus, Status

Holders = Mapping[str, tuple[int, int]]
"""Transactional id -> producer id and epoch, as its coordinator has them now."""
Ask = Callable[[Sequence[str], Deadline], Holders]

_ASK_S = 2.0
_KEPT_S = 1.0
_UNKNOWN = "its coordinator knows no such id, or this client may not see it"


class Producers:
    """Fills producer ids and epochs into a status; answers, and failures, are kept for a second."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._asked_at: float | None = None
        self._holders: Holders = {}
        self._silent = ""

    def filled(self, status: Status) -> Status:
        """The same, with what the brokers tell within two seconds, or why they don't."""
        names = [last.transactional_id for one in status.partitions if (last := one.last_transaction) is not None]
        known = sorted({name for name in names if name is not None})
        holders, silent = self._look(known) if known else ({}, "")
        return replace(status, partitions=tuple(_with(one, holders, silent) for one in status.partitions))

    def _look(self, names: Sequence[str]) -> tuple[Holders, str]:
        with self._lock:  # who asks meanwhile gets the same answer
            if self._asked_at is None or self._clock() - self._asked_at >= _KEPT_S:
                try:
                    self._holders, self._silent = self._ask(names, Deadline(_ASK_S)), ""
                except BrewError as error:
                    self._holders, self._silent = {}, f"the brokers do not tell: {error}"
                finally:
                    self._asked_at = self._clock()
            return self._holders, self._silent


def _with(one: PartitionStatus, holders: Holders, silent: str) -> PartitionStatus:
    last = one.last_transaction
    if last is None or last.transactional_id is None:
        return one
    producer_id, epoch = holders.get(last.transactional_id, (None, None))
    why = None if producer_id is not None else silent or _UNKNOWN
    return replace(one, last_transaction=replace(last, producer_id=producer_id, epoch=epoch, producer_unknown=why))
