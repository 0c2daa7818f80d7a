"""Rounds of both stages, orders to deltas and deltas to totals, until drained or stopped."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from brew.claims.heartbeater import DENIED_S, Denials
from brew.deadline import Deadline, retry_until
from brew.driver.missing_offsets import IdleOffsets
from brew.errors import DeadlineExceeded, Fenced, KafkaFailure, Refused, Retriable
from brew.fault_injection import KillAt
from brew.kafka.clients import AdminClient, KafkaError, KafkaException, admin, consumer, is_cut_off, reach
from brew.kafka.cluster import broker_watch
from brew.kafka.log_reader import LogRecord, RangeReader, scan
from brew.kafka.offsets import committed, log_offsets
from brew.kafka.topics import Topic, describe
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED, READ_UNCOMMITTED, quantity
from brew.observability.counters import Ending
from brew.observability.recorder import Recorder
from brew.observability.status import Phase
from brew.offsets import LogOffsets
from downstream.totals.stages import Aggregate, AttemptResult, Source, Split, StageTask, advance
from downstream.totals.state_store import Store, wait_until_stable
from downstream.totals.topics import (
    Topics,
    TotalsSettings,
    ensured,
    require_same_layout,
    require_same_topics,
    require_within,
)

_REACH_S = 12.0
_ASK_S = 30.0
_PATIENCE_S = 90.0
_AHEAD_S = 10.0
_PAUSE_S = 0.1
_GRACE_S = 15.0  # the coordinator checks for timed-out transactions every 10 s
_SHOW_S = 5.0
_REPORT_AGAIN_S = 10.0

StoreOf = Callable[[int, Topic], Store]
"""(partition, changelog topic) -> its store."""


@dataclass
class RunResult:
    orders: int = 0
    deltas: int = 0
    transactions: int = 0
    fenced: int = 0
    failed: int = 0
    restored: int = 0
    restore_s: float = 0.0


@dataclass
class _Stage:
    """
    One topic's partitions and their tasks; ``seen``: committed offsets, ``goal``: where a drain ends. ``layout``:
    committed with the offsets (`Topics.layout`). ``idle``: offsets of the partitions without more to read.
    """

    topic: Topic
    tasks: Mapping[int, StageTask]
    seen: dict[int, int] = field(default_factory=dict)
    goal: dict[int, int] | None = None
    layout: str = ""
    idle: dict[int, int] = field(default_factory=dict)


class Run:
    """
    Runs one process's totals. A second process with the same group is safe but useless: they fence each other in turn.
    ``store_of`` creates a partition's store; all stores are closed cleanly at the end unless the process is killed.
    ``patience_s``: how long a partition may keep failing before the run ends.
    """

    patience_s = _PATIENCE_S

    def __init__(
        self,
        settings: TotalsSettings,
        store_of: StoreOf,
        stop: threading.Event,
        tell: Callable[[str], None] = lambda _text: None,
        crash: KillAt | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._recorder = recorder or Recorder.unobserved()
        self._settings, self._store_of, self._stop, self._tell, self._crash = settings, store_of, stop, tell, crash
        self._transaction = TransactionSettings(settings.connection, settings.group, settings.timeout_s)
        self.result, self._lock = RunResult(), threading.Lock()
        self._stores: dict[int, Store] = {}
        self._readers: dict[tuple[str, int], RangeReader] = {}
        # By partition or topic: since the first failure in a row, or since its log ends before the group's offset.
        self._give_up: dict[str, tuple[Deadline, Denials]] = {}
        self._ahead: dict[str, Deadline] = {}
        self._reported: dict[str, tuple[str, Deadline]] = {}

    def run(self, *, follow: bool) -> RunResult:
        """
        Count the orders up to the current end or, with ``follow``, until ``stop`` is set.

        Raises:
            Unreachable, Refused: there is nothing to count, or going on would miscount.
            DeadlineExceeded: no attempt succeeded for a while.
        """
        reach(self._settings.connection, Deadline(_REACH_S))
        self._open_clients()
        try:
            self._topics = topics = ensured(self._admin, self._settings, Deadline(_ASK_S))
            known = committed(self._asking, topics.deltas.name, range(topics.deltas.partitions), Deadline(_ASK_S))
            require_same_layout(self._settings, topics, known.values())
            if all(offset is None for offset in known.values()):
                self._require_own_results(topics)
            first, second = self._stages(topics)
            if not follow:
                first.goal = {p: log.last_stable for p, log in self._logs(first).items()}
            self._recorder.phase(Phase.WORKING)
            waits = "totals wait, and will continue at the group's offsets"
            watch = broker_watch(self._settings.connection, self._settings.input, waits, self.patience_s, self._tell)
            with (
                watch if follow else nullcontext(),
                ThreadPoolExecutor(topics.input.partitions, thread_name_prefix="totals") as pool,
            ):
                self._rounds(first, second, pool, follow=follow)
        finally:
            self._asking.close()
            for reader in self._readers.values():
                reader.close()
            self.close_stores()
        return self.result

    def _open_clients(self) -> None:
        self._admin = admin(self._settings.connection)
        self._asking = consumer(self._settings.connection, self._settings.group, READ_UNCOMMITTED)

    def _require_own_results(self, topics: Topics) -> None:
        """Refuse another group's results in the output of a group that has added nothing: they would be mixed."""
        settings, deadline = self._settings, Deadline(_ASK_S)
        changelog, output = (_ends(self._admin, topic, deadline) for topic in (topics.changelog, topics.output))
        if any(log.end for log in changelog.values()):
            return  # it has counted before: its own results, or the later checks tell
        visible = {p: (log.first, log.last_stable) for p, log in output.items()}
        if next(scan(settings.connection, settings.output, visible, READ_COMMITTED, group=settings.group), None):
            raise Refused(
                f"results-of-others: {settings.output} holds results, and group {settings.group!r} has counted nothing "
                "yet: the totals of two groups would replace each other there. Name another --output, or the group "
                "that wrote them with --group"
            )

    def _client(self) -> AdminClient:
        return self._admin

    def _replace_if_cut_off(self) -> None:
        """Replace clients that have lost the brokers for good; called after a failed request."""
        connection, topic = self._settings.connection, self._settings.input
        if any(is_cut_off(client, connection, topic) for client in (self._admin, self._asking)):
            self._asking.close()
            self._open_clients()

    def close_stores(self) -> None:
        """Close the stores cleanly, so that the next process can trust them; those behind one that fails, too."""
        with contextlib.ExitStack() as ending:
            for store in self._stores.values():
                ending.callback(store.close)

    def _stages(self, topics: Topics) -> tuple[_Stage, _Stage]:
        counts = topics.input.partitions, topics.changelog.partitions
        split = {p: Split(self._settings, self._client, topics.input, p, counts[1]) for p in range(counts[0])}
        aggregate = {}
        for p in range(topics.deltas.partitions):
            self._stores[p] = self._store_of(p, topics.changelog)
            aggregate[p] = Aggregate(self._settings, self._client, p, self._stores[p], self._restored, self._stop)
        return _Stage(topics.input, split), _Stage(topics.deltas, aggregate, layout=topics.layout)

    def _restored(self, partition: int, records: int, seconds: float) -> None:
        with self._lock:
            self.result.restored += records
            self.result.restore_s += seconds
        self._tell(f"restored partition {partition}: {quantity(records, 'record')} of the changelog in {seconds:.1f} s")

    def _rounds(self, first: _Stage, second: _Stage, pool: ThreadPoolExecutor, *, follow: bool) -> None:
        offsets = [(stage, IdleOffsets(self._transaction, stage.topic.name)) for stage in (first, second) if follow]
        while not self._stop.is_set():
            found = self._round(first, pool) + self._round(second, pool)
            for stage, idle in offsets:
                if problem := idle.renew_one(stage.idle):
                    self._tell(f"{stage.topic.name}: {problem}")
            if found:
                continue
            if follow:
                self._stop.wait(_PAUSE_S)
            elif self._drained(second):
                return

    def _drained(self, second: _Stage) -> bool:
        """Return True if nothing is left below the last stable offset or on its way there, and results are visible."""
        patience = Deadline(self._settings.timeout_s + _GRACE_S)
        logs = wait_until_stable(self._admin, self._settings.deltas, second.tasks, patience)
        if any(log.last_stable > second.seen[p] for p, log in logs.items()):
            return False
        with contextlib.suppress(DeadlineExceeded):  # they are committed; a transaction that hides them is not ours
            for topic in (self._settings.changelog, self._settings.output):
                wait_until_stable(self._admin, topic, second.tasks, Deadline(_SHOW_S))
        return True

    def _logs(self, stage: _Stage) -> dict[int, LogOffsets]:
        return log_offsets(self._admin, stage.topic.name, stage.tasks, Deadline(_ASK_S))

    def _round(self, stage: _Stage, pool: ThreadPoolExecutor) -> int:
        """Make one attempt at each partition that has something to do; return how many there are."""
        try:
            known = committed(self._asking, stage.topic.name, stage.tasks, Deadline(_ASK_S))
            logs = self._logs(stage)
            if any(log.last_stable > stage.seen.get(p, -1) for p, log in logs.items()):
                self._check_topics()
        except (KafkaFailure, DeadlineExceeded) as error:
            self._recorder.unanswered(str(error))
            self._replace_if_cut_off()
            self._failed("failed", stage.topic.name, f"{type(error).__name__}: {error}")
            return 1
        self._give_up.pop(stage.topic.name, None)
        stage.idle = {p: at.offset for p, at in known.items() if at is not None and at.offset == logs[p].end}
        attempts, waiting = [], 0
        for p, log in logs.items():
            # A hint that ignores pending offsets (a commit's marker follows later); the attempt locates the stable one.
            hint = known[p]
            start = max(log.first if hint is None else hint.offset, stage.seen.get(p, 0))
            stage.seen[p] = start
            self._recorder.surveyed((stage.topic.name, p), start, log.last_stable, log.end)
            until = min(log.last_stable, start + self._settings.max_offsets)
            if stage.goal is not None:
                until = min(until, stage.goal[p])
            source = Source(stage.topic.name, stage.topic.topic_id, p, log, stage.layout)
            if start > log.last_stable:
                self._wait_for_log(source, start)
                waiting += 1
                continue
            self._ahead.pop(str(source), None)
            if start < until:
                attempts.append(pool.submit(self._attempt, stage, source, until))
            else:
                self._give_up.pop(str(source), None)  # nothing is left there that could fail
        for attempt in attempts:
            attempt.result()
        return len(attempts) + waiting

    def _check_topics(self) -> None:
        """Check the topics before each round: a recreated input would be read on from the old one's position."""
        names = [topic.name for topic in self._topics]
        require_same_topics(self._topics, describe(self._admin, names, Deadline(_ASK_S)))

    def _wait_for_log(self, source: Source, start: int) -> None:
        """Refuse a log that ends before the group's offset; a broker that has lost its leadership may say so."""
        if self._ahead.setdefault(str(source), Deadline(_AHEAD_S)).expired():
            require_within(str(source), start, source.log)
        self._stop.wait(_PAUSE_S)

    def _attempt(self, stage: _Stage, source: Source, until: int) -> None:
        """Run one transaction; count errors that the next attempt can recover from."""
        partition, work = source.partition, stage.tasks[source.partition]
        kafka = KafkaTransaction(self._transaction, source.topic, partition)
        tell = partial(self._recorder.attempted, (source.topic, partition), stage.seen[partition], until, time.time())
        self._recorder.begun((source.topic, partition))
        try:
            done = advance(
                source, until, work, partial(self._read, stage, partition), kafka, self._settings.timeout_s, self._crash
            )
        except Fenced:
            tell(Ending.FENCED)
            self._failed("fenced", source, "another process is counting in this group")
        except (KafkaFailure, DeadlineExceeded) as error:
            tell(Ending.ABORTED, detail=str(error))
            self._failed("failed", source, f"{type(error).__name__}: {error}")
        else:
            stage.seen[partition] = done.until
            tell(Ending.COMMITTED if done.until > done.start else Ending.REFUSED, records=done.records)
            self._succeeded(source, work, done)
        finally:
            kafka.close()

    def _read(self, stage: _Stage, partition: int, start: int, until: int) -> Iterable[list[LogRecord]]:
        key = stage.topic.name, partition
        if key not in self._readers:
            self._readers[key] = RangeReader(self._settings.connection, *key, self._settings.group)
        return self._readers[key].read(start, until, Deadline(self._settings.timeout_s), self._stop)

    def _succeeded(self, source: Source, work: StageTask, done: AttemptResult) -> None:
        with self._lock:
            self._give_up.pop(str(source), None)
            self.result.transactions += done.until > done.start
            if isinstance(work, Split):
                self.result.orders += done.records
            else:
                self.result.deltas += done.records

    def _failed(self, how: str, what: object, why: str) -> None:
        """Count a failure, and leave it to the next attempt."""
        if self._stop.is_set():
            return
        with self._lock:
            setattr(self.result, how, getattr(self.result, how) + 1)
            patience, denials = self._give_up.setdefault(str(what), (Deadline(self.patience_s), Denials()))
            failing_s = patience.budget_s - patience.remaining_s()
            denied_s = denials.failed(why, failing_s)
            message = f"{what}: {how}, will try again: {why}"
            last, again = self._reported.get(str(what), ("", patience))
            if new := message != last or again.expired():
                self._reported[str(what)] = message, Deadline(_REPORT_AGAIN_S)
        if new:
            self._tell(message)
        if patience.expired() or denied_s > DENIED_S:
            raise Refused(
                f"{what}: no transaction succeeded there for {denied_s or failing_s:.0f} s, at last: {why}; "
                "correct it, then run again: it continues at the group's offsets"
            )
        self._stop.wait(_PAUSE_S)


def _ends(client: AdminClient, topic: Topic, deadline: Deadline) -> dict[int, LogOffsets]:
    """Return the offsets of a topic that may have been created just now: some brokers learn of it a moment later."""

    def ask() -> dict[int, LogOffsets]:
        try:
            return log_offsets(client, topic.name, range(topic.partitions), deadline)
        except KafkaFailure as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise Retriable(str(error)) from error
            raise

    return retry_until(ask, f"offsets of {topic.name}", deadline)
