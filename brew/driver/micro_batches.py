"""The connector reader's driver: lanes, in cycles of plan, read, transact (Spark, or `LocalEngine`) and reconcile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace

from brew.attempt import AttemptSpec, Job, attempt
from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver.run_context import Engine, RunContext
from brew.driver.work_planner import SurveyFailedError, WorkPlanner
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure
from brew.kafka.log_reader import RangeReader, scan
from brew.names import READ_COMMITTED
from brew.offsets import OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts, Plan
from brew.range_transaction import Rows
from brew.readers.direct.messages import reportable
from brew.readers.direct.worker import rows_of, whole_attempt
from brew.transaction_sizing import TransactionSize
from brew.transformation import Transformation


class MicroBatchLane:
    """The partitions whose number modulo the count of lanes is ``index``; runs in its own thread."""

    def __init__(self, shared: RunContext, engine: Engine, index: int, made: Transformation) -> None:
        self._shared, self._engine, self._index, self._transformation = shared, engine, index, made
        self._settings = shared.preflight.settings
        self._planner = WorkPlanner(shared)
        self._size = TransactionSize.at_most(
            self._settings.max_records_per_transaction, self._settings.transaction_timeout_s
        )
        shared.busy_lanes.add(index)

    def run(self) -> None:
        """Cycle until drained or stopped; raises `Refused` if going on is unsafe, or without progress for too long."""
        stop = self._shared.stop
        try:
            while not stop.is_set():
                try:
                    plan, facts = self._plan()
                except SurveyFailedError as error:
                    stop.wait(error.pause_s)
                    continue
                if plan.drained:
                    return
                if plan.ranges:
                    self._shared.busy_lanes.add(self._index)
                    self._cycle(plan.ranges, {fact.partition: fact for fact in facts})
                else:
                    self._wait(plan)
        finally:
            self._shared.busy_lanes.discard(self._index)
            self._planner.close()

    def _plan(self) -> tuple[Plan, list[PartitionFacts]]:
        lanes = self._settings.lanes
        # Nothing runs here between two cycles, so partitions can be handed over to other drivers.
        self._planner.take_ownership(lambda partition: partition % lanes == self._index)
        facts, complete = self._planner.survey_partitions(lambda source: range(self._index, source.partitions, lanes))
        return self._planner.plan(facts, self._size.cap, complete=complete), facts

    def _cycle(self, ranges: Sequence[OffsetRange], facts: Mapping[int, PartitionFacts]) -> None:
        began = time.monotonic()
        shared, settings = self._shared, self._settings
        survey, next_crash = self._planner.survey, shared.crash_injector.next_crash
        specs = {}
        for r in ranges:
            fact = facts[r.partition]
            specs[r.partition] = AttemptSpec(r, survey.targets(fact), survey.first_attempt(fact), next_crash(r))
        transaction, traced = shared.preflight.transaction, shared.progress.traced
        job = Job(specs, transaction, self._transformation, settings.journal, traced=traced)
        shared.running.update({r.partition: r for r in ranges})
        if shared.stop.is_set():  # checked after the line above: a stop waits for everything in ``running``
            for offered in ranges:
                shared.running.pop(offered.partition, None)
            return
        for offered in ranges:
            shared.progress.begun(offered.partition)
        executed = self._engine.execute(ranges, job)
        outcomes = [executed.get(r.partition) or self._advance(r, job) for r in ranges]
        # Before they leave ``running``: the run crashes, and reports their counts, once it is empty.
        shared.crashed.extend(outcome for outcome in outcomes if outcome.status is Status.CRASHED)
        for offered, outcome in zip(ranges, outcomes, strict=True):
            if outcome.status is Status.FAILED:
                shared.lost[outcome.partition] = offered
            else:
                shared.lost.pop(outcome.partition, None)
            shared.running.pop(outcome.partition, None)
            shared.progress.outcome(outcome)
        shared.view.cycle(self._index, outcomes, time.monotonic() - began)
        self._reconcile(outcomes)

    def _advance(self, offered: OffsetRange, job: Job) -> Outcome:
        """Commit past a range without visible rows, after a second reader has confirmed that there are none."""
        span = {offered.partition: (offered.start, offered.until)}
        failed = Outcome(offered.partition, offered.start, offered.until, Status.FAILED)
        try:
            batches = scan(self._settings.connection, offered.topic, span, READ_COMMITTED, group=self._settings.group)
            for batch in batches:
                return replace(failed, detail=f"Spark reported no row, yet offset {batch[0].offset()} is visible")
        except (KafkaFailure, DeadlineExceeded) as error:  # brokers may restart: plan again, as after a failed attempt
            return replace(failed, detail=f"{type(error).__name__}: {error}")
        return attempt(replace(job.offers[offered.partition], crash=None), iter(()), job)

    def _reconcile(self, outcomes: Sequence[Outcome]) -> None:
        pause_s = self._planner.reconcile(outcomes)
        if self._shared.crashed:
            return
        for outcome in outcomes:
            self._size = self._size.after_outcome(outcome)
            self._planner.check_rejections(outcome)
        self._shared.stop.wait(pause_s)

    def _wait(self, plan: Plan) -> None:
        """Wait for new records, or for an open upstream transaction to end."""
        if plan.blocked:
            self._planner.survey.report_blocking_transactions(plan.blocked)
        self._shared.busy_lanes.discard(self._index)
        # A refusal would end the run before the other lanes have written what is visible.
        self._planner.idle(plan, others_work=bool(self._shared.busy_lanes))
        self._shared.stop.wait(self._settings.poll_interval_s)


_END_S = 2.0


class LocalEngine:
    """One thread and one reader for each partition; an intentional worker crash kills this process."""

    def __init__(self, connection: Connection, group: str, transformation: Transformation) -> None:
        self._connection, self._group, self._transformation = connection, group, transformation
        self._readers: dict[int, RangeReader] = {}
        self._stop = threading.Event()
        self._threads: dict[int, threading.Thread] = {}

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        futures: dict[int, Future[Outcome]] = {r.partition: Future() for r in ranges}
        for offered in ranges:
            # A daemon, unlike an executor's threads: the process ends although a function hangs.
            name, arguments = f"attempt-{offered.partition}", (offered, job, futures[offered.partition])
            thread = threading.Thread(target=self._run, args=arguments, name=name, daemon=True)
            self._threads[offered.partition] = thread
            thread.start()
        return {partition: future.result() for partition, future in futures.items()}

    def _run(self, offered: OffsetRange, job: Job, future: Future[Outcome]) -> None:
        try:
            rows = self._rows(offered, job.transaction.timeout_s)
            future.set_result(reportable(whole_attempt(job.offers[offered.partition], rows, job)))
        except BaseException as error:  # noqa: BLE001 - raised in the lane's thread
            future.set_exception(error)

    def _rows(self, offered: OffsetRange, timeout_s: float) -> Iterator[Rows]:
        reader = self._readers.get(offered.partition)
        if reader is None:
            reader = RangeReader(self._connection, offered.topic, offered.partition, self._group)
            self._readers[offered.partition] = reader
        try:
            for batch in reader.read(offered.start, offered.until, Deadline(timeout_s), self._stop):
                yield rows_of(batch)
        except BrewError:
            # A client that has forgotten all brokers never recovers (librdkafka issue 5301).
            self._readers.pop(offered.partition).close()
            raise

    def interrupt(self) -> None:
        self._stop.set()
        self._transformation.release(loading_only=True)

    def close(self) -> None:
        self.interrupt()
        deadline = Deadline(_END_S)
        for thread in self._threads.values():
            thread.join(deadline.remaining_s())
        if any(thread.is_alive() for thread in self._threads.values()):
            return  # it hangs, and still uses its reader; the run has fenced its transaction
        for reader in self._readers.values():
            reader.close()
        self._transformation.release()
