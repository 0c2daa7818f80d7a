"""`ExactlyOnceSink`, which users pass to `foreachBatch`; its settings, refusals, and attempts at a batch."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from brew.acl import advice
from brew.attempt import BEGIN, COMMIT, PRODUCE
from brew.client_config import LAST_PORT, checked_bootstrap, load
from brew.connection import MECHANISM, Connection
from brew.deadline import Deadline
from brew.errors import Abortable, BrewError, DeadlineExceeded, KafkaFailure, Refused, Unreachable, UsageError
from brew.kafka.clients import BATCH_BYTES, reach
from brew.kafka.sink_transaction import SinkTransaction, check_brokers, described, max_batch_bytes
from brew.kafka.transaction import TransactionSettings
from brew.names import CrashMode, checked_topic
from brew.observability.status import Status as SinkStatus
from brew.sasl import GSSAPI
from brew.sink.batch import FENCE_S, RESULT_SCHEMA, BatchJob, Result, SinkCrash, Status, write_alone
from brew.sink.position import BY_HAND, Batch, PositionMetadata, fingerprint
from brew.sink.query import (
    batch_source,
    check_batch_job,
    check_session,
    driver_processes,
    in_few_tasks,
    is_stopping,
    tasks_of,
    wake_workers,
)
from brew.sink.rows import checked_columns
from brew.sink.telemetry import Telemetry
from brew.transaction import Write, transact

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from brew.sink.shared import SharedWriter

LOG = logging.getLogger("brew.sink")
LOG.addHandler(logging.NullHandler())

Writers = Literal[1, "tasks"]

_LONGEST_S = 900.0
_PAUSE_S, _GROWTH, _LONGEST_PAUSE_S = 0.2, 3.0, 20.0
"""The pause before the second attempt at a batch, its growth factor for the next ones, and its limit."""
_DESCRIBE_S, _LOOK_S = 30.0, 5.0
_ABANDON_S = 5.0
_NEARLY = 0.8
"""The part of the transaction time-out from which it may be the reason: a batch's first rows take time, too."""
_LONGEST_NAME, _MOST_ATTEMPTS = 249, 1_000
_last_calls: dict[tuple[str, str], tuple[str, int, int]] = {}
"""
By a sink's name and the id of its position's topic: the query's run, the batch, and the hash of the plan that was
written. Sinks on two clusters may have one name and equally named topics, but no two topics have the same id.
"""
_LONGEST_FRAME = 10_000
_LAST_ID = 2**63 - 1
"""The position is the next batch's id, and an offset has 64 bits."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """A batch's result, for logs and metrics; ``attempts``: how many it took, ``seconds``: all of them together."""

    batch_id: int
    status: Status
    rows: int
    attempts: int
    seconds: float


class ExactlyOnceSink:
    """
    Write each micro-batch of a query to Kafka in one transaction: `read_committed` readers see it whole, once.

        sink = brew.ExactlyOnceSink("kafka:9092", name="revenue-sink", topic="revenue")
        query = df.select("key", "value").writeStream.foreachBatch(sink).option("checkpointLocation", path).start()

    Columns as in Spark's own Kafka sink: `value`, and optionally `key`, `topic`, `partition`, `headers`. Any query and
    output mode; functions may be non-deterministic. The limits are in docs/guide/sink.md.

    ``name``: unique among the sinks of a cluster; the transactional id, and the group that holds the position.
    ``topic``: where all rows go; takes precedence over a column of that name.
    ``position_topic``: the topic under which the position is committed, if rows name their topics; else ``topic``.
    ``client_config``: a file of librdkafka settings, as for `--client-config`.
    ``transaction_timeout_s``: the longest that writing a batch may take before brokers abort it, up to 900.
    ``source_group``: commit the query's source offsets under this group, for lag tools; the source must be on the same
    cluster, and nothing else may use the group.
    ``writers``: "tasks": several tasks write the batch, each output partition by one of them. 1: one task does, which
    is the default if sasl.mechanism is GSSAPI, since tasks do not log in by Kerberos.
    ``headers``: add `brew.sink.name` and `brew.sink.batch` to each record; without them an expired position can't be
    distinguished from a new sink.
    ``attempts``: how often a batch is tried before the query fails.
    ``allow_old_brokers``: accept brokers before Kafka 3.6, which do not verify transactions.
    ``probe_port``: answer probes, `/metrics` and `/status` on this port (0: any free port) of ``probe_host``.
    """

    _batch_bytes = BATCH_BYTES

    def __init__(
        self,
        bootstrap: str,
        *,
        name: str,
        topic: str | None = None,
        position_topic: str | None = None,
        client_config: str | Path | None = None,
        transaction_timeout_s: float = 60.0,
        source_group: str | None = None,
        writers: Writers | None = None,
        headers: bool = True,
        attempts: int = 5,
        allow_old_brokers: bool = False,
        probe_port: int | None = None,
        probe_host: str = "127.0.0.1",
        _crash: SinkCrash | None = None,
    ) -> None:
        self.name = _checked_name(name, "name")
        self.topic = None if topic is None else checked_topic(topic, "topic")
        place = position_topic or topic
        if place is None:
            raise UsageError(
                "the sink has neither topic nor position_topic: rows may name their topics, but the position needs one "
                "of its own; set position_topic to a topic that all batches share"
            )
        self.position_topic = checked_topic(place, "position_topic")
        _check_number("transaction_timeout_s", transaction_timeout_s, 1, _LONGEST_S)  # transaction.max.timeout.ms
        if writers not in {None, 1, "tasks"}:
            raise UsageError(f'writers is {writers!r}: it has to be 1 or "tasks"')
        _check_number("attempts", attempts, 1, _MOST_ATTEMPTS, kind=int)
        _check_number("probe_port", probe_port or 0, 0, LAST_PORT, kind=int)
        if source_group is not None and _checked_name(source_group, "source_group") == name:
            raise UsageError(f"source_group is {source_group!r}, the sink's own group; choose another name")
        self.connection = _connection(bootstrap, client_config)
        by_kerberos = GSSAPI in _mechanisms(self.connection)
        if writers == "tasks" and by_kerberos:
            raise UsageError(
                f'writers is "tasks" and sasl.mechanism {GSSAPI}: tasks do not log in by Kerberos; use writers=1, or '
                "another login"
            )
        self.writers: Writers = writers or (1 if by_kerberos else "tasks")
        self.timeout_s, self.headers = float(transaction_timeout_s), headers
        self.source_group, self.attempts = source_group, attempts
        self._allow_old, self._checked, self._topic_id, self._crash = allow_old_brokers, False, "", _crash
        self._counts: dict[str, int] = {}
        self._shared: SharedWriter | None = None
        self._writing = threading.Lock()
        self.last_batch: BatchReport | None = None
        """The last batch that was written, or found already written."""
        self._telemetry = Telemetry(name, place, self.topic, self.connection)
        self.probes_url: str | None = None  # where probes, `/metrics` and `/status` are answered
        self._unwatch: Callable[[], object] = lambda: None
        if probe_port is not None:
            probes = self._telemetry.serve(probe_port, probe_host)
            self.probes_url, self._unwatch = probes.url, weakref.finalize(self, probes.close)
        wake_workers()

    def __repr__(self) -> str:
        return f"ExactlyOnceSink({self.connection.bootstrap!r}, name={self.name!r}, topic={self.topic!r})"

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """
        Write one micro-batch; Spark calls it through `foreachBatch`.

        Raises:
            UsageError: the sink can't write rows, or a session, of this kind, or another thread's batch is not written.
            Refused: checkpoint and Kafka do not belong together; the text says what each has, and the ways out. Or this
                batch was written with another DataFrame.
            Abortable: the batch failed as often as ``attempts`` allows; nothing of it is visible, unless the text says
                that a commit was not confirmed.
        """
        check_session(df)
        with self._alone(), self._telemetry.batch(batch_id), self._advised():
            frame = self._selected(df)
            self._check_cluster()
            source = batch_source(df, batch_id)
            call = (source.run, batch_id, frame.semanticHash())
            self._check_only_call(call)
            metadata = PositionMetadata(source.query, fingerprint(source.offsets), self._topic_id)
            previous = None if source.previous is None else fingerprint(source.previous)
            batch = Batch(self.name, self.position_topic, batch_id, metadata, previous)
            self._run(frame, replace(self._job(batch), source_group=self.source_group, source_offsets=source.ends))
            _last_calls[self.name, self._topic_id] = call

    def write(self, df: DataFrame, batch_id: int) -> bool:
        """
        Write the rows of a batch job, once for this id; return False if they are already written. Ids must increase.

        Raises:
            As for a micro-batch.
        """
        check_session(df)
        check_batch_job(df)
        batch_id = _checked_id(batch_id)
        with self._alone(), self._telemetry.batch(batch_id), self._advised():
            frame = self._selected(df)
            self._check_cluster()
            batch = Batch(self.name, self.position_topic, batch_id, PositionMetadata(None, "", self._topic_id))
            return self._run(frame, self._job(batch))

    def status(self) -> SinkStatus:
        """Return the position, the last batch with the seconds of its steps, and counts: the document of `/status`."""
        return self._telemetry.recorder.status()

    def close(self) -> None:
        """Stop answering probes; garbage collection of the sink does the same."""
        self._unwatch()

    def start_at(self, batch_id: int) -> None:
        """
        Set the position by hand: the next batch to be written is ``batch_id``. Stop the query first.

        For a position that was lost, or a checkpoint that is known to be right; nothing checks that.
        """
        batch_id, deadline = _checked_id(batch_id), Deadline(FENCE_S)
        settings = TransactionSettings(self.connection, self.name, self.timeout_s)
        kafka = SinkTransaction(settings, self.position_topic)
        try:
            transact(kafka, lambda _: Write(lambda _: None, lambda: batch_id, BY_HAND, deadline), deadline)
            self._checked = False  # the topic may have been created again since
        finally:
            kafka.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Refuse a second thread: both would write in one epoch, where brokers drop equal sequence numbers."""
        if not self._writing.acquire(blocking=False):
            raise UsageError(
                f"sink {self.name!r} is writing a batch in another thread; a sink writes one batch after another, so "
                "give each query, or each thread, a sink with a name of its own"
            )
        try:
            yield
        finally:
            self._writing.release()

    def _check_only_call(self, call: tuple[str, int, int]) -> None:
        """Refuse other rows under a batch that this run has written: they would be dropped as already written."""
        last = _last_calls.get((self.name, self._topic_id))
        if last is not None and last[:2] == call[:2] and last != call:
            raise Refused(
                f"sink {self.name!r}: batch {call[1]} of this query was written by an earlier call, with another "
                "DataFrame; a sink writes one per batch: write their union (rows may name their topic), or give each a "
                "sink with a name of its own"
            )

    @contextlib.contextmanager
    def _advised(self) -> Iterator[None]:
        """Add to a refusal which right is missing, and how to grant it."""
        try:
            yield
        except BrewError as error:
            names = {"group": self.name, "output": self.topic or self.position_topic}
            advised = advice(str(error), self.connection.user, names, self.connection.source)
            if advised is None or advised in str(error):
                raise
            raise type(error)(f"{error}; {advised}") from error

    def _selected(self, df: DataFrame) -> DataFrame:
        """Return the frame with the columns to write."""
        names = checked_columns({field.name: field.dataType.simpleString() for field in df.schema.fields}, self.topic)
        return df.select(*names)

    def _check_cluster(self) -> None:
        """Check the brokers' version once per sink, and for each batch whether the position's topic was recreated."""
        if self._checked:
            self._counts = {}
            # Brokers that are away are the attempts' matter.
            with contextlib.suppress(Unreachable, DeadlineExceeded, KafkaFailure):
                self._describe_position(Deadline(_LOOK_S))
            return
        deadline = Deadline(_DESCRIBE_S)
        reach(self.connection, deadline)  # its error names the servers, and a refused login
        self._describe_position(deadline)
        if self.topic is not None and self.topic != self.position_topic:
            described(self.connection, self.topic, deadline)
        if self.topic is not None:
            self._batch_bytes = max_batch_bytes(self.connection, self.topic, deadline)
        if not self._allow_old:
            check_brokers(self.connection, deadline)
        self._checked = True

    def _describe_position(self, deadline: Deadline) -> None:
        topic = described(self.connection, self.position_topic, deadline)
        self._topic_id, self._counts = topic.topic_id, {topic.name: topic.partitions}

    def _job(self, batch: Batch) -> BatchJob:
        job = BatchJob(batch, self.connection, self.timeout_s, self.topic, self.headers, self._batch_bytes)
        return replace(job, counts=self._counts)

    def _run(self, frame: DataFrame, job: BatchJob) -> bool:
        """Attempt one batch until an attempt commits, finds it already written, or refuses."""
        if self._crash is not None:
            pipeline = self._crash.mode is CrashMode.PIPELINE
            job = replace(job, crash=replace(self._crash, processes=driver_processes(frame) if pipeline else ()))
        batch_id, pause_s, result, began = job.batch.batch_id, _PAUSE_S, None, time.monotonic()
        unanswered = False
        for number in range(1, self.attempts + 1):
            try:
                result = self._telemetry.attempt(batch_id, functools.partial(self._attempt, frame, job))
            except BaseException:  # an interrupt, or Spark's own error: the tasks may have ended in mid transaction
                self._abandon()
                raise
            took = time.monotonic() - began
            text = "sink %s: batch %d %s, %d rows in %.3f s (attempt %d)%s"
            detail = f": {result.detail}" if result.detail else ""
            LOG.info(text, self.name, batch_id, result.status, result.rows, took, number, detail)
            if result.status in {Status.WRITTEN, Status.ALREADY_OUT}:
                self.last_batch = BatchReport(batch_id, result.status, result.rows, number, took)
                return result.status is Status.WRITTEN
            if result.status is Status.REFUSED or (result.status is Status.BEHIND and number == self.attempts):
                raise Refused(result.detail.partition(": ")[2])
            # A commit that failed may have been applied, until a later attempt's locate finds the batch missing.
            unanswered = COMMIT in result.steps or (unanswered and BEGIN not in result.steps)
            job = job.first_attempt()
            if number < self.attempts and is_stopping(frame):
                break
            if number < self.attempts:
                # The holder of the id, or an unavailable broker, needs time; two holders must get out of step.
                time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311 - a pause, not a secret
                pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)
        done, visible = "written", "nothing of it is visible"
        if unanswered:
            done, visible = "confirmed", "a commit failed or got no answer, so it is visible as a whole or not at all"
        raise Abortable(
            f"sink {self.name!r}: batch {batch_id} was not {done} in {number} attempts, the last one: "
            f"{result.detail if result else ''}; {visible}; {self._next_step(result)}"
        )

    def _abandon(self) -> None:
        """Fence an attempt that nobody ends any more, so that readers need not wait for its time-out."""
        kafka = SinkTransaction(TransactionSettings(self.connection, self.name, self.timeout_s), self.position_topic)
        try:
            kafka.fence(Deadline(_ABANDON_S))
        except BrewError as error:
            LOG.warning("sink %s: a transaction may stay open until its time-out: %s", self.name, error)
        finally:
            kafka.close()

    def _next_step(self, last: Result | None) -> str:
        """Return what to do about a batch that was not written."""
        produced_s = last.steps.get(PRODUCE, 0.0) if last else 0.0
        if produced_s < _NEARLY * self.timeout_s:
            return "remove the cause and start again, with this batch"
        return (
            f"writing it took {produced_s:.3g} s and transaction_timeout_s is {self.timeout_s:g}: raise that, or make "
            "batches smaller (maxOffsetsPerTrigger)"
        )

    def _attempt(self, frame: DataFrame, job: BatchJob) -> Result:
        if self.writers == "tasks":
            from brew.sink.shared import SharedWriter  # noqa: PLC0415 - kafka-python, which one writer does not need

            self._shared = self._shared or SharedWriter(job)
            return self._shared.write(frame, job)
        # One task, even if the plan has more when it runs than it had before (a source that grows): a second one would
        # find the batch already written by the first, and drop its rows.
        frame = in_few_tasks(frame).repartition(1) if tasks_of(frame) > 1 else frame.coalesce(1)
        rows = frame.mapInArrow(_task(write_alone, job), RESULT_SCHEMA).collect()
        if not rows:  # no task ran, so nothing moved the position
            return write_alone(job, iter(()))
        return Result.decoded(bytes(rows[0].result))


def _task(
    write: Callable[[BatchJob, Iterator[pa.RecordBatch]], Result], job: BatchJob
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that `mapInArrow` runs in a task: its one row is the outcome."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - on the executor

        from brew.spark.worker import tune_worker  # noqa: PLC0415 - as above

        tune_worker()
        result = write(job, batches)
        yield pa.RecordBatch.from_pydict({"result": pa.array([result.encoded()], pa.binary())})

    return task


def _check_number(setting: str, value: object, least: float, most: float, kind: type = float) -> None:
    kinds = (kind,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        name = "a whole number" if kind is int else "a number"
        raise UsageError(f"{setting} is {value!r}: it has to be {name} from {least:g} to {most:g}")


def _checked_id(batch_id: object) -> int:
    """Return a batch's id as Python's own type of number; numpy's are taken, too."""
    number = None if isinstance(batch_id, bool) or not hasattr(batch_id, "__index__") else operator.index(batch_id)
    if number is None or not 0 <= number < _LAST_ID:
        raise UsageError(f"batch_id is {batch_id!r}: it has to be a whole number from 0 to {_LAST_ID - 1}")
    return number


def _mechanisms(connection: Connection) -> set[object]:
    settings = connection.settings()
    return {settings.get(MECHANISM), settings.get("sasl.mechanisms")}


def _checked_name(name: str, setting: str) -> str:
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise UsageError(f"{setting} is {name!r}: it has to have 1 to {_LONGEST_NAME} characters")
    if not (name.isascii() and name.isprintable()):  # librdkafka sends no offsets under other groups
        raise UsageError(f"{setting} is {name!r}: it has to consist of printable ASCII characters")
    return name


def _connection(bootstrap: str, client_config: str | Path | None) -> Connection:
    checked_bootstrap(bootstrap)
    if client_config is None:
        return Connection(bootstrap)
    found = load(Path(client_config))
    return Connection(bootstrap, found.properties, found.secrets, found.source)
