"""
See that a group still stands where a transaction located it, while that transaction's own offsets are pending.

A coordinator that is cut off from the other brokers does not know that it no longer is one, and tells its clients of
positions that are past (docs/decisions/0012). It can't know of offsets that its successor took: whoever answers that
the offset just sent is pending has seen all that was committed before it, too.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Abortable, Retriable
from protocol.kafka.clients import ONE_TRANSACTION, admin, asking, attempt_s
from protocol.position import Committed
from protocol.retry import PAUSE_S

STEP = "send-offsets"
_CONFIRM_S = 5.0
STRANGERS = 6
"""So many answers of coordinators that know of nothing pending; each comes through a client of its own."""
_QUIET = {"topic.metadata.refresh.interval.ms": 300_000}


class Answer(NamedTuple):
    """``offset``: where the group stands, None for nowhere; ``aware``: of what is pending, before and behind it."""

    offset: int | None
    aware: bool


class Standing:
    """One group's position as its coordinator knows it. Safe for threads; used in the process that made it."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection, self._group = connection, group
        self._lock = threading.Lock()
        self._client: AdminClient | None = None

    def confirm(self, topic: str, partition: int, located: Committed | None, deadline: Deadline) -> None:
        """
        Return once a coordinator that knows of this transaction's pending offset says that the group stands there.

        Raises:
            Abortable: it stands elsewhere; or no coordinator was found that knows of the pending offset.
        """
        expected = None if located is None else located.offset
        patience, strangers = deadline.part(_CONFIRM_S), 0
        why = "no coordinator answered"
        while strangers < STRANGERS and not patience.expired():
            client = self._asked()
            try:
                answer = look(client, self._group, topic, partition, patience)
            except Retriable as error:
                why = str(error)
                time.sleep(min(PAUSE_S, patience.remaining_s()))
            else:
                if answer.aware and answer.offset == expected:
                    return
                if answer.aware:
                    self.forget()
                    raise Abortable(_moved(self._group, f"{topic}[{partition}]", expected, answer.offset))
                strangers += 1
                why = "who answered for it knows nothing of the offset just sent: it is cut off from the other brokers"
                why += ", or this transaction has ended"
            self.forget(client)
        place = f"{topic}[{partition}]"
        raise Abortable(f"{STEP}: where group {self._group} stands in {place} can't be confirmed: {why}; planned again")

    def forget(self, client: AdminClient | None = None) -> None:
        """Ask through a new client from now on, unless that was done since ``client`` was used."""
        with self._lock:
            if client is None or self._client is client:
                self._client = None

    def _asked(self) -> AdminClient:
        with self._lock:
            if self._client is None:
                self._client = admin(self._connection, **ONE_TRANSACTION, **_QUIET)
            return self._client


def look(client: AdminClient, group: str, topic: str, partition: int, deadline: Deadline) -> Answer:
    """
    One look at the group's offset, all three questions on their way at once.

    A question that waits for stable offsets is refused with UNSTABLE_OFFSET_COMMIT while one is pending (KIP-447). It
    is asked before and after the one that does not wait, so that these three are of one coordinator's.

    Raises:
        Retriable: no answer, or none yet.
    """

    def ask(*, stable: bool) -> Future[ConsumerGroupTopicPartitions]:
        asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])]
        timeout = attempt_s(deadline)
        return client.list_consumer_group_offsets(asked, require_stable=stable, request_timeout=timeout)[group]

    before, now, after = (ask(stable=True), ask(stable=False), ask(stable=True))
    with asking(STEP):
        told = [place for one in (before, now, after) for place in one.result().topic_partitions or ()]
        pending = [one.error is not None and one.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT for one in told]
        for one, unstable in zip(told, pending, strict=True):
            if one.error is not None and not unstable:
                raise KafkaException(one.error)
    return Answer(told[1].offset if told[1].offset >= 0 else None, pending == [True, False, True])


def _moved(group: str, place: str, expected: int | None, found: int | None) -> str:
    stood, stands = ("nowhere" if at is None else str(at) for at in (expected, found))
    return (
        f"{STEP}: group {group} stood at {stood} in {place} when this transaction began, and stands at {stands}: a "
        "coordinator that no longer is one told that, or somebody moved it; nothing was committed, planned again"
    )
