"""Missing offsets: look for a partition's records in the output before it starts without one; keep idle ones alive."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from brew.deadline import Deadline
from brew.errors import BrewError, Fenced, Refused
from brew.kafka.clients import admin
from brew.kafka.log_reader import scan
from brew.kafka.offsets import committed_by, log_offsets
from brew.kafka.topics import Topic
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED
from brew.offsets import Committed, LogOffsets, SourcePosition
from brew.planner import PartitionFacts, position_metadata
from brew.settings import OnMissingPosition, PipelineSettings
from brew.transaction import Write, transact

_REQUEST_S = 30.0
_IDLE_S, _AGAIN_S, _RENEW_S = 3600.0, 60.0, 5.0
"""After so long at one position an offset is renewed; so long after a failure; and a renewal may take so long."""
_GRACE_S = 1.0
"""A transaction that hides output for longer than this was left open by a dead or hanging run."""
_POLL_S = 0.05
_CREATE_TIME = 1  # librdkafka's number for a timestamp that the producer set

Logs = dict[str, dict[int, LogOffsets]]


@dataclass(frozen=True, slots=True)
class LastOutput:
    """The last output record of an input partition; ``created_ms`` is None if the broker set the timestamp."""

    offset: int
    key: bytes | None
    created_ms: int | None


class HiddenOutputError(BrewError):
    """An open transaction hides output; retry until it ends, or until this driver owns its partition and fences it."""


@dataclass
class OutputWait:
    """
    The log ends up to which output must become visible; kept over retries, since later transactions do not matter.
    ``deadline``: after it, an operator has to end the transaction that still hides output.
    """

    deadline: Deadline
    _partitions: frozenset[int] = frozenset()
    _logs: Logs = field(default_factory=dict)

    def ends(self, partitions: Iterable[int], read_logs: Callable[[], Logs]) -> Logs:
        """Return the log offsets at the time when the last of these partitions was fenced."""
        requested = frozenset(partitions)
        if not self._logs or not requested <= self._partitions:
            self._logs = read_logs()
        self._partitions = requested  # another driver may work on a partition before it comes back
        return self._logs


def resolve(
    settings: PipelineSettings,
    facts: Iterable[PartitionFacts],
    targets: Mapping[str, Topic],
    others: Iterable[PartitionFacts],
    output_wait: OutputWait,
) -> set[int]:
    """
    Return the partitions of ``facts`` that may start without a committed offset.

    ``others``: owned partitions with a committed offset in which this run is not working; fencing them may end a dead
    run's transaction. ``output_wait`` is passed again on each retry. With `restore`, the position is committed for
    partitions whose output shows it: these are left out, like those in which another run has committed meanwhile;
    survey both again.

    Raises:
        Refused: `offsets-vanished`, the output has records of a partition without a committed offset.
        HiddenOutputError: an open transaction hides output; retry.
    """
    missing = {fact.partition: fact for fact in facts if fact.committed is None and fact.log.end > fact.log.first}
    if not missing or settings.on_missing_position is OnMissingPosition.START_OVER:
        return set(missing)
    outputs = {name: targets[name] for name in (*settings.outputs, settings.dead_letter)}
    logs = _logs(settings, outputs)
    if all(log.end == log.first for partitions in logs.values() for log in partitions.values()):
        return set(missing)
    for fact in missing.values():
        # The fence ends a transaction of an older run: whatever is visible afterwards is complete.
        _fence_and_commit(settings, fact, None)
    restoring = settings.on_missing_position is OnMissingPosition.RESTORE
    visible = _visible_logs(settings, outputs, others, output_wait.ends(missing, lambda: _logs(settings, outputs)))
    last_outputs = _last_outputs(settings, set(missing), visible, first_hit=not restoring)
    # Visible output was committed with its offset: another run may have committed meanwhile, so check again.
    positioned: set[int] = set()
    if last_outputs:
        source = (settings.connection, settings.group, settings.input)
        committed = committed_by(*source, missing, READ_COMMITTED, Deadline(_REQUEST_S))
        positioned = {partition for partition, position in committed.items() if position is not None}
    last_outputs = {partition: last for partition, last in last_outputs.items() if partition not in positioned}
    if last_outputs and not restoring:
        raise _vanished(settings, last_outputs)
    changed = {p: last for p, last in last_outputs.items() if not _is_same_input(settings, missing[p], last)}
    if changed:
        raise _recreated(settings, missing, changed)
    for partition, last in last_outputs.items():
        _fence_and_commit(settings, missing[partition], last.offset + 1)
    return set() if positioned else set(missing) - set(last_outputs)


def _vanished(settings: PipelineSettings, last_outputs: Mapping[int, LastOutput]) -> Refused:
    partition = min(last_outputs)
    return Refused(
        f"offsets-vanished: group {settings.group!r} has no committed offset in {settings.input}[{partition}], "
        f"but {', '.join(settings.outputs)} or {settings.dead_letter} holds records from it (up to offset "
        f"{last_outputs[partition].offset} at least); "
        "either restore the position from the output's headers (--on-missing-position restore), "
        "or start over on purpose and double these records (--on-missing-position start-over); "
        "if another group wrote them, stop it before you restore, or give this run topics of its own"
    )


def _recreated(
    settings: PipelineSettings, facts: Mapping[int, PartitionFacts], changed: Mapping[int, LastOutput]
) -> Refused:
    """``changed``: the last output of each partition whose source is not in the input now."""
    beyond_end = {p for p, last in changed.items() if last.offset >= facts[p].log.last_stable}
    partition = min(beyond_end or changed)
    name, offset = f"{settings.input}[{partition}]", changed[partition].offset
    found = f"topic-recreated: the output's last record of {name} came from offset {offset}, where the input now has "
    start_over = "start over on purpose (--on-missing-position start-over), best with a new output topic"
    if beyond_end:
        return Refused(f"{found}none: it was deleted and recreated, so nothing can be restored; {start_over}")
    positions = ", ".join(f"{p} to {changed[p].offset + 1}" for p in sorted(changed))
    command = f"kafka-consumer-groups --reset-offsets --group {shlex.quote(settings.group)} --topic {settings.input}"
    return Refused(
        f"{found}another record or none: it was deleted and recreated, unless your function changes keys or "
        "timestamps, or the topic is compacted; if so, set the position of each of these partitions by hand and run "
        f"again: {positions} ({command}:PARTITION --to-offset OFFSET); otherwise nothing can be restored: {start_over}"
    )


def _logs(settings: PipelineSettings, targets: Mapping[str, Topic]) -> Logs:
    client, deadline = admin(settings.connection), Deadline(_REQUEST_S)
    return {name: log_offsets(client, name, range(topic.partitions), deadline) for name, topic in targets.items()}


def _visible_logs(
    settings: PipelineSettings, targets: Mapping[str, Topic], others: Iterable[PartitionFacts], ends: Logs
) -> Logs:
    """Return ``ends`` once nothing open hides a part of them, fencing ``others``; else raises `HiddenOutputError`."""
    grace, remaining = Deadline(_GRACE_S), list(others)
    while hidden := _hidden(ends, _logs(settings, targets)):
        if not grace.expired():
            time.sleep(_POLL_S)
            continue
        if not remaining:
            raise HiddenOutputError(
                f"group {settings.group!r} has no committed offset in {settings.input}, and an open transaction of "
                f"another producer hides output in {hidden}"
            )
        while remaining:
            _fence_and_commit(settings, remaining.pop(), None)
        grace = Deadline(_GRACE_S)  # until the aborts by these fences are visible
    return ends


def _hidden(before: Logs, later: Logs) -> str | None:
    for name, partitions in before.items():
        for partition, log in partitions.items():
            if later[name][partition].last_stable < log.end:
                return f"{name}[{partition}]"
    return None


def _last_outputs(
    settings: PipelineSettings, partitions: set[int], logs: Logs, *, first_hit: bool
) -> dict[int, LastOutput]:
    """Return each partition's last visible output, by the headers; the first one found is enough with ``first_hit``."""
    last: dict[int, LastOutput] = {}
    for name, partition_logs in logs.items():
        ranges = {p: (log.first, log.end) for p, log in partition_logs.items()}
        for batch in scan(settings.connection, name, ranges, READ_COMMITTED, group=settings.group):
            for record in batch:
                source = SourcePosition.of(record.headers())
                if source is None or source.topic != settings.input or source.partition not in partitions:
                    continue
                if source.partition not in last or last[source.partition].offset < source.offset:
                    kind, milliseconds = record.timestamp()
                    created_ms = milliseconds if kind == _CREATE_TIME else None
                    last[source.partition] = LastOutput(source.offset, record.key(), created_ms)
            if first_hit and last:
                return last
    return last


def _is_same_input(settings: PipelineSettings, fact: PartitionFacts, last: LastOutput) -> bool:
    """Return whether the input holds the source of ``last``, or retention has deleted it."""
    if last.offset < fact.log.first:
        return True  # `input-lost` is checked elsewhere
    if last.offset >= fact.log.last_stable:
        return False
    span = {fact.partition: (last.offset, last.offset + 1)}
    for batch in scan(settings.connection, fact.topic, span, READ_COMMITTED, group=settings.group):
        if all(r.key() == last.key and last.created_ms in {None, r.timestamp()[1]} for r in batch):
            return True
    return False


def _fence_and_commit(settings: PipelineSettings, fact: PartitionFacts, offset: int | None) -> None:
    """Fence the partition's id; then commit ``offset``, if it is given and none is committed yet."""
    transaction = TransactionSettings(settings.connection, settings.group, settings.transaction_timeout_s)
    deadline = Deadline(settings.transaction_timeout_s)
    with closing(KafkaTransaction(transaction, fact.topic, fact.partition)) as kafka:
        if offset is None:
            kafka.fence(deadline)
            return
        metadata = position_metadata(fact.topic_id)
        write = Write(lambda _deadline: None, lambda: offset, metadata, deadline)
        transact(kafka, lambda committed: write if committed is None else None, deadline)


class IdleOffsets:
    """Commits idle partitions' offsets again, fenced: Kafka deletes them `offsets.retention.minutes` after a commit."""

    def __init__(self, transaction: TransactionSettings, topic: str) -> None:
        self._transaction, self._topic = transaction, topic
        self._due: dict[int, tuple[int, float]] = {}

    def renew_one(self, positions: Mapping[int, int]) -> str | None:
        """Renew an offset that has stayed at its position for an hour, if there is one; return why that failed."""
        now, problem, pause_s = time.monotonic(), None, _IDLE_S
        for partition, position in positions.items():
            if self._due.get(partition, (None, 0.0))[0] != position:
                self._due[partition] = position, now + _IDLE_S
        due = next((partition for partition in positions if self._due[partition][1] <= now), None)
        if due is None:
            return None
        try:
            renew(self._transaction, self._topic, due)
        except Fenced:  # by an attempt, which commits itself
            pass
        except BrewError as error:
            problem, pause_s = f"the offset of idle partition {due} could not be renewed: {error}", _AGAIN_S
        self._due[due] = positions[due], now + pause_s
        return problem


def renew(transaction: TransactionSettings, topic: str, partition: int) -> None:
    """Commit the partition's offset again as it is; raises `Fenced` if an attempt has begun, else as `transact`."""
    deadline = Deadline(_RENEW_S)

    def unchanged(found: Committed | None) -> Write | None:
        return None if found is None else Write(lambda _deadline: None, lambda: found.offset, found.metadata, deadline)

    with closing(KafkaTransaction(transaction, topic, partition)) as kafka:
        transact(kafka, unchanged, deadline)
