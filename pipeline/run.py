"""One run of the pipeline: check, start Spark, let the lanes work, and end in one of four ways."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.crash import Dice
from pipeline.engine import Carrier, Engine
from pipeline.lane import Lane
from pipeline.preflight.gate import gate
from pipeline.preflight.judge import judge, roles
from pipeline.profiles.ground import check as check_profiles
from pipeline.progress import Board, Silent
from pipeline.settings import Compilers, PipelineSettings, Reader
from pipeline.shared import Shared
from pipeline.survey import Surveyor
from pipeline.work import Worker, die, work
from protocol.deadline import Deadline
from protocol.kafka import topics
from protocol.kafka.clients import BATCH_BYTES, reach
from protocol.kafka.cluster import Asked
from protocol.kafka.topics import Topic
from protocol.kafka.transaction import MESSAGE_MAX_BYTES, TransactionSettings
from protocol.names import ExitCode
from protocol.stopping import interruptible

if TYPE_CHECKING:
    from pyspark import SparkContext

_REACH_S = 10.0
_CHECK_S = 30.0
_OUTPUT_ROOM = 16_384
_LONG_RUN = 1_500_000


@dataclass(frozen=True)
class Ground:
    """
    What the checks before a run found: the topics by name, where a drain ends, and the limits to hold.

    ``notes``: what is unsafe, and was allowed by name.
    """

    topics: dict[str, Topic]
    goals: dict[int, int] | None
    settings: PipelineSettings
    dead_letter_max_bytes: int
    transaction: TransactionSettings
    backlog: int
    notes: tuple[str, ...] = ()

    @property
    def compilers(self) -> Compilers:
        """What pays for this run's JVM (docs/decisions/0006); under the direct reader it does next to nothing."""
        if self.settings.reader is Reader.DIRECT:
            return Compilers.FIRST
        if self.settings.follow:
            return Compilers.BOTH
        return Compilers.FIRST if self.backlog < _LONG_RUN else Compilers.SECOND_LATE


@interruptible()
def check(settings: PipelineSettings) -> Ground:
    """
    Look at the cluster before Spark starts; makes the output topics where they are missing, once a run may go on.

    Raises:
        Unreachable, Refused: there is nothing to run on.
    """
    reach(settings.connection, Deadline(_REACH_S))
    deadline = Deadline(_CHECK_S)
    surveyor = Surveyor(settings)
    try:
        source = surveyor.input_topic(deadline)
        check_profiles(settings, surveyor.admin, deadline)
        asked = Asked(surveyor.admin, surveyor.groups, roles(settings).values(), settings.group, deadline)
        facts = surveyor.facts(source, range(source.partitions), deadline, {})
        told = asked.answers()
        notes = gate(judge(settings, told, MESSAGE_MAX_BYTES), settings.allow)
        found = {**surveyor.output_topics(source, deadline), source.name: source}
        if any(told.topics[name] is None for name in found):  # made by now: judged as they are, not as expected
            told = Asked(surveyor.admin, surveyor.groups, roles(settings).values(), settings.group, deadline).answers()
            notes = gate(judge(settings, told, MESSAGE_MAX_BYTES), settings.allow)
        output_max, dead_letter_max = (
            told.number_of(name, topics.MAX_MESSAGE_BYTES) or topics.max_message_bytes(surveyor.admin, name, deadline)
            for name in (settings.output, settings.dead_letter)
        )
    finally:
        surveyor.close()
    # What the output topic can't hold is rejected by name, instead of failing its transaction again and again.
    most = max(1, min(settings.limits.max_bytes, output_max - _OUTPUT_ROOM))
    goals = None if settings.follow else {fact.partition: fact.log.end for fact in facts}
    limits = replace(settings.limits, max_bytes=most)
    backlog = sum(fact.lag for fact in facts)
    batch = min(BATCH_BYTES, output_max, dead_letter_max)
    transaction = TransactionSettings(settings.connection, settings.group, settings.transaction_timeout_s, batch)
    return Ground(found, goals, replace(settings, limits=limits), dead_letter_max, transaction, backlog, notes)


def run(settings: PipelineSettings, stop: threading.Event, board: Board, view: Silent) -> ExitCode:
    """
    Run until drained, stopped, or crashed on purpose (then this process does not return).

    Raises:
        BrewError: refused, or nothing moved for too long.
    """
    ground = check(settings)
    if stop.is_set():
        return ExitCode.DONE
    shared = share(ground, stop, board, view)
    carrier, workers = employ(ground, shared)
    try:
        view.start()
        try:
            work(shared, carrier, workers)
        finally:
            view.stop()
        if shared.crashed:
            die(settings, shared.crashed)
    finally:
        carrier.close()
    return ExitCode.DONE


def employ(ground: Ground, shared: Shared, kept: SparkContext | None = None) -> tuple[Carrier, list[Worker]]:
    """
    What carries the transactions, and who decides on them; what a run does not use is not imported.

    ``kept``: Spark was started before, and outlives what is made here.
    """
    settings = ground.settings
    if settings.reader is Reader.DIRECT:
        from pipeline.direct import hire  # noqa: PLC0415

        told = {"watched": shared.board.watched, "traced": shared.board.traced}
        crew = hire.crew(settings, ground.transaction, ground.compilers, **told, kept=kept)
        return crew, [hire.director(shared, crew)]
    engine: Engine
    if settings.spark.absent:
        from pipeline.alone import AloneEngine  # noqa: PLC0415

        engine = AloneEngine(settings.connection, settings.group, ground.topics[settings.input].partitions)
    else:
        from pipeline import session, spark  # noqa: PLC0415 - a third of a second

        if kept is not None:
            started = session.on(kept)
        elif (kept := session.borrowed()) is not None:
            started = session.beside(kept)
        else:
            started = session.start(settings.spark, ground.compilers)
        engine = spark.SparkEngine(started, settings.spark, kept=kept is not None)
    return engine, [Lane(shared, engine, index) for index in range(settings.lanes)]


def share(ground: Ground, stop: threading.Event, board: Board, view: Silent) -> Shared:
    """What the workers of this run share; tells what was allowed although it is unsafe."""
    for note in ground.notes:
        view.tell(note)
    return Shared(
        ground.settings,
        ground.topics,
        stop,
        board,
        view,
        ground.goals,
        ground.dead_letter_max_bytes,
        ground.transaction,
        Dice(ground.settings.crash),
    )
