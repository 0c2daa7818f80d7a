"""What a following program says about brokers that are away: once when it begins, once when it is over; pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class Outage:
    """
    Takes in whether brokers answer, and tells what there is to say.

    ``waits``: what happens meanwhile, and what ends the wait, as a clause. ``patience_s``: the program gives up when
    they have not answered for so long; None: it waits until it is stopped.
    """

    def __init__(self, bootstrap: str, waits: str, patience_s: float | None) -> None:
        self._bootstrap, self._waits, self._patience_s = bootstrap, waits, patience_s
        self._answered_at: float | None = None
        self._told = False

    def answered(self, now: float) -> str | None:
        """The brokers answered at ``now`` (seconds, monotonic); the line to say, if any."""
        since, self._answered_at = self._answered_at, now
        if not self._told or since is None:
            return None
        self._told = False
        return f"brokers-back: {self._bootstrap} answers again; it was away for {now - since:.0f} s"

    def silent(self, now: float, clock: datetime | None = None) -> str | None:
        """They did not; ``clock``: the time of day at ``now``. Nothing is said of brokers that never answered yet."""
        if self._told or self._answered_at is None:
            return None
        self._told = True
        silent_s = now - self._answered_at
        text = f"brokers-away: {self._bootstrap} has not answered for {silent_s:.0f} s; {self._waits}"
        if self._patience_s is None:
            return f"{text}, until it answers or this program is stopped"
        until = (clock or datetime.now(UTC)) + timedelta(seconds=max(0.0, self._patience_s - silent_s))
        return f"{text}, at least until {until:%H:%M:%S} UTC ({self._patience_s:g} s)"
