"""How a consumer takes partitions by claim."""

from __future__ import annotations

import enum
import os
import socket
import uuid
from dataclasses import dataclass

from protocol.claims.member import INTERVAL_S
from protocol.errors import UsageError
from protocol.names import CLAIMS_TOPIC


class Flow(enum.StrEnum):
    """What comes first: the work, or the claim of the messages."""

    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


@dataclass(frozen=True)
class ClaimsSettings:
    """Who takes part; ``client_id`` is stable where a restarted process should take its partitions back at once."""

    topic: str = CLAIMS_TOPIC
    client_id: str = ""
    interval_s: float = INTERVAL_S
    flow: Flow = Flow.AT_LEAST_ONCE

    def __post_init__(self) -> None:
        if not self.client_id:
            raise UsageError("a member needs a name; set --client-id")


def fresh_client_id() -> str:
    """A name that no other process has; it is not stable."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
