"""A connection that is kept, for looks at a group's offset while one of ours is pending."""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple

from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.kafka.group_offsets import Place, group_offsets
from protocol.kafka.introspect import KafkaAdminClient, ask, open_admin


class Answer(NamedTuple):
    """``offset``: where the group stands, None for nowhere; ``aware``: the coordinator knows of what is pending."""

    offset: int | None
    aware: bool


class Asker:
    """A connection to the group's coordinator, ended with its last user. Safe for threads."""

    def __init__(self, connection: Connection, group: str, deadline: Deadline, request_s: float) -> None:
        self._group = group
        self._admin = open_admin(connection, deadline, request_s)
        # A program that ends does not wait for it.
        weakref.finalize(self, _end, self._admin).atexit = False

    def look(self, step: str, place: Place, deadline: Deadline) -> Answer:
        """
        One look at the group's offset, both questions to the same broker.

        One that waits for stable offsets is refused with UNSTABLE_OFFSET_COMMIT while one is pending (KIP-447). It is
        asked first: who knew of what is pending then has seen all that was committed before, and tells it next.

        Raises:
            Retriable: no answer, or none yet.
            DeadlineExceeded: none in time.
        """
        admin = self._admin
        stable, now = ask(admin, deadline, step, group_offsets, admin, self._group, [place], True, False)
        return Answer(now[place].offset, stable[place].unstable)


def _end(admin: KafkaAdminClient) -> None:
    """The last user may be the client's own thread, which would wait for itself."""
    if threading.current_thread().name.startswith("kafka-io"):
        threading.Thread(target=admin.close, name="asker-end", daemon=True).start()
    else:
        admin.close()
