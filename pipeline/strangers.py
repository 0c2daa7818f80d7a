"""Look again, while a run lasts, whether somebody has joined the pipeline's group."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pipeline.preflight import rights
from pipeline.preflight.gate import gate
from pipeline.settings import PipelineSettings
from protocol.cluster import GroupFacts, Unknown

_EVERY_S = 5.0

Ask = Callable[[], GroupFacts | Unknown]


class Strangers:
    """
    Members commit positions of their own; the checks before a run see only those who were there first.

    One for all lanes of a run: whoever looks first after a few seconds asks, and its refusal ends them all.
    """

    def __init__(self, settings: PipelineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._lock, self._next = threading.Lock(), clock() + _EVERY_S

    def look(self, ask: Ask) -> None:
        """
        Ask every few seconds; brokers that do not tell are asked again.

        Raises:
            Refused: there are members, and nobody allowed that.
        """
        with self._lock:  # held for no question: a broker that is slow to answer one lane keeps no other
            if self._clock() < self._next:
                return
            self._next = self._clock() + _EVERY_S
        gate([rights.members(self._settings.group, ask())], self._settings.allow)
