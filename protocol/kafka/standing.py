"""
See that a group still stands where a transaction located it, while that transaction's own offsets are pending.

A coordinator that is cut off from the other brokers does not know that it no longer is one, and tells its clients of
positions that are past (docs/decisions/0012). It can't know of offsets that its successor took: whoever answers that
the offset just sent is pending has seen all that was committed before it, too.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Abortable, DeadlineExceeded, Retriable
from protocol.position import Committed
from protocol.retry import PAUSE_S

if TYPE_CHECKING:
    from protocol.kafka.asker import Asker

STEP = "send-offsets"
_CONFIRM_S, _ATTEMPT_S = 5.0, 3.0
_OPEN_S = 2.0
"""The client tries one bootstrap server, for all of that time if nothing comes back; then another attempt is made."""
STRANGERS = 6
"""So many answers of coordinators that know of nothing pending; each comes through a client of its own."""


class Standing:
    """One group's position as its coordinator knows it. Safe for threads; used in the process that made it."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection, self._group = connection, group
        self._lock = threading.Lock()
        self._asker: Asker | None = None

    def confirm(self, topic: str, partition: int, located: Committed | None, deadline: Deadline) -> None:
        """
        Return once a coordinator that knows of this transaction's pending offset says that the group stands there.

        Raises:
            Abortable: it stands elsewhere; or no coordinator was found that knows of the pending offset.
        """
        expected = None if located is None else located.offset
        patience, strangers = deadline.part(_CONFIRM_S), 0
        why = "no coordinator answered"
        while strangers < STRANGERS and not patience.expired():
            asker: Asker | None = None
            try:
                asker = self._asked(patience.part(_OPEN_S))
                answer = asker.look(STEP, (topic, partition), patience.part(_ATTEMPT_S))
            except (DeadlineExceeded, Retriable) as error:
                why = str(error)
                time.sleep(min(PAUSE_S, patience.remaining_s()))
            else:
                if answer.aware and answer.offset == expected:
                    return
                if answer.aware:
                    self.forget()
                    raise Abortable(_moved(self._group, f"{topic}[{partition}]", expected, answer.offset))
                strangers += 1
                why = "who answered for it knows nothing of the offset just sent: it is cut off from the other brokers"
                why += ", or this transaction has ended"
            if asker is not None:
                self.forget(asker)
        place = f"{topic}[{partition}]"
        raise Abortable(f"{STEP}: where group {self._group} stands in {place} can't be confirmed: {why}; planned again")

    def forget(self, asker: Asker | None = None) -> None:
        """Ask through a new one from now on, unless that was done since ``asker`` was used."""
        with self._lock:
            kept = self._asker
            if kept is None or (asker is not None and asker is not kept):
                return
            self._asker = None
        kept.end()

    def _asked(self, deadline: Deadline) -> Asker:
        """The one that is kept; several threads may make one at first, the first one stays."""
        kept = self._asker
        if kept is not None:
            return kept
        # With it kafka-python is imported: 0.15 s, which a driver on Spark has no use for.
        from protocol.kafka.asker import Asker  # noqa: PLC0415

        made = Asker(self._connection, self._group, deadline, _ATTEMPT_S)
        with self._lock:
            first = self._asker = self._asker or made
        if first is not made:
            made.end()
        return first


def _moved(group: str, place: str, expected: int | None, found: int | None) -> str:
    stood, stands = ("nowhere" if at is None else str(at) for at in (expected, found))
    return (
        f"{STEP}: group {group} stood at {stood} in {place} when this transaction began, and stands at {stands}: a "
        "coordinator that no longer is one told that, or somebody moved it; nothing was committed, planned again"
    )
