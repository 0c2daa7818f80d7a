"""What becomes of a record whose handler failed: again, after a while; then a dead letter, or an end; pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from protocol.errors import UsageError


class OnFailure(enum.StrEnum):
    """What happens to a record when its last attempt has failed."""

    DEAD_LETTER = "dead-letter"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a record is tried; the seconds between tries are ``first_s``, doubled each time, ``most_s`` at most."""

    attempts: int = 5
    first_s: float = 0.1
    most_s: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError(f"--attempts is {self.attempts}: a record is tried once at least; set it to 1 or more")
        if not 0 < self.first_s <= self.most_s:
            raise UsageError(
                f"--back-off-s is {self.first_s:g} and --most-back-off-s {self.most_s:g}: "
                "the first has to be above 0 and not above the second"
            )

    def after(self, failures: int) -> float | None:
        """Seconds until the next try after that many failures; None when there is none."""
        if failures >= self.attempts:
            return None
        doublings = min(failures - 1, 64)
        return float(min(self.most_s, self.first_s * 2**doublings))
