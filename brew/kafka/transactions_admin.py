"""All transactions of a cluster (KIP-664), who waits behind them, and two ways to end one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from brew.cluster import ENDING, ONGOING, CoordinatorTransaction, PartitionTransaction, Place, ReadBounds
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import KafkaFailure, Refused
from brew.kafka.clients import attempt_s, mapped, mapped_query, producer
from brew.kafka.kafka_python import AdminPartition, NoSuchId, RawLogs, ask, kafka_python_admin
from brew.kafka.offset_fetch import offsets_of_groups

_FENCE_BYTES = 1_000_000
_GROUPS_S = 10.0


class TransactionsAdmin:
    """Questions of KIP-664 through one connection; made by `transactions`."""

    def __init__(self, admin: Any, deadline: Deadline) -> None:
        self._admin, self._deadline = admin, deadline

    @property
    def raw(self) -> RawLogs:
        """Raw batches through the same connection."""
        return RawLogs(self._admin)

    def held(self, places: Iterable[Place]) -> list[PartitionTransaction]:
        """What the leaders of these partitions hold open."""
        asked = [AdminPartition(topic, partition) for topic, partition in places]
        told = self._ask("describe producers", self._admin._async_describe_producers, asked)  # noqa: SLF001
        return sorted(
            PartitionTransaction(
                at.topic,
                at.partition,
                one.current_transaction_start_offset,
                one.producer_id,
                one.producer_epoch,
                one.last_timestamp,
                one.coordinator_epoch,
            )
            for at, state in told.items()
            for one in state.active_producers
            if one.current_transaction_start_offset >= 0
        )

    def going_on(self) -> list[CoordinatorTransaction]:
        """Every transaction that its coordinator has open, whether a partition is held back or not."""
        return self._listed(None, [ONGOING, *sorted(ENDING)])

    def of_producers(self, producer_ids: Iterable[int]) -> list[CoordinatorTransaction]:
        """The ids of these producers, whatever their state; those that this client may not see are left out."""
        asked = sorted(set(producer_ids))
        return self._listed(asked, None) if asked else []

    def named(self, names: Iterable[str]) -> list[CoordinatorTransaction]:
        """The ids of these names that their coordinators know; one question for all, unless one is not known."""
        asked = list(names)
        try:
            return self._described(asked) if asked else []
        except NoSuchId:
            found = []
            for name in asked:
                with suppress(NoSuchId):
                    found += self._described([name])
            return found

    def _described(self, names: list[str]) -> list[CoordinatorTransaction]:
        call = self._admin._async_describe_transactions  # noqa: SLF001
        described = self._ask("describe transactions", call, names)
        return [
            CoordinatorTransaction(
                name,
                told.state.value,
                told.producer_id,
                told.producer_epoch,
                told.transaction_timeout_ms,
                told.transaction_start_time_ms if told.transaction_start_time_ms > 0 else None,
                frozenset((at.topic, at.partition) for at in told.topic_partitions),
            )
            for name, told in ((name, described[name]) for name in names)
        ]

    def _listed(self, producer_ids: list[int] | None, states: list[str] | None) -> list[CoordinatorTransaction]:
        call = self._admin._async_list_transactions  # noqa: SLF001
        told = self._ask("list transactions", call, None, producer_ids, states)
        return self.named(sorted({one.transactional_id for some in told.values() for one in some}))

    def readers(
        self, names: Iterable[str], places: Iterable[Place]
    ) -> tuple[dict[str, dict[Place, int]], dict[str, str]]:
        """
        Those of these groups that have a committed offset in these partitions, and their offsets; then those whose
        coordinator did not answer, and why.
        """
        patience = self._deadline.part(_GROUPS_S)
        call = offsets_of_groups
        return ask(self._admin, self._deadline, "offsets of groups", call, self._admin, names, places, patience)  # type: ignore[no-any-return]

    def write_abort_marker(self, held: PartitionTransaction) -> None:
        """
        End a hanging transaction in one partition, as `kafka-transactions.sh abort` does.

        The leader refuses a marker of an older coordinator than it has seen, so its own number goes back to it.
        """
        from kafka.admin import AbortTransactionSpec  # noqa: PLC0415 - needed by one command of one program

        place = AdminPartition(held.topic, held.partition)
        spec = AbortTransactionSpec(place, held.producer_id, held.producer_epoch, max(0, held.coordinator_epoch))
        self._ask("abort hanging transaction", self._admin._async_abort_transaction, spec)  # noqa: SLF001

    def _ask(self, step: str, call: Any, *arguments: Any) -> Any:
        return retry_until(lambda: ask(self._admin, self._deadline, step, call, *arguments), step, self._deadline)


@contextmanager
def open_transactions_admin(connection: Connection, deadline: Deadline) -> Iterator[TransactionsAdmin]:
    """
    A connection for these questions; ``deadline`` holds for all of them together.

    Raises:
        Unsupported: the brokers are older than Kafka 3.0.
    """
    with kafka_python_admin(connection, deadline) as admin:
        yield TransactionsAdmin(admin, deadline)


def fence(connection: Connection, transactional_id: str, deadline: Deadline) -> None:
    """
    Become the id's newest holder: its coordinator aborts what is open, and refuses whoever held it before.

    The brokers are asked with InitProducerId, as any restart of the owner would do.
    """
    client = producer(
        connection, transactional_id, timeout_s=deadline.budget_s, message_max_bytes=_FENCE_BYTES, **{"linger.ms": 0}
    )

    def ask_once() -> None:
        with mapped(f"fence of {transactional_id}"):
            client.init_transactions(max(0.001, deadline.remaining_s()))

    retry_until(ask_once, f"fence of {transactional_id}", deadline)


def bounds(
    client: AdminClient, places: Iterable[Place], deadline: Deadline
) -> tuple[dict[Place, ReadBounds], dict[Place, str]]:
    """
    Last stable offset and end of each partition; and for those without an answer the reason.

    The end is asked first: an LSO below it is held back by a transaction, not by what was written meanwhile.
    """
    asked = {TopicPartition(topic, partition): (topic, partition) for topic, partition in places}
    if not asked:
        return {}, {}
    latest, timeout = OffsetSpec.latest(), attempt_s(deadline)  # type: ignore[no-untyped-call]
    found: list[dict[Place, int]] = []
    silent: dict[Place, str] = {}
    for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        told = client.list_offsets(dict.fromkeys(asked, latest), isolation_level=level, request_timeout=timeout)
        offsets = {}
        for at, future in told.items():
            try:
                offsets[asked[at]] = int(future.result().offset)
            except KafkaException as error:
                silent[asked[at]] = error.args[0].name()
        found.append(offsets)
    ends, stable = found
    return {at: ReadBounds(stable[at], ends[at]) for at in ends.keys() & stable.keys()}, silent


def all_partitions(client: AdminClient, topics: Iterable[str], deadline: Deadline) -> list[Place]:
    """
    The partitions of these topics; of all that this client may see when none is named.

    Raises:
        Refused: a topic that was named is not there.
    """
    with mapped("list topics"):
        listed = client.list_topics(timeout=max(0.001, deadline.remaining_s())).topics
    wanted = set(topics)
    if missing := sorted(wanted - listed.keys()):
        raise Refused(f"topic {missing[0]!r} does not exist, or may not be seen; name another with --topic")
    return sorted((name, p) for name, told in listed.items() if not wanted or name in wanted for p in told.partitions)


def groups(client: AdminClient, most: int, deadline: Deadline) -> list[str]:
    """
    The names of the groups that the brokers know, of ``most`` at most.

    Raises:
        Refused: the brokers do not list groups for this client.
    """

    def listed() -> Any:
        with mapped_query("list groups"):
            return client.list_consumer_groups(request_timeout=attempt_s(deadline)).result()

    try:
        found = retry_until(listed, "list groups", deadline)
    except KafkaFailure as error:
        raise Refused(f"groups can't be listed: {error}; grant Describe on them") from error
    return sorted(one.group_id for one in found.valid)[:most]


__all__ = ["TransactionsAdmin", "bounds", "fence", "groups", "open_transactions_admin"]
