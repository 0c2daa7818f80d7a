"""When a run gives up: nothing has moved for too long, or somebody else's transaction holds it back for too long."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from pipeline.settings import PipelineSettings
from protocol.denied import no
from protocol.errors import Refused

_BACKOFF_S = 0.1
_DENIED_S = 10.0
"""Rights that were taken away do not come back by themselves; one that is on its way takes a second or two."""
_LONGEST_BACKOFF_S = 5.0


def _why(detail: str) -> str:
    return "" if no(detail) is None else " at most where the brokers say no"


class Patience:
    """Counts failures in a row, and the time since something moved."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self.failures = 0
        self._elsewhere: Mapping[int, int] = {}
        self._last_progress = self._failing_since = time.monotonic()

    def moved(self) -> None:
        self._last_progress = time.monotonic()

    def good(self) -> None:
        """The row of failures is over."""
        self.failures = 0

    def failed(self, what: str, detail: str) -> float:
        """
        Count one failure; the seconds to wait now, longer each time and by chance: two pipelines must get out of step.

        Raises:
            Refused: nothing moved since the first failure of the row for longer than --patience.
        """
        now = time.monotonic()
        if self.failures == 0:
            self._failing_since = now  # time spent blocked by others, before the first failure, does not count
        idle = now - max(self._last_progress, self._failing_since)
        patience_s = self._settings.patience_s if no(detail) is None else min(_DENIED_S, self._settings.patience_s)
        if idle > patience_s:
            raise Refused(
                f"no progress for {idle:.0f} s (--patience is {patience_s:g} s{_why(detail)}); {what}: "
                f"{detail or 'see the lines above'}"
            )
        self.failures += 1
        longest = min(_LONGEST_BACKOFF_S, _BACKOFF_S * 2**self.failures)
        return random.uniform(longest / 4, longest)  # noqa: S311 - a pause, no secret

    def held_back(self, partitions: Sequence[int], elsewhere: Mapping[int, int] | None = None) -> None:
        """
        Nothing can move here now, though the run is to drain; ``elsewhere`` is where other drivers stand with the rest.

        Raises:
            Refused: that has lasted longer than --blocked-patience, and the others' positions stood still, too.
        """
        if elsewhere and elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
            self.moved()
        idle = time.monotonic() - self._last_progress
        if idle > self._settings.blocked_patience_s:
            if not partitions and elsewhere:
                raise Refused(
                    f"partitions {sorted(elsewhere)} of {self._settings.input} are other drivers' to drain, and have "
                    f"stood still for {idle:.0f} s; `python -m downstream claims status` shows whose, or raise "
                    "--blocked-patience"
                )
            raise Refused(
                f"partitions {list(partitions)} of {self._settings.input} were held back by an open upstream "
                f"transaction for {idle:.0f} s; end it (its owner, or kafka-transactions abort), "
                "or raise --blocked-patience"
            )
