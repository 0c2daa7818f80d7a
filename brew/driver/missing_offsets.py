"""What to do where the group has no committed offset: look into the output before a single record is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from brew.deadline import Deadline
from brew.errors import BrewError, Refused
from brew.kafka.clients import admin
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.offsets import committed_by, log_offsets
from brew.kafka.topics import Topic
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED
from brew.offsets import LogOffsets, SourcePosition
from brew.planner import PartitionFacts, position_metadata
from brew.settings import OnMissingPosition, PipelineSettings
from brew.transaction import Write, transact

_ASK_S = 30.0
_LIVE_S = 1.0
"""A transaction that hides output for longer than this was left by somebody who died, or hangs."""
_POLL_S = 0.05
_CREATE_TIME = 1  # librdkafka's number for a timestamp that the producer set

Logs = dict[str, dict[int, LogOffsets]]


@dataclass(frozen=True, slots=True)
class LastOutput:
    """The last record that came out of an input partition; ``created_ms`` is None where the broker set the time."""

    offset: int
    key: bytes | None
    created_ms: int | None

    def came_from(self, record: LogRecord) -> bool:
        """True when ``record`` may be its source: same key, and same timestamp where that was kept."""
        return record.key() == self.key and self.created_ms in {None, record.timestamp()[1]}


class HiddenOutputError(BrewError):
    """An open transaction hides what came out already; it ends, or its partition becomes ours to fence."""


@dataclass
class OutputWait:
    """
    Up to where the output has to become visible, over several looks: a rival's next transaction hides none of that.

    ``deadline``: then somebody has to end what still hides a part of it.
    """

    deadline: Deadline
    _partitions: frozenset[int] = frozenset()
    _logs: Logs = field(default_factory=dict)

    def ends(self, partitions: Iterable[int], ask: Callable[[], Logs]) -> Logs:
        """The logs as they were when the last of these partitions was fenced."""
        wanted = frozenset(partitions)
        if not self._logs or not wanted <= self._partitions:
            self._logs = ask()
        self._partitions = wanted  # one that comes back later may have been worked on meanwhile
        return self._logs


def resolve(
    settings: PipelineSettings,
    facts: Iterable[PartitionFacts],
    targets: Mapping[str, Topic],
    others: Iterable[PartitionFacts],
    settling: OutputWait,
) -> set[int]:
    """
    The partitions of ``facts`` that may start without a committed offset.

    ``others`` are partitions of ours that have one, and in which this run is not at work: a fence may end what a dead
    run left there. ``settling`` is given again until there is an answer.

    With `restore`, partitions whose output tells the position get it committed, and are left out of the answer;
    so are those in which another run has committed meanwhile. The caller asks for both kinds again.

    Raises:
        Refused: `offsets-vanished`, the output holds records of a partition whose position is gone.
        HiddenError: not to be told yet.
    """
    missing = {fact.partition: fact for fact in facts if fact.committed is None and fact.log.end > fact.log.first}
    if not missing or settings.on_missing_position is OnMissingPosition.START_OVER:
        return set(missing)
    names = (*settings.outputs, settings.dead_letter)
    logs = _logs(settings, {name: targets[name] for name in names})
    if all(log.end == log.first for partitions in logs.values() for log in partitions.values()):
        return set(missing)
    for fact in missing.values():
        # An older run's transaction ends here, one way or the other: what is visible from now on is all there is.
        _fence_and_commit(settings, fact, None)
    restoring = settings.on_missing_position is OnMissingPosition.RESTORE
    wanted = {name: targets[name] for name in names}
    settled = _visible_logs(settings, wanted, others, settling.ends(missing, lambda: _logs(settings, wanted)))
    traces = _last_outputs(settings, set(missing), settled, first_hit=not restoring)
    # What is visible was committed with its offset: a trace without one now is what another run did not leave.
    begun = _positioned(settings, missing) if traces else set()
    traces = {partition: trace for partition, trace in traces.items() if partition not in begun}
    if traces and not restoring:
        raise _vanished(settings, traces)
    for partition, trace in traces.items():
        _check_same_input(settings, missing[partition], trace)
    for partition, trace in traces.items():
        _fence_and_commit(settings, missing[partition], trace.offset + 1)
    return set() if begun else set(missing) - set(traces)


def _vanished(settings: PipelineSettings, traces: Mapping[int, LastOutput]) -> Refused:
    partition = min(traces)
    return Refused(
        f"offsets-vanished: group {settings.group!r} has no committed offset in {settings.input}[{partition}], "
        f"but {', '.join(settings.outputs)} or {settings.dead_letter} holds records from it (up to offset "
        f"{traces[partition].offset} at least); "
        "either restore the position from the output's headers (--on-missing-position restore), "
        "or start over on purpose and double what is out (--on-missing-position start-over)"
    )


def _positioned(settings: PipelineSettings, partitions: Iterable[int]) -> set[int]:
    """Those in which there is a committed offset by now, pending ones waited for: two runs may begin at once."""
    whose = (settings.connection, settings.group, settings.input)
    found = committed_by(*whose, partitions, READ_COMMITTED, Deadline(_ASK_S))
    return {partition for partition, position in found.items() if position is not None}


def _logs(settings: PipelineSettings, targets: Mapping[str, Topic]) -> Logs:
    client, deadline = admin(settings.connection), Deadline(_ASK_S)
    return {name: log_offsets(client, name, range(topic.partitions), deadline) for name, topic in targets.items()}


def _visible_logs(
    settings: PipelineSettings, targets: Mapping[str, Topic], others: Iterable[PartitionFacts], ends: Logs
) -> Logs:
    """
    The logs up to these ends, once no open transaction hides a part of them.

    What a killed run left open in one of ``others`` hides output, too; a fence ends it, as its next attempt would.

    Raises:
        HiddenError: one still does; a rival's, until it ends or its partitions are given to us.
    """
    patience, left = Deadline(_LIVE_S), list(others)
    while hidden := _hidden(ends, _logs(settings, targets)):
        if not patience.expired():
            time.sleep(_POLL_S)
            continue
        if not left:
            raise HiddenOutputError(
                f"group {settings.group!r} has no committed offset in {settings.input}, and an open transaction of "
                f"somebody else hides what came out already in {hidden}"
            )
        while left:
            _fence_and_commit(settings, left.pop(), None)
        patience = Deadline(_LIVE_S)  # for what these ended to become known
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
    """
    The last visible record per input partition, by the headers in output and dead letters.

    ``first_hit`` stops at the first record found: enough to refuse.
    """
    last: dict[int, LastOutput] = {}
    for name, found in logs.items():
        ranges = {p: (log.first, log.end) for p, log in found.items()}
        for batch in scan(settings.connection, name, ranges, READ_COMMITTED, group=settings.group):
            for record in batch:
                source = SourcePosition.of(record.headers())
                if source is None or source.topic != settings.input or source.partition not in partitions:
                    continue
                if source.partition not in last or last[source.partition].offset < source.offset:
                    last[source.partition] = _last_output(source, record)
            if first_hit and last:
                return last
    return last


def _last_output(source: SourcePosition, record: LogRecord) -> LastOutput:
    kind, milliseconds = record.timestamp()
    return LastOutput(source.offset, record.key(), milliseconds if kind == _CREATE_TIME else None)


def _check_same_input(settings: PipelineSettings, fact: PartitionFacts, trace: LastOutput) -> None:
    """The input of that name may have been deleted and made again: then its offsets mean other records."""
    span = {fact.partition: (trace.offset, trace.offset + 1)}
    if fact.log.first <= trace.offset < fact.log.last_stable:
        for batch in scan(settings.connection, fact.topic, span, READ_COMMITTED, group=settings.group):
            if all(trace.came_from(record) for record in batch):
                return
    elif trace.offset < fact.log.first:
        return  # retention took it; `input-lost` or the next record tells the rest
    raise Refused(
        f"topic-recreated: the output's last record of {fact.topic}[{fact.partition}] came from offset {trace.offset}, "
        "where the input now has another record or none: it was deleted and made again, so nothing can be restored; "
        "start over on purpose (--on-missing-position start-over), best with a new output topic"
    )


def _fence_and_commit(settings: PipelineSettings, fact: PartitionFacts, offset: int | None) -> None:
    """Fence the partition's id; then commit ``offset``, if one is given and there is still none."""
    transaction = TransactionSettings(settings.connection, settings.group, settings.transaction_timeout_s)
    deadline = Deadline(settings.transaction_timeout_s)
    kafka = KafkaTransaction(transaction, fact.topic, fact.partition)
    try:
        if offset is None:
            kafka.fence(deadline)
            return
        metadata = position_metadata(fact.topic_id)
        write = Write(lambda _deadline: None, lambda: offset, metadata, deadline)
        transact(kafka, lambda committed: write if committed is None else None, deadline)
    finally:
        kafka.close()
