"""A connection that is kept, for looks at a group's offset while one of ours is pending."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Retriable
from protocol.kafka.group_offsets import Place, group_offsets
from protocol.kafka.introspect import KafkaAdminClient, ask, open_admin

_CLOSE_S = 1.0


class Answer(NamedTuple):
    """``offset``: where the group stands, None for nowhere; ``aware``: the coordinator knows of what is pending."""

    offset: int | None
    aware: bool


class Asker:
    """
    A connection to the group's coordinator. Safe for threads.

    It has a thread of its own, which would look for brokers for ever: whoever gives it up ends it. A failure holds on
    to it by its traceback, so that only the garbage collector would (22 threads a second while answers are cut off).
    """

    def __init__(self, connection: Connection, group: str, deadline: Deadline, request_s: float) -> None:
        self._group = group
        self._admin = open_admin(connection, deadline, request_s)
        self._lock, self._looks, self._given_up = threading.Lock(), 0, False
        # Also with the last user of a group that this process has not asked about for long.
        self._close = weakref.finalize(self, end, self._admin)
        self._close.atexit = False  # a program that ends does not wait for it

    def look(self, step: str, place: Place, deadline: Deadline) -> Answer:
        """
        One look at the group's offset, both questions to the same broker.

        One that waits for stable offsets is refused with UNSTABLE_OFFSET_COMMIT while one is pending (KIP-447). It is
        asked first: who knew of what is pending then has seen all that was committed before, and tells it next.

        Raises:
            Retriable: no answer, or none yet; or this connection was ended meanwhile.
            DeadlineExceeded: none in time.
        """
        admin = self._admin
        with self._looking(step):
            stable, now = ask(admin, deadline, step, group_offsets, admin, self._group, [place], True, False)
        return Answer(now[place].offset, stable[place].unstable)

    def end(self) -> None:
        """Close the connection, behind looks of others that go on. Harmless when repeated."""
        with self._lock:
            self._given_up, unused = True, not self._looks
        if unused:
            self._close()

    @contextmanager
    def _looking(self, step: str) -> Iterator[None]:
        with self._lock:
            if self._given_up:
                raise Retriable(f"{step}: another transaction has given this connection up")
            self._looks += 1
        try:
            yield
        finally:
            with self._lock:
                self._looks -= 1
                last = self._given_up and not self._looks
            if last:
                self._close()


def end(admin: KafkaAdminClient) -> None:
    """Its thread may be asking for an address, which has no deadline; and the last user may be that thread itself."""
    closing = threading.Thread(target=admin.close, name="asker-end", daemon=True)
    closing.start()
    if not threading.current_thread().name.startswith("kafka-io"):
        closing.join(_CLOSE_S)
