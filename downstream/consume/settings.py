"""What a consumer is told."""

from __future__ import annotations

from dataclasses import dataclass

from downstream.claims.settings import ClaimsSettings
from protocol.connection import Connection
from protocol.errors import UsageError

GRACE_S = 9.0  # after SIGTERM: what a handler has not committed by then is read again


@dataclass(frozen=True)
class LoopSettings:
    """
    How one member consumes.

    ``partitions``: exactly these, without group assignment; None: what the group assigns.
    ``follow``: until stopped; else until the end of the log as it was when the partitions came.
    ``batch`` records at most go to one `handle`; ``linger_s`` is waited for more of them.
    ``patience_s`` is how long one partition may wait (the store is away, or the brokers do not tell where it stands).
    ``settle_s`` is how long a draining member without partitions waits for some.
    ``claims``: partitions come by claim instead of by group assignment (of ``partitions`` only, where given).
    """

    connection: Connection
    group: str
    topic: str
    partitions: tuple[int, ...] | None = None
    follow: bool = False
    batch: int = 5000
    linger_s: float = 0.05
    max_poll_interval_s: float = 60.0
    session_timeout_s: float = 10.0
    patience_s: float = 60.0
    settle_s: float = 3.0
    claims: ClaimsSettings | None = None

    def __post_init__(self) -> None:
        if self.session_timeout_s >= self.max_poll_interval_s:
            raise UsageError(
                f"the session time-out of {self.session_timeout_s:g} s must be shorter than the poll interval of "
                f"{self.max_poll_interval_s:g} s; set --session-timeout-s or --max-poll-interval-s"
            )
