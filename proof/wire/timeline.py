"""What passed through the proxy, frame by frame, for people and for JSON."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

from proof.wire.codec import error_name
from proof.wire.frames import Details, Head

_KEPT = 20_000


@dataclass(frozen=True, slots=True)
class Event:
    """
    One frame, or what the proxy did to it or to its connection.

    ``at`` is in monotonic seconds since the proxy began; ``connection`` counts from 1 in the order of accepting.
    ``what`` is `request`, `reply`, or an action: `held`, `cut`, `released`, `dropped`, `delayed`.
    """

    at: float
    connection: int
    node: int
    what: str
    head: Head
    details: Details

    def document(self) -> dict[str, object]:
        """As one JSON object."""
        details = self.details
        return {
            "at": round(self.at, 6),
            "connection": self.connection,
            "node": self.node,
            "what": self.what,
            "api": self.head.title,
            "version": self.head.version,
            "correlation_id": self.head.correlation_id,
            "client_id": self.head.client_id,
            "transactional_id": details.transactional_id,
            "producer_id": details.producer_id,
            "epoch": details.epoch,
            "text": details.text,
            "error": None if details.error is None else error_name(details.error),
        }


class Timeline:
    """Events of the transaction protocol in order (the last 20,000), and a count of every request; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()

    def add(self, connection: int, node: int, what: str, head: Head, details: Details) -> None:
        event = Event(time.monotonic() - self._began, connection, node, what, head, details)
        with self._lock:
            self._events.append(event)

    def count(self, head: Head) -> None:
        self._counts[head.title] += 1

    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    def counts(self) -> dict[str, int]:
        """Requests by name, as they came in."""
        return dict(self._counts)

    def clear(self) -> None:
        """Forget events and counts; time goes on."""
        with self._lock:
            self._events.clear()
            self._counts.clear()
