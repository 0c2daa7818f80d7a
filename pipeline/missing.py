"""What to do where the group has no committed offset: look into the output before a single record is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pipeline.plan import Fact, position_metadata
from pipeline.settings import OnMissingPosition, PipelineSettings
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka.clients import admin
from protocol.kafka.offsets import log_offsets
from protocol.kafka.scan import scan
from protocol.kafka.topics import Topic
from protocol.kafka.transaction import KafkaTransaction, TransactionSettings
from protocol.names import READ_COMMITTED
from protocol.position import SourcePosition


def resolve(settings: PipelineSettings, facts: Iterable[Fact], targets: Mapping[str, Topic]) -> set[int]:
    """
    The partitions that may start without a committed offset.

    With `restore`, partitions whose output tells the position get it committed, and are left out of the answer.

    Raises:
        Refused: `offsets-vanished`, the output holds records of a partition whose position is gone.
    """
    missing = {fact.partition: fact for fact in facts if fact.committed is None and fact.log.end > fact.log.first}
    if not missing or settings.on_missing_position is OnMissingPosition.START_OVER:
        return set(missing)
    restoring = settings.on_missing_position is OnMissingPosition.RESTORE
    last = last_sources(settings, set(missing), targets, first_hit=not restoring)
    if last and not restoring:
        partition, offset = min(last.items())
        raise Refused(
            f"offsets-vanished: group {settings.group!r} has no committed offset in {settings.input}[{partition}], "
            f"but {settings.output} or {settings.dead_letter} holds records from it (offset {offset}); "
            "either restore the position from the output's headers (--on-missing-position restore), "
            "or start over on purpose and double what is out (--on-missing-position start-over)"
        )
    for partition, offset in last.items():
        _commit_position(settings, missing[partition], offset + 1)
    return set(missing) - set(last)


def last_sources(
    settings: PipelineSettings, partitions: set[int], targets: Mapping[str, Topic], *, first_hit: bool
) -> dict[int, int]:
    """
    The highest visible source offset per input partition, read from the headers of output and dead letters.

    ``first_hit`` stops at the first record found: enough to refuse.
    """
    last: dict[int, int] = {}
    client = admin(settings.connection)
    for topic in targets.values():
        logs = log_offsets(client, topic.name, range(topic.partitions), Deadline(30))
        ranges = {p: (log.first, log.last_stable) for p, log in logs.items()}
        for batch in scan(settings.connection, topic.name, ranges, READ_COMMITTED):
            for message in batch:
                source = SourcePosition.of(message.headers())
                if source is not None and source.topic == settings.input and source.partition in partitions:
                    last[source.partition] = max(source.offset, last.get(source.partition, -1))
            if first_hit and last:
                return last
    return last


def _commit_position(settings: PipelineSettings, fact: Fact, offset: int) -> None:
    """Write the restored position by a transaction of its own, behind a fence like every other commit."""
    transaction = TransactionSettings(settings.connection, settings.group, settings.transaction_timeout_s)
    deadline = Deadline(settings.transaction_timeout_s)
    kafka = KafkaTransaction(transaction, fact.topic, fact.partition)
    try:
        kafka.fence(deadline)
        if kafka.locate(deadline) is None:
            kafka.begin()
            kafka.send_offsets(offset, position_metadata(fact.topic_id), deadline)
            kafka.commit(deadline)
    finally:
        kafka.close()
