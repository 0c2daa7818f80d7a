"""Look again, while a run lasts, whether somebody has joined the pipeline's group."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.every import Every
from pipeline.preflight import rights
from pipeline.preflight.gate import gate
from pipeline.settings import PipelineSettings
from protocol.cluster import GroupFacts, Unknown

Ask = Callable[[], GroupFacts | Unknown]


class Strangers:
    """
    Members commit positions of their own; the checks before a run see only those who were there first.

    The lanes of a run share ``every``: whoever looks first after a few seconds asks, and its refusal ends them all.
    """

    def __init__(self, settings: PipelineSettings, every: Every) -> None:
        self._settings, self._every = settings, every

    def look(self, ask: Ask) -> None:
        """
        Ask every few seconds; brokers that do not tell are asked again.

        Raises:
            Refused: there are members, and nobody allowed that.
        """
        if self._every.due():
            gate([rights.members(self._settings.group, ask())], self._settings.allow)
