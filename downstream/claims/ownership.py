"""A member whose partitions come and go by claim; for the consume loop it is like one of a group."""

from __future__ import annotations

import time
from collections.abc import Sequence

from downstream.claims.settings import ClaimsSettings
from protocol.claims.hand import Hand
from protocol.claims.keeper import Keeper
from protocol.claims.member import Membership
from protocol.deadline import Deadline
from protocol.kafka.claims_log import ClaimsLog
from protocol.kafka.members import Listener, Member, MemberSettings, Polled

_IDLE_INTERVALS = 3  # what a dead member held is stale after two


class ClaimedMember(Member):
    """
    Reads what its keeper holds. Between two polls nothing is handed over, as with a group.

    A worker that does not poll for ``max_poll_interval_s`` is not beaten for any more.
    """

    def __init__(self, settings: MemberSettings, claims: ClaimsSettings, partitions: Sequence[int]) -> None:
        super().__init__(settings)
        self._polled_at, self._patience_s = time.monotonic(), settings.max_poll_interval_s
        self._idle_after = Deadline(_IDLE_INTERVALS * claims.interval_s)
        self._heard = False
        self.keeper = Keeper(
            lambda: ClaimsLog(settings.connection, claims.topic),
            Membership(claims.client_id, settings.group, settings.topic, tuple(partitions), claims.interval_s),
            healthy=lambda: time.monotonic() - self._polled_at < self._patience_s,
        )
        self._hand = Hand(self.keeper)

    def join(self, listener: Listener) -> None:
        """Become a member; partitions come through ``listener`` during `poll`."""
        self._listener = listener
        self.keeper.__enter__()
        self._idle_after = Deadline(self._idle_after.budget_s)

    def poll(self, limit: int, timeout_s: float) -> dict[int, Polled]:
        """As `Member.poll`, after taking over and giving back what the log says."""
        self._polled_at = time.monotonic()
        self._follow_claims()
        return super().poll(limit, timeout_s)

    def _follow_claims(self) -> None:
        listener, hand = self._listener, self._hand
        if listener is None:
            return
        if lost := hand.lost():
            self._drop(lost)
            listener.lost(lost)
        if wanted := hand.due():
            try:
                listener.revoked(wanted)
            finally:
                hand.drop(wanted)
                self._drop(wanted)
        gained = hand.gained(but=wanted)
        if gained or (not self._heard and self._idle_after.expired()):
            # An empty hand is told once: who drains must not wait for ever where others have everything.
            self._heard = True
            self._add(listener.assigned(gained))

    def close(self, deadline: Deadline) -> bool:
        """Release what is left, and close; False when the brokers took longer than the deadline."""
        self._listener = None
        self.keeper.leave()
        return super().close(deadline)
