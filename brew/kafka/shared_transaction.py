"""
One transaction that several processes write to: the driver begins and ends it, tasks write under its epoch.

A transaction belongs to a producer id and epoch, not to a process. The driver speaks the protocol through kafka-python,
since librdkafka does not expose its producer id and can't adopt one. Tasks write through aiokafka
(`brew.kafka.shared_writer`).

Requests are those of Kafka before 4.0 (no epoch bump by EndTxn): each batch gets its epoch from InitProducerId.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from brew.acl import Denial, denial_in
from brew.deadline import Deadline, retry_until
from brew.errors import (
    Abortable,
    BrewError,
    DeadlineExceeded,
    Denied,
    Fatal,
    Fenced,
    KafkaFailure,
    Retriable,
    Unreachable,
)
from brew.kafka.committed_offset import locator
from brew.kafka.sink_transaction import SharedEpoch, SourceOffsets, send_offsets_step
from brew.kafka.transaction import TransactionSettings
from brew.names import SinkTransactionalId
from brew.offsets import Committed

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function on import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import errors
    from kafka.protocol.producer import (
        AddOffsetsToTxnRequest,
        EndTxnRequest,
        InitProducerIdRequest,
        TxnOffsetCommitRequest,
    )

_GROUP, _TRANSACTION = 0, 1
_REQUEST_S, _MAX_REQUEST_S = 5.0, 20.0
"""Each failed attempt doubles it: with a distant coordinator, TLS and a login, a request takes a dozen round trips."""
_PAUSE_S = 0.005
_END_S = 30.0
_FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
_DENIED = (
    errors.TransactionalIdAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.TopicAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
)
_SAME_CONNECTION = (errors.ConcurrentTransactionsError, errors.CoordinatorLoadInProgressError)


class SharedTransaction:
    """
    The driver's side of the six steps (`brew.transaction.Transaction`); its tasks do step 4.

    Used by one thread, for one batch after another: each *fence* gives it a new epoch.
    """

    def __init__(self, settings: TransactionSettings, topic: str) -> None:
        self._settings, self._topic = settings, topic
        self._id = str(SinkTransactionalId(settings.group, topic))
        self._locator = locator(settings.connection, settings.group)
        self._located: Committed | None = None
        self._producer_id = self._epoch = -1
        self.source: tuple[str, SourceOffsets] | None = None
        """A group, and the source offsets to commit under it."""
        self.produce: Callable[..., None] = _not_here

    @property
    def epoch(self) -> SharedEpoch:
        """What tasks adopt, once *fence* has returned."""
        settings = self._settings
        return SharedEpoch(settings.connection, self._id, self._producer_id, self._epoch, settings.timeout_s)

    @contextmanager
    def mapped(self, _step: str) -> Iterator[None]:
        yield

    def fence(self, deadline: Deadline) -> None:
        """Get a new epoch: an earlier attempt's open transaction is aborted, and its tasks can no longer write."""
        request = InitProducerIdRequest(
            transactional_id=self._id,
            transaction_timeout_ms=int(self._settings.timeout_s * 1000),
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        )
        response = self._sent("fence", request, (_TRANSACTION, self._id), deadline)
        self._producer_id, self._epoch = response.producer_id, response.producer_epoch

    def locate(self, deadline: Deadline) -> Committed | None:
        self._located = self._locator.committed(self._topic, 0, deadline)
        return self._located

    def begin(self) -> None:
        """Send nothing: brokers begin a transaction with its first partition."""

    def make_room(self, _deadline: Deadline) -> None:
        raise Fatal("produce: the driver of a shared transaction writes nothing")

    def await_acks(self, _deadline: Deadline) -> None:
        """Do nothing: the driver queues no records."""

    def flush(self, _deadline: Deadline) -> None:
        """Do nothing: tasks return only when all their records are acknowledged."""

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        """
        Add the position to the transaction, and confirm that the committed offset is still the located one.

        Raises:
            Abortable: the committed offset differs, so the batch may be visible already (docs/decisions/0012).
        """
        left = deadline.part(_END_S)
        if self.source is not None:
            group, offsets = self.source
            self._send_offsets(
                group, {name: {p: (at, self._id) for p, at in ps.items()} for name, ps in offsets.items()}, left
            )
        self._send_offsets(self._settings.group, {self._topic: {0: (until, metadata)}}, left)
        self._locator.confirmation.confirm(self._topic, 0, self._located, left)

    def commit(self, deadline: Deadline) -> None:
        self._end(deadline.part(_END_S), committed=True)

    def commit_without_waiting(self) -> None:
        with contextlib.suppress(BrewError):
            self._end(Deadline(0.02), committed=True)

    def abort(self, deadline: Deadline) -> None:
        self._end(deadline, committed=False)

    def invalidate(self) -> None:
        """Use new clients from now on, because an attempt based on the answers of the cached ones failed."""
        self._locator.invalidate()

    def _end(self, deadline: Deadline, *, committed: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=committed,
            max_version=3,
        )
        self._sent("commit" if committed else "abort", request, (_TRANSACTION, self._id), deadline)

    def _send_offsets(self, group: str, offsets: dict[str, dict[int, tuple[int, str]]], deadline: Deadline) -> None:
        producer = {"producer_id": self._producer_id, "producer_epoch": self._epoch}
        added = AddOffsetsToTxnRequest(transactional_id=self._id, group_id=group, max_version=3, **producer)
        step = send_offsets_step(group, *offsets)
        self._sent(step, added, (_TRANSACTION, self._id), deadline)
        topic_type = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition_type = topic_type.TxnOffsetCommitRequestPartition
        topics = [
            topic_type(
                name=name,
                partitions=[
                    partition_type(
                        partition_index=p, committed_offset=at, committed_leader_epoch=-1, committed_metadata=metadata
                    )
                    for p, (at, metadata) in partitions.items()
                ],
            )
            for name, partitions in offsets.items()
        ]
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=group,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=topics,
            max_version=3,
            **producer,
        )
        self._sent(step, request, (_GROUP, group), deadline)

    def _sent(self, step: str, request: Any, coordinator: tuple[int, str], deadline: Deadline) -> Any:
        """
        Send a request to its coordinator until it is accepted, as long as a retry may help; return the response.

        A retry is safe: within an epoch, each of these requests has the same effect once or twice, and another fence
        only gives another epoch.
        """
        kind, key = coordinator
        confirmation, patience_s = self._locator.confirmation, _REQUEST_S
        answered: BrewError | None = None

        async def call(admin: Any) -> Any:
            node = await admin._find_coordinator_id(key, kind)  # noqa: SLF001 - as `group_requests` does
            return await admin._manager.send(request, node_id=node)  # noqa: SLF001 - as above

        def once() -> Any:
            nonlocal patience_s, answered
            try:
                client = confirmation.client(deadline, patience_s)
            except Unreachable as error:
                # At the deadline there is no time left for a new client: the brokers' last answer is the reason.
                raise error if answered is None else Retriable(str(answered)) from error
            try:
                response = client.ask(step, call, deadline.part(patience_s))
            except (KafkaFailure, DeadlineExceeded) as error:
                confirmation.forget(client)  # it may have a former coordinator cached
                patience_s = min(2 * patience_s, _MAX_REQUEST_S)
                if denial_in(str(error)) is Denial.RIGHT:
                    raise Denied(str(error)) from error
                raise Retriable(str(error)) from error
            for answer in map(errors.for_code, filter(None, _codes(response))):
                if not issubclass(answer, _SAME_CONNECTION):
                    confirmation.forget(client)
                answered = self._failure(step, answer)
                raise answered
            return response

        return retry_until(once, step, deadline, _PAUSE_S)

    def _failure(self, step: str, error: type[Exception]) -> BrewError:
        """Convert the broker's error to one of `brew.errors`; an unknown one is not retried."""
        text = f"{step}: {error.__name__} for transactional id {self._id}"
        if issubclass(error, _FENCED):
            return Fenced(f"{text}: a newer attempt has the id, or the batch outlived its transaction time-out")
        if issubclass(error, _DENIED):
            return Denied(text)
        if issubclass(error, errors.RetriableError):
            return Retriable(text)
        return Abortable(text) if issubclass(error, errors.InvalidTxnStateError) else Fatal(text)


def _codes(response: Any) -> list[int]:
    """Return every error code of a response."""
    if hasattr(response, "error_code"):
        return [response.error_code]
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def _not_here(*_args: object) -> None:
    raise Fatal("produce: the driver of a shared transaction writes nothing")
