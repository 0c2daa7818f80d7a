"""List the transactions of a cluster (KIP-664), find the groups they block, and end one by fencing or by a marker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from brew.cluster import (
    ENDING,
    ONGOING,
    TRANSACTIONS_TOPIC,
    CoordinatorTransaction,
    PartitionTransaction,
    Place,
    ReadBounds,
)
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import KafkaFailure, Refused
from brew.kafka.clients import attempt_s, mapped, mapped_query, producer
from brew.kafka.group_requests import offsets_of_groups
from brew.kafka.kafka_python import AdminPartition, NoSuchId, RawLogs, ask, kafka_python_admin
from brew.kafka.transaction import fencing

_FENCE_BYTES = 1_000_000
_GROUPS_S = 10.0
_FEW_IDS = 16
"""Above, ids of which one is unknown are looked up in the brokers' lists, instead of one by one."""


class TransactionsAdmin:
    """Requests of KIP-664 through one connection; made by `open_transactions_admin`."""

    def __init__(self, admin: Any, deadline: Deadline) -> None:
        self._admin, self._deadline = admin, deadline

    @property
    def raw(self) -> RawLogs:
        """Raw batches through the same connection."""
        return RawLogs(self._admin)

    def held(self, places: Iterable[Place]) -> list[PartitionTransaction]:
        """Return the transactions that are open in these partitions, according to their leaders."""
        partitions = [AdminPartition(topic, partition) for topic, partition in places]
        states = self._ask("describe producers", self._admin._async_describe_producers, partitions)  # noqa: SLF001
        return sorted(
            PartitionTransaction(
                tp.topic,
                tp.partition,
                producer.current_transaction_start_offset,
                producer.producer_id,
                producer.producer_epoch,
                producer.last_timestamp,
                producer.coordinator_epoch,
            )
            for tp, state in states.items()
            for producer in state.active_producers
            if producer.current_transaction_start_offset >= 0
        )

    def ongoing(self) -> list[CoordinatorTransaction]:
        """Return every open transaction according to its coordinator, whether it holds back a partition or not."""
        return self._listed(None, [ONGOING, *sorted(ENDING)])

    def of_producers(self, producer_ids: Iterable[int]) -> list[CoordinatorTransaction]:
        """Return the transactional ids of these producers in any state; those it may not describe are left out."""
        ids = sorted(set(producer_ids))
        return self._listed(ids, None) if ids else []

    def named(self, names: Iterable[str]) -> list[CoordinatorTransaction]:
        """Return the state of the ids that exist: one request for all, or one for each of a few if one is unknown."""
        ids = list(names)
        try:
            return self._described(ids) if ids else []
        except NoSuchId:
            if len(ids) > _FEW_IDS and len(known := set(ids) & self._names(None, None)) < len(ids):
                return self.named(sorted(known))
            transactions = []
            for name in ids:
                with suppress(NoSuchId):
                    transactions += self._described([name])
            return transactions

    def _described(self, names: list[str]) -> list[CoordinatorTransaction]:
        call = self._admin._async_describe_transactions  # noqa: SLF001
        described = self._ask("describe transactions", call, names)
        return [
            CoordinatorTransaction(
                name,
                description.state.value,
                description.producer_id,
                description.producer_epoch,
                description.transaction_timeout_ms,
                description.transaction_start_time_ms if description.transaction_start_time_ms > 0 else None,
                frozenset((tp.topic, tp.partition) for tp in description.topic_partitions),
            )
            for name, description in ((name, described[name]) for name in names)
        ]

    def _listed(self, producer_ids: list[int] | None, states: list[str] | None) -> list[CoordinatorTransaction]:
        return self.named(sorted(self._names(producer_ids, states)))

    def _names(self, producer_ids: list[int] | None, states: list[str] | None) -> set[str]:
        call = self._admin._async_list_transactions  # noqa: SLF001
        listings = self._ask("list transactions", call, None, producer_ids, states)
        return {entry.transactional_id for listing in listings.values() for entry in listing}

    def readers(
        self, names: Iterable[str], places: Iterable[Place]
    ) -> tuple[dict[str, dict[Place, int]], dict[str, str]]:
        """Return the groups' committed offsets in these partitions, and the errors of the others by group."""
        attempt = self._deadline.part(_GROUPS_S)
        call = offsets_of_groups
        return ask(self._admin, self._deadline, "offsets of groups", call, self._admin, names, places, attempt)  # type: ignore[no-any-return]

    def write_abort_marker(self, held: PartitionTransaction) -> None:
        """
        Abort a hanging transaction in one partition, as `kafka-transactions.sh abort` does. The leader refuses a marker
        of an older coordinator epoch than it has seen, so the marker carries that epoch.
        """
        from kafka.admin import AbortTransactionSpec  # noqa: PLC0415 - needed by one command of one program

        tp = AdminPartition(held.topic, held.partition)
        spec = AbortTransactionSpec(tp, held.producer_id, held.producer_epoch, max(0, held.coordinator_epoch))
        self._ask("abort hanging transaction", self._admin._async_abort_transaction, spec)  # noqa: SLF001

    def _ask(self, step: str, call: Any, *arguments: Any) -> Any:
        return retry_until(lambda: ask(self._admin, self._deadline, step, call, *arguments), step, self._deadline)


@contextmanager
def open_transactions_admin(connection: Connection, deadline: Deadline) -> Iterator[TransactionsAdmin]:
    """Open a connection; ``deadline`` limits all its requests together. Raises `Unsupported` before Kafka 3.0."""
    with kafka_python_admin(connection, deadline) as admin:
        yield TransactionsAdmin(admin, deadline)


def fence(connection: Connection, transactional_id: str, deadline: Deadline) -> None:
    """Fence the id by InitProducerId, as a restart would: its open transaction is aborted, its producer refused."""
    client = producer(
        connection, transactional_id, timeout_s=deadline.budget_s, message_max_bytes=_FENCE_BYTES, **{"linger.ms": 0}
    )
    attempt = fencing(client)  # in short calls: a signal is handled between two of them

    def ask_once() -> None:
        with mapped(f"fence of {transactional_id}"):
            attempt(max(0.001, deadline.remaining_s()))

    retry_until(ask_once, f"fence of {transactional_id}", deadline)


def bounds(
    client: AdminClient, places: Iterable[Place], deadline: Deadline
) -> tuple[dict[Place, ReadBounds], dict[Place, str]]:
    """
    Return the last stable offset and end of each partition, and the error of each partition without an answer. The end
    is read first: an LSO below it is held back by a transaction, not by records written meanwhile.
    """
    place_of = {TopicPartition(topic, partition): (topic, partition) for topic, partition in places}
    if not place_of:
        return {}, {}
    latest, timeout = OffsetSpec.latest(), attempt_s(deadline)  # type: ignore[no-untyped-call]
    offsets_by_level: list[dict[Place, int]] = []
    unanswered: dict[Place, str] = {}
    for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        futures = client.list_offsets(dict.fromkeys(place_of, latest), isolation_level=level, request_timeout=timeout)
        offsets = {}
        for tp, future in futures.items():
            try:
                offsets[place_of[tp]] = int(future.result().offset)
            except KafkaException as error:
                unanswered[place_of[tp]] = error.args[0].name()
        offsets_by_level.append(offsets)
    ends, stable = offsets_by_level
    return {tp: ReadBounds(stable[tp], ends[tp]) for tp in ends.keys() & stable.keys()}, unanswered


def all_partitions(
    client: AdminClient, topics: Iterable[str], deadline: Deadline
) -> tuple[list[Place], dict[Place, str]]:
    """
    Return the partitions of these topics (`Refused` if one is missing), or of all that this client may describe; apart,
    with the reason, those without a leader, for which a query of offsets waits in vain, and always those of the
    coordinators.
    """
    with mapped("list topics"):
        listed = client.list_topics(timeout=max(0.001, deadline.remaining_s())).topics
    wanted = set(topics)
    if missing := sorted(wanted - listed.keys()):
        raise Refused(f"topic {missing[0]!r} does not exist, or this client may not see it; name another with --topic")
    chosen = wanted or set(listed)
    reported = chosen | {TRANSACTIONS_TOPIC}
    leaders = {(name, p): one.leader for name, topic in listed.items() for p, one in topic.partitions.items()}
    led = sorted(place for place, leader in leaders.items() if leader >= 0 and place[0] in chosen)
    leaderless = [place for place, leader in leaders.items() if leader < 0 and place[0] in reported]
    return led, dict.fromkeys(leaderless, "no leader; start a broker that holds it")


def groups(client: AdminClient, deadline: Deadline) -> list[str]:
    """Return the names of all groups; raises `Refused` if this client may not list them."""

    def listed() -> Any:
        with mapped_query("list groups"):
            return client.list_consumer_groups(request_timeout=attempt_s(deadline)).result()

    try:
        listing = retry_until(listed, "list groups", deadline)
    except KafkaFailure as error:
        raise Refused(f"groups can't be listed: {error}; grant Describe on them") from error
    return sorted(group.group_id for group in listing.valid)
