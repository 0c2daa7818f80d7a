"""All partitions of a claims topic as one world, and what one group sees of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from protocol.claims.layout import coordinating_partition
from protocol.claims.log import Entry
from protocol.claims.messages import Message, ReleaseGroup, Snapshot, decode
from protocol.claims.table import Answer, Status, Table, status
from protocol.errors import Refused


class Owned(NamedTuple):
    """One partition as the group sees it; ``owner`` is None where nobody has it, ``age_ms`` since he was heard."""

    owner: str | None
    token: int
    status: Status
    age_ms: int
    position: int

    @property
    def free(self) -> bool:
        return self.owner is None or self.status is Status.STALE


class BrokerClock:
    """A guess of the brokers' clock between records: the newest record's time, and what has passed here since."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._newest: dict[int, tuple[int, float]] = {}

    def heard(self, partition: int, time_ms: int) -> None:
        """A record of that time just came in, or just was appended."""
        self._newest[partition] = (time_ms, self._now())

    def now_ms(self, partition: int) -> int:
        time_ms, at = self._newest.get(partition, (0, self._now()))
        return time_ms + int((self._now() - at) * 1000)


class World:
    """The tables of all partitions; ``apply`` keeps them going."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = list(tables)

    @property
    def partial(self) -> bool:
        return any(table.partial for table in self.tables)

    def apply(self, entry: Entry) -> Answer:
        """
        Take in a record.

        Raises:
            Refused: another version, or a log that has grown partitions.
        """
        message = decode(entry.value)
        if message is not None:
            self._check_place(message, entry)
        return self.tables[entry.partition].apply(entry.offset, entry.time_ms, message)

    def _check_place(self, message: Message, entry: Entry) -> None:
        if isinstance(message, (ReleaseGroup, Snapshot)) or message.partition is None:
            return
        wanted = self.home(message.topic, message.partition)
        if wanted != entry.partition:
            raise Refused(
                f"offset {entry.offset} of partition {entry.partition} of the claims topic concerns "
                f"{message.topic}[{message.partition}], which belongs into partition {wanted} of {len(self.tables)}: "
                "partitions were added to a log that had begun; name a new claims topic (--claims)"
            )

    def home(self, topic: str, partition: int) -> int:
        return coordinating_partition(topic, partition, len(self.tables))

    def owned(self, group: str, topic: str, partitions: Sequence[int], clock: BrokerClock) -> dict[int, Owned]:
        """Each of the partitions, also those that nobody ever claimed."""
        found = {}
        for partition in partitions:
            home = self.home(topic, partition)
            now, seat = clock.now_ms(home), self.tables[home].seats.get((group, topic, partition))
            if seat is None:
                found[partition] = Owned(None, -1, Status.STALE, 0, -1)
            else:
                found[partition] = Owned(seat.owner, seat.token, seat.status(now), now - seat.heard, seat.position)
        return found

    def places(self, group: str, topic: str) -> list[int]:
        """The partitions that anybody of the group ever claimed."""
        return sorted({p for table in self.tables for g, t, p in table.seats if (g, t) == (group, topic)})

    def members(self, group: str, topic: str, clock: BrokerClock) -> list[str]:
        """The members that are not stale in every partition of the log, sorted."""
        there: set[str] = set()
        for partition, table in enumerate(self.tables):
            now = clock.now_ms(partition)
            known = table.members.get((group, topic), {})
            there |= {c for c, one in known.items() if status(one.heard, one.interval_ms, now) is not Status.STALE}
        return sorted(there)

    def paused_by(self, group: str, clock: BrokerClock) -> str | None:
        """The client that has paused the group in any partition of the log, if one has."""
        for partition, table in enumerate(self.tables):
            pause = table.pauses.get(group)
            if pause is not None and clock.now_ms(partition) < pause.until:
                return pause.client
        return None

    def ends(self) -> Mapping[int, int]:
        """The next offset of each partition."""
        return {partition: table.next for partition, table in enumerate(self.tables)}
