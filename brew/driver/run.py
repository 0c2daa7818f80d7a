"""One run: preflight checks, its workers and their threads, and how it ends."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import psutil

from brew.deadline import Deadline
from brew.driver.micro_batches import MicroBatchLane
from brew.driver.partitions import OffsetsClient
from brew.driver.run_context import Engine, PreflightResult, ProgressView, RunContext, Runner, RunProgress
from brew.errors import BrewError
from brew.fault_injection import message
from brew.journal import check_folder
from brew.kafka import topics
from brew.kafka.clients import BATCH_BYTES, reach
from brew.kafka.cluster import ClusterQueries
from brew.kafka.transaction import MESSAGE_MAX_BYTES, KafkaTransaction, TransactionSettings
from brew.names import ExitCode, quantity
from brew.observability.status import Phase
from brew.outcome import Outcome
from brew.preflight import enforce
from brew.preflight.checks import run_checks, topics_of
from brew.settings import PipelineSettings, Reader
from brew.signals import interruptible
from brew.transformation import for_executors, transformation

_FINISH_S = 4.0
_FENCE_S = 1.5
_POLL_S = 0.01
_WATCH_S = 0.02


class WorkLoop(Protocol):
    """Plans and starts transactions until the run is drained or stopped."""

    def run(self) -> None: ...


def run_loops(shared: RunContext, runner: Runner, workers: Sequence[WorkLoop]) -> None:
    """Run each worker in a thread; the first error stops all, and is raised here."""
    errors: list[Exception] = []

    def guarded(worker: WorkLoop) -> None:
        try:
            worker.run()
        except BaseException as ended:  # noqa: BLE001 - passed to the main thread; a thread that is gone is not drained
            error = ended if isinstance(ended, Exception) else RuntimeError(f"a thread ended by {type(ended).__name__}")
            if not shared.stop.is_set() or isinstance(error, BrewError):
                errors.append(error)
                shared.progress.fatal(str(error))
            shared.stop.set()

    threads = [
        threading.Thread(target=guarded, args=[worker], name=f"worker-{i}", daemon=True)
        for i, worker in enumerate(workers)
    ]
    shared.progress.phase(Phase.WORKING)
    for thread in threads:
        thread.start()
    interrupt = _wait_for(shared, threads)
    shared.progress.phase(Phase.STOPPING)
    if shared.stop.is_set() and not errors and not shared.crashed:
        shared.view.note("stopping: finishing the running transactions")
    if shared.crashed:
        _wait_for_others(shared)
        return
    _end(shared, runner, threads)
    if interrupt is not None:
        raise interrupt
    if errors:
        raise errors[0]
    if not shared.stop.is_set():
        shared.first.check_at_end()


def _wait_for(shared: RunContext, threads: list[threading.Thread]) -> BaseException | None:
    """Wait until all threads have ended or the run is stopped; an exception in the main thread (Ctrl-C) stops it."""
    try:
        while any(thread.is_alive() for thread in threads) and not shared.stop.is_set():
            shared.stop.wait(_WATCH_S)
    except BaseException as error:  # noqa: BLE001 - raised again once the transactions have ended
        shared.stop.set()
        return error
    return None


def _end(shared: RunContext, runner: Runner, threads: list[threading.Thread]) -> None:
    """Let the threads finish their transactions; interrupt and fence those that take too long."""
    ended = _joined(threads, Deadline(_FINISH_S))
    if not ended:
        runner.interrupt()
    _fence_remaining(shared)
    if not ended:
        _joined(threads, Deadline(_FENCE_S))


def _wait_for_others(shared: RunContext) -> None:
    """Wait for running transactions, so that a crash message counts everything that they leave in the log."""
    deadline = Deadline(shared.preflight.settings.transaction_timeout_s)
    while shared.running and not deadline.expired():
        time.sleep(_POLL_S)


def _joined(threads: list[threading.Thread], deadline: Deadline) -> bool:
    for thread in threads:
        thread.join(deadline.remaining_s())
    return not any(thread.is_alive() for thread in threads)


def _fence_remaining(shared: RunContext) -> None:
    """Fence the ids of ranges whose workers were interrupted or lost, so that readers do not wait for the time-out."""
    if shared.replaced.is_set():  # a fence now would hit the new leader
        return
    deadline, owned = Deadline(_FENCE_S), shared.ownership.current_partitions()
    left = [r for r in {**shared.lost, **shared.running}.values() if r.partition in owned]
    transaction = shared.preflight.transaction
    while left and not deadline.expired():
        offered = left.pop()
        with contextlib.closing(KafkaTransaction(transaction, offered.topic, offered.partition)) as kafka:
            try:
                kafka.fence(deadline)
            except BrewError as error:
                shared.view.note(f"{offered}: its transaction stays open until the time-out: {error}")
    if left:  # each attempt takes some 20 ms, also without time
        shared.view.note(f"transactions of {quantity(len(left), 'more partition')} may stay open until the time-out")


def crash_on_purpose(settings: PipelineSettings, crashed: list[Outcome]) -> None:
    """Report what the crash left behind, then kill the JVM, the workers and this process, with transactions open."""
    written, rejected = sum(o.written for o in crashed), sum(o.rejected for o in crashed)
    sys.stdout.write(message(settings.crash.point, written, rejected) + "\n")
    sys.stdout.flush()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    os._exit(ExitCode.CRASHED_ON_PURPOSE)


_REACH_S = 10.0
_CHECK_S = 30.0
_OUTPUT_ROOM = 16_384


@interruptible()
def check(settings: PipelineSettings) -> PreflightResult:
    """Check the cluster before Spark starts, then create missing output topics; raises `Refused` if it is unsafe."""
    if settings.journal is not None:
        check_folder(settings.journal, "--journal")
    reach(settings.connection, Deadline(_REACH_S))
    deadline = Deadline(_CHECK_S)
    with contextlib.closing(OffsetsClient(settings)) as offsets:
        source = offsets.input_topic(deadline)
        transformation(settings).check(settings.connection, deadline)
        ask = partial(ClusterQueries, offsets.admin, offsets.groups, topics_of(settings), settings.group, deadline)
        queries = ask()
        # A drain needs all partitions, and a following run those that it can read (`PartitionSurvey.read`).
        readable = offsets.with_leader(source, deadline) if settings.follow else range(source.partitions)
        facts = offsets.facts(source, readable, deadline, {})
        cluster = queries.answers()
        notes = enforce(run_checks(settings, cluster, MESSAGE_MAX_BYTES), settings.allow)
        by_name = {**offsets.output_topics(source, deadline), source.name: source}
        if any(cluster.topics[name] is None for name in by_name):  # they exist now: check their actual settings
            cluster = ask().answers()
            notes = enforce(run_checks(settings, cluster, MESSAGE_MAX_BYTES), settings.allow)
        sizes = {
            name: cluster.number_of(name, topics.MAX_MESSAGE_BYTES)
            or topics.max_message_bytes(offsets.admin, name, deadline)
            for name in (*settings.outputs, settings.dead_letter)
        }
    output_max = min(sizes[name] for name in settings.outputs)
    dead_letter_max = min(sizes[settings.dead_letter], MESSAGE_MAX_BYTES)
    # Records too large for the output topics become dead letters, instead of failing their transaction repeatedly.
    max_bytes = max(1, min(settings.limits.max_bytes, output_max - _OUTPUT_ROOM))
    goals = None if settings.follow else {fact.partition: fact.log.end for fact in facts}
    limits = replace(settings.limits, max_bytes=max_bytes)
    backlog = sum(fact.lag for fact in facts)
    batch = min(BATCH_BYTES, output_max, dead_letter_max)
    transaction = TransactionSettings(settings.connection, settings.group, settings.transaction_timeout_s, batch)
    return PreflightResult(
        by_name, goals, replace(settings, limits=limits), dead_letter_max, transaction, backlog, notes
    )


def run(settings: PipelineSettings, stop: threading.Event, progress: RunProgress, view: ProgressView) -> ExitCode:
    """Run until drained, stopped or crashed on purpose (this process ends then); raises `BrewError` if it gives up."""
    preflight = check(settings)
    if stop.is_set():
        return ExitCode.DONE
    shared = create_context(preflight, stop, progress, view)
    runner, workers = create_workers(shared)
    with contextlib.closing(runner):
        with view:
            run_loops(shared, runner, workers)
        if shared.crashed:
            crash_on_purpose(settings, shared.crashed)
    return ExitCode.DONE


def create_workers(shared: RunContext) -> tuple[Runner, list[WorkLoop]]:
    """Create what runs the transactions and what plans them."""
    settings = shared.preflight.settings
    if settings.reader is Reader.DIRECT:
        from brew.driver.lease_coordinator import LeaseCoordinator, lease_workers  # noqa: PLC0415

        workers = lease_workers(shared)
        return workers, [LeaseCoordinator(shared, workers)]
    engine: Engine
    if settings.spark.absent:
        from brew.driver.micro_batches import LocalEngine  # noqa: PLC0415

        made = transformation(settings)
        engine = LocalEngine(settings.connection, settings.group, made)
    else:
        from brew.readers import connector  # noqa: PLC0415 - a third of a second
        from brew.spark import session  # noqa: PLC0415
        from brew.spark.shipping import pickled  # noqa: PLC0415

        # Before Spark starts: refuses what can't be serialized.
        made = for_executors(transformation(settings), partial(pickled, py_files=settings.spark.py_files))
        spark = session.start(settings.spark, shared.preflight.compilers)
        engine = connector.SparkEngine(spark, settings.spark, patience_s=settings.patience_s)
    return engine, [MicroBatchLane(shared, engine, index, made) for index in range(settings.lanes)]


def create_context(
    preflight: PreflightResult, stop: threading.Event, progress: RunProgress, view: ProgressView
) -> RunContext:
    """Create the state that the workers of this run share; reports unsafe settings that were allowed."""
    for note in preflight.notes:
        view.note(note)
    return RunContext(preflight, stop, progress, view)
