"""
Consumer groups, as their coordinator describes them.

The only door to a group's coordinator beside `brew.kafka.offset_fetch`: librdkafka's admin client must not be
asked such a question anywhere, see `brew.kafka.group_requests`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from brew.cluster import GroupFacts, Unknown
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import BrewError

if TYPE_CHECKING:
    from brew.kafka.kafka_python import KafkaAdminClient

_ATTEMPT_S = 3.0
_LONGEST_REASON = 160


class Groups:
    """
    Questions to the coordinators of groups, through one connection that is opened when it is first needed.

    A connection that failed is closed, and the next question opens another. Safe for threads: one asks at a time.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._admin: KafkaAdminClient | None = None

    def now(self, group: str, deadline: Deadline) -> GroupFacts | Unknown:
        """A group's state and members; one attempt, and the reason where nobody told."""
        try:
            return self.describe(group, deadline)
        except BrewError as error:
            return Unknown(str(error)[:_LONGEST_REASON])

    def describe(self, group: str, deadline: Deadline) -> GroupFacts:
        """
        As `now`.

        Raises:
            BrewError: no broker answered, or the coordinator did not.
        """
        # With it kafka-python is imported: 0.15 s, which a program that asks nothing has no use for.
        from brew.kafka import group_requests  # noqa: PLC0415

        attempt = deadline.part(_ATTEMPT_S)
        with self._lock:
            try:
                if self._admin is None:
                    self._admin = group_requests.open_admin(self._connection, attempt, _ATTEMPT_S)
                return group_requests.describe_group(self._admin, group, attempt)
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End the connection. Harmless when repeated; a question afterwards opens another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            from brew.kafka.offset_fetch import end  # noqa: PLC0415 - as above

            end(admin)


def state(connection: Connection, group: str, deadline: Deadline) -> tuple[str, int]:
    """The group's state in the broker's words (`empty` when it only holds offsets), and its number of members."""
    groups = Groups(connection)
    try:
        found = retry_until(lambda: groups.describe(group, deadline), f"describe group {group}", deadline)
    finally:
        groups.close()
    return found.state, len(found.members)
