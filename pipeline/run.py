"""One run of the pipeline: check, start Spark, let the lanes work, and end in one of four ways."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace

import psutil

from pipeline.crash import Dice, message
from pipeline.engine import Engine
from pipeline.lane import Lane, Shared
from pipeline.outcome import Outcome
from pipeline.progress import Board, Silent
from pipeline.settings import PipelineSettings
from pipeline.survey import Surveyor
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka import topics
from protocol.kafka.clients import mapped, reach
from protocol.kafka.topics import Topic
from protocol.kafka.transaction import KafkaTransaction, TransactionSettings
from protocol.names import ExitCode

_REACH_S = 10.0
_CHECK_S = 30.0
_GRACE_S = 4.0
_FENCE_S = 1.5
_LOOK_S = 0.01
_OUTPUT_ROOM = 16_384
_LONG_RUN = 500_000


@dataclass(frozen=True)
class Ground:
    """What the checks before a run found: the topics by name, where a drain ends, and the limits to hold."""

    topics: dict[str, Topic]
    goals: dict[int, int] | None
    settings: PipelineSettings
    dead_letter_max_bytes: int
    backlog: int


def check(settings: PipelineSettings) -> Ground:
    """
    Look at the cluster before Spark starts; makes the output topics where they are missing.

    Raises:
        Unreachable, Refused: there is nothing to run on.
    """
    reach(settings.connection, Deadline(_REACH_S))
    deadline = Deadline(_CHECK_S)
    surveyor = Surveyor(settings)
    try:
        source = surveyor.input_topic(deadline)
        found = {**surveyor.output_topics(source, deadline), source.name: source}
        with mapped("check"):
            output_max = topics.max_message_bytes(surveyor.admin, settings.output, deadline)
            dead_letter_max = topics.max_message_bytes(surveyor.admin, settings.dead_letter, deadline)
        facts = surveyor.facts(source, range(source.partitions), deadline, {})
    finally:
        surveyor.close()
    # What the output topic can't hold is rejected by name, instead of failing its transaction again and again.
    most = max(1, min(settings.limits.max_bytes, output_max - _OUTPUT_ROOM))
    goals = None if settings.follow else {fact.partition: fact.log.end for fact in facts}
    limits = replace(settings.limits, max_bytes=most)
    backlog = sum(fact.lag for fact in facts)
    return Ground(found, goals, replace(settings, limits=limits), dead_letter_max, backlog)


def run(settings: PipelineSettings, stop: threading.Event, board: Board, view: Silent) -> ExitCode:
    """
    Run until drained, stopped, or crashed on purpose (then this process does not return).

    Raises:
        BrewError: refused, or nothing moved for too long.
    """
    ground = check(settings)
    if stop.is_set():
        return ExitCode.DONE
    engine = _engine(ground)
    try:
        shared = _shared(ground, engine, stop, board, view)
        view.start()
        try:
            _work(shared)
        finally:
            view.stop()
        if shared.crashed:
            _die(settings, shared.crashed)
    finally:
        engine.close()
    return ExitCode.DONE


def _engine(ground: Ground) -> Engine:
    """What carries the attempts; Spark is imported only when it is wanted, for it takes a third of a second."""
    settings = ground.settings
    if settings.spark.absent:
        from pipeline.alone import AloneEngine  # noqa: PLC0415

        return AloneEngine(settings.connection, settings.group, ground.topics[settings.input].partitions)
    from pipeline import session, spark  # noqa: PLC0415

    short = not settings.follow and ground.backlog < _LONG_RUN
    return spark.SparkEngine(session.start(settings.spark, short=short), settings.spark)


def _shared(ground: Ground, engine: Engine, stop: threading.Event, board: Board, view: Silent) -> Shared:
    return Shared(
        ground.settings,
        engine,
        ground.topics,
        stop,
        board,
        view,
        ground.goals,
        ground.dead_letter_max_bytes,
        Dice(ground.settings.crash),
    )


def _work(shared: Shared) -> None:
    """Run the lanes in threads; the first error of one stops all, and leaves here."""
    errors: list[Exception] = []

    def guarded(lane: Lane) -> None:
        try:
            lane.run()
        except Exception as error:  # noqa: BLE001 - carried to the main thread
            if not shared.stop.is_set() or isinstance(error, BrewError):
                errors.append(error)
            shared.stop.set()

    lanes = [Lane(shared, index) for index in range(shared.settings.lanes)]
    threads = [
        threading.Thread(target=guarded, args=[lane], name=f"lane-{i}", daemon=True) for i, lane in enumerate(lanes)
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) and not shared.stop.is_set():
        shared.stop.wait(0.2)
    if shared.stop.is_set() and not errors and not shared.crashed:
        shared.view.tell("stopping: finishing the running transactions")
    if shared.crashed:
        _let_the_others_finish(shared)
        return
    if not _joined(threads, Deadline(_GRACE_S)):
        _interrupt(shared)
        _joined(threads, Deadline(_FENCE_S))
    if errors:
        raise errors[0]


def _let_the_others_finish(shared: Shared) -> None:
    """Wait for transactions that run, or the number that a crash announces would miss what they leave in the log."""
    deadline = Deadline(shared.settings.transaction_timeout_s)
    while shared.running and not deadline.expired():
        time.sleep(_LOOK_S)


def _joined(threads: list[threading.Thread], deadline: Deadline) -> bool:
    for thread in threads:
        thread.join(deadline.remaining_s())
    return not any(thread.is_alive() for thread in threads)


def _interrupt(shared: Shared) -> None:
    """Kill what still runs, then fence its ids, so that no reader waits for the transactions' time-out."""
    settings = shared.settings
    shared.engine.interrupt()
    transaction = TransactionSettings(settings.connection, settings.group, settings.transaction_timeout_s)
    deadline = Deadline(_FENCE_S)
    for offered in list(shared.running.values()):
        kafka = KafkaTransaction(transaction, offered.topic, offered.partition)
        try:
            kafka.fence(deadline)
        except BrewError as error:
            shared.view.tell(f"{offered}: its transaction stays open until the time-out: {error}")
        finally:
            kafka.close()


def _die(settings: PipelineSettings, crashed: list[Outcome]) -> None:
    """Tell what the crash left behind, then kill the JVM, the workers and this process, transactions open."""
    enriched, rejected = sum(o.enriched for o in crashed), sum(o.rejected for o in crashed)
    sys.stdout.write(message(settings.crash.point, enriched, rejected) + "\n")
    sys.stdout.flush()
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue
    os._exit(ExitCode.CRASHED_ON_PURPOSE)


def stop_on_signals(stop: threading.Event) -> None:
    """SIGTERM and SIGINT end the run cleanly; a second one does not wait any more."""

    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
