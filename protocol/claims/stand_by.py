"""One works on a topic as a whole, the others stand by and take over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from protocol.claims.keeper import Keeper
from protocol.claims.layout import WHOLE_TOPIC
from protocol.claims.log import Log
from protocol.claims.member import INTERVAL_S, Membership

_LOOK_S = 0.25


class StandBy:
    """
    The seat of a topic's one worker: `wait` for it, look at `holds` before each piece of work, leave with the block.

    Two processes may both believe for a moment that they hold it; what they write has to be fenced by other means.
    """

    def __init__(
        self,
        open_log: Callable[[], Log],
        *,
        group: str,
        topic: str,
        client_id: str,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._keeper = Keeper(open_log, Membership(client_id, group, topic, (WHOLE_TOPIC,), interval_s))

    def __enter__(self) -> Self:
        self._keeper.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the seat up; the next one has it at once."""
        self._keeper.leave()

    def wait(self, stop: threading.Event, meanwhile: Callable[[], None] = lambda: None) -> bool:
        """Wait until the seat is ours, calling ``meanwhile`` at each look; False when ``stop`` was set before."""
        while not stop.is_set():
            if self.holds():
                return True
            meanwhile()
            self._keeper.wait(_LOOK_S)
        return False

    def holds(self) -> bool:
        """Whether the seat is surely ours now; raises what made the keeper give up."""
        return WHOLE_TOPIC in self._keeper.held()

    @property
    def owner(self) -> str | None:
        """The client id of who has the seat, as far as the log was read; None where nobody has, or he is stale."""
        return self._keeper.owners.get(WHOLE_TOPIC)

    @property
    def token(self) -> int | None:
        """The fencing token, None while the seat is not ours."""
        holding = self._keeper.held().get(WHOLE_TOPIC)
        return None if holding is None else holding.token
