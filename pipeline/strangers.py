"""Look again, while a run lasts, whether somebody has joined the pipeline's group."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.preflight import rights
from pipeline.preflight.gate import gate
from pipeline.settings import PipelineSettings
from protocol.cluster import GroupFacts, Unknown

_EVERY_S = 5.0

Ask = Callable[[], GroupFacts | Unknown]


class Strangers:
    """Members commit positions of their own; the checks before a run see only those who were there first."""

    def __init__(self, settings: PipelineSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._next = clock() + _EVERY_S

    def look(self, ask: Ask) -> None:
        """
        Ask every few seconds; brokers that do not tell are asked again.

        Raises:
            Refused: there are members, and nobody allowed that.
        """
        if self._clock() < self._next:
            return
        told = ask()
        self._next = self._clock() + _EVERY_S
        gate([rights.members(self._settings.group, told)], self._settings.allow)
