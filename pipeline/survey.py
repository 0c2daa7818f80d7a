"""Ask the brokers for the facts that a plan needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from pipeline.plan import Fact
from pipeline.settings import PipelineSettings
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Refused
from protocol.kafka import topics
from protocol.kafka.clients import READ_COMMITTED, READ_UNCOMMITTED, admin, consumer, mapped
from protocol.kafka.groups import Groups
from protocol.kafka.offsets import committed, log_offsets
from protocol.kafka.topics import Topic, Wanted

_SLACK_BYTES = 65_536
_STABLE_S = 2.0


class Surveyor:
    """One admin client and one reader of positions, kept for the run; used by one thread."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self.admin, self.groups = admin(settings.connection), Groups(settings.connection)
        self._open()

    def _open(self) -> None:
        connection, group = self._settings.connection, self._settings.group
        # Not waiting for pending offsets: a hint never runs ahead of the truth, and a dead producer can't block it.
        self._reader = consumer(connection, group, READ_UNCOMMITTED)
        self._stable_reader = consumer(connection, group, READ_COMMITTED)

    def input_topic(self, deadline: Deadline) -> Topic:
        with mapped("survey"):
            found = topics.describe(self.admin, [self._settings.input], deadline).get(self._settings.input)
        if found is None:
            raise Refused(
                f"input topic {self._settings.input!r} is not on {self._settings.connection.bootstrap}; "
                "make it (`make topic-create-all`), or name another with INPUT_TOPIC (--input)"
            )
        return found

    def output_topics(self, source: Topic, deadline: Deadline) -> dict[str, Topic]:
        """The output and dead-letter topics, made like the input where they are missing."""
        wanted = [self._settings.output, self._settings.dead_letter]
        with mapped("survey"):
            found = topics.describe(self.admin, wanted, deadline)
            if len(found) < len(wanted):
                # Enrichment and headers make records larger than their source.
                limit = topics.max_message_bytes(self.admin, source.name, deadline) + _SLACK_BYTES
                config = {topics.MAX_MESSAGE_BYTES: str(limit)}
                missing = [Wanted(name, source.partitions, config) for name in wanted if name not in found]
                topics.create(self.admin, missing, deadline)
                found = topics.describe_all(self.admin, wanted, deadline)
        return found

    def facts(
        self, source: Topic, partitions: Iterable[int], deadline: Deadline, known: Mapping[int, int]
    ) -> list[Fact]:
        """
        The facts of these partitions; the position first, so that it never exceeds the log read after it.

        Where the hint is behind what this driver itself saw committed (``known``), the stable position is asked for:
        a commit's marker in the offsets topic follows a moment later, and a plan from behind would read rows twice.
        A position that is behind even so may be told by a coordinator that no longer is one: other clients ask then.
        """
        chosen = list(partitions)
        if not chosen:
            return []
        positions = committed(self._reader, source.name, chosen, deadline)

        def behind() -> list[int]:
            return [p for p in chosen if p in known and ((at := positions[p]) is None or at.offset < known[p])]

        if behind():
            with contextlib.suppress(DeadlineExceeded):
                positions |= committed(self._stable_reader, source.name, behind(), Deadline(_STABLE_S))
        if behind():
            self._close_readers()
            self._open()
            positions |= committed(self._reader, source.name, behind(), deadline)
        logs = log_offsets(self.admin, source.name, chosen, deadline)
        return [Fact(source.name, p, source.topic_id, positions[p], logs[p]) for p in chosen]

    def close(self) -> None:
        self._close_readers()
        self.groups.close()

    def _close_readers(self) -> None:
        self._reader.close()
        self._stable_reader.close()
