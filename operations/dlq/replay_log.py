"""Marks: which dead letters of one partition have been written back; keys and values pure, the log behind one door."""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import DeadlineExceeded, Refused, Retriable
from brew.kafka.clients import AdminClient
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED

_SETTLED_S = 10.0


def replay_log_key(topic_id: str, offset: int) -> bytes:
    """The topic's id is part of it: offsets of a topic that was made again are other dead letters."""
    return f"{topic_id}/{offset}".encode()


def replay_log_value(group: str, source: str, partition: int, count: int) -> bytes:
    """For people: who wrote it back, where to (partition -1: by key), and for which time."""
    return orjson.dumps({"group": group, "to": source, "partition": partition, "count": count})


@dataclass
class ReplayLog:
    """The marks of one dead-letter partition, as far as read; ``group`` is who set them."""

    connection: Connection
    topic: str
    partition: int
    dead_letter_id: str
    offsets: set[int] = field(default_factory=set)
    group: str | None = None
    _next: int = 0

    def follow(self, client: AdminClient, deadline: Deadline) -> None:
        """Read what is visible and new."""
        log = log_offsets(client, self.topic, [self.partition], deadline)[self.partition]
        self._read(max(self._next, log.first), log.last_stable)

    def settle(self, client: AdminClient, deadline: Deadline) -> None:
        """
        Read all there is; behind a fence nothing of this replay's own id can be open any more.

        Raises:
            Refused: somebody else's transaction is open on the marks.
        """

        def ask() -> tuple[int, int]:
            log = log_offsets(client, self.topic, [self.partition], deadline)[self.partition]
            if log.last_stable < log.end:
                raise Retriable(f"a transaction is open at offset {log.last_stable}")
            return log.first, log.end

        try:
            first, end = retry_until(ask, "marks", deadline.part(_SETTLED_S))
        except DeadlineExceeded as error:
            raise Refused(
                f"{self.topic}[{self.partition}] has an open transaction that is not this group's: "
                "somebody replays these dead letters under another --group; let that one end first"
            ) from error
        self._read(max(self._next, first), end)

    def _read(self, start: int, until: int) -> None:
        for batch in scan(self.connection, self.topic, {self.partition: (start, until)}, READ_COMMITTED):
            for record in batch:
                self._take(record)
        self._next = max(self._next, until)

    def _take(self, record: LogRecord) -> None:
        topic_id, _, offset = (record.key() or b"").decode("utf-8", "replace").rpartition("/")
        if topic_id != self.dead_letter_id or not offset.isdigit():
            return
        self.offsets.add(int(offset))
        self.group = str(orjson.loads(record.value() or b"{}").get("group"))
