"""
Describe consumer groups.

Requests to a group coordinator go through this module and `brew.kafka.group_requests` only: librdkafka's admin client
can crash the process on such a request (see there).
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
_MAX_REASON = 160


class Groups:
    """
    Requests to group coordinators through one connection, opened on first use.

    A connection that failed is closed, and the next request opens another. Thread-safe: one request at a time.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._admin: KafkaAdminClient | None = None

    def now(self, group: str, deadline: Deadline) -> GroupFacts | Unknown:
        """A group's state and members, in one attempt; the reason if no coordinator answered."""
        try:
            return self.describe(group, deadline)
        except BrewError as error:
            return Unknown(str(error)[:_MAX_REASON])

    def describe(self, group: str, deadline: Deadline) -> GroupFacts:
        """
        As `now`.

        Raises:
            BrewError: no broker answered, or the coordinator did not.
        """
        # Imports kafka-python, which takes 0.15 s: only when it is needed.
        from brew.kafka import group_requests, kafka_python  # noqa: PLC0415

        attempt = deadline.part(_ATTEMPT_S)
        with self._lock:
            try:
                if self._admin is None:
                    self._admin = kafka_python.open_admin(self._connection, attempt, _ATTEMPT_S)
                return group_requests.describe_group(self._admin, group, attempt)
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """Close the connection. Idempotent; a later request opens another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            from brew.kafka.group_requests import end  # noqa: PLC0415 - as above

            end(admin)


def state(connection: Connection, group: str, deadline: Deadline) -> tuple[str, int]:
    """The group's state in the broker's words (`empty` when it only holds offsets), and its number of members."""
    groups = Groups(connection)
    try:
        facts = retry_until(lambda: groups.describe(group, deadline), f"describe group {group}", deadline)
    finally:
        groups.close()
    return facts.state, len(facts.members)
