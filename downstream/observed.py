"""Observability of consuming programs: a recording handler, probes, and the only way to run the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError
from brew.kafka.clients import admin, is_cut_off
from brew.kafka.cluster_admin import leaderless
from brew.kafka.offsets import log_offsets
from brew.observability.health import Bounds
from brew.observability.recorder import Recorder, Subject
from brew.observability.server import serving
from brew.observability.settings import ProbeSettings, probe_settings
from brew.observability.status import Phase, Topics
from brew.signals import stop_on_signals
from downstream.consume.handler import (
    GRACE_S,
    AssignedPartition,
    Handler,
    HandlerContext,
    LoopSettings,
    NotOwned,
    PartitionBatch,
    RetryLater,
)
from downstream.consume.loop import Loop, LoopResult

_ASK_S = 10.0
_ASK_EVERY_S = 5.0
_LEAVE_S = 2.0

follow_option = click.option(
    "--follow", is_flag=True, envvar="FOLLOW", help="Run until SIGTERM; without it, stop at the topic's current end."
)


@contextmanager
def observed(
    subject: Subject,
    connection: Connection,
    given: Mapping[str, Any],
    *,
    follow: bool,
    longest_work_s: float,
    patience_s: float,
) -> Iterator[Recorder]:
    """
    Yield a program's recorder; probes are served inside the block if they are enabled. ``longest_work_s``: how long one
    piece of work may take in a healthy program; ``patience_s``: how long the program waits for unavailable servers
    before it ends. Raises `UsageError`: an option is invalid, or the requested port is taken.
    """
    probes = probe_settings(given, follow=follow, longest_work_s=longest_work_s)
    ttl = probes or ProbeSettings()
    recorder = Recorder(subject, Bounds(ttl.polling_ttl_s, ttl.consuming_ttl_s, patience_s + longest_work_s))
    if probes is None:
        yield recorder
        return
    with serving(probes, recorder), _end_offsets_polled(connection, recorder):
        yield recorder


def to_stderr(text: str) -> None:
    click.echo(text, err=True)


def stop_event(*, follow: bool) -> threading.Event:
    """Return an event set by the first SIGTERM or SIGINT; the process is ended if it still runs some seconds later."""
    stop = threading.Event()
    stop_on_signals(stop, GRACE_S, follow=follow)
    return stop


def consume(
    application: str,
    settings: LoopSettings,
    handler: Handler,
    given: Mapping[str, Any],
    stop: threading.Event | None = None,
    prepare: Callable[[Recorder], None] = lambda _recorder: None,
) -> LoopResult:
    """Run the consume loop until drained or stopped by a signal, and serve probes as the options say."""
    stop = stop or stop_event(follow=settings.follow)
    subject = Subject(application, settings.group, Topics(settings.topic), settings.connection.bootstrap)
    times = {"longest_work_s": settings.max_poll_interval_s, "patience_s": settings.patience_s}
    with observed(subject, settings.connection, given, follow=settings.follow, **times) as recorder:
        prepare(recorder)
        return Loop(settings, ObservedHandler(handler, recorder, settings.topic), stop, to_stderr).run()


@contextmanager
def _end_offsets_polled(connection: Connection, recorder: Recorder) -> Iterator[None]:
    """Read the end offsets of the recorder's partitions every few seconds; a consumer does not know the LSO."""
    stop = threading.Event()
    thread = threading.Thread(target=_poll_end_offsets, args=(connection, recorder, stop), name="ends", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_LEAVE_S)


def _poll_end_offsets(connection: Connection, recorder: Recorder, stop: threading.Event) -> None:
    client = admin(connection)
    while not stop.wait(_ASK_EVERY_S):
        topic_partitions = recorder.topic_partitions()
        for topic in sorted({topic for topic, _ in topic_partitions}):
            try:
                deadline, ours = Deadline(_ASK_S), {p for t, p in topic_partitions if t == topic}
                readable = ours.difference(leaderless(client, topic, deadline)) or ours
                logs = log_offsets(client, topic, readable, deadline)
            except BrewError as error:
                recorder.unanswered(str(error), refresh=False)
                if is_cut_off(client, connection, topic):
                    client = admin(connection)
                continue
            for partition, log in logs.items():
                recorder.end_offsets((topic, partition), log.last_stable, log.end)


class ObservedHandler(Handler):
    """Wraps a pattern's handler and reports every call to the recorder."""

    def __init__(self, inner: Handler, recorder: Recorder, topic: str) -> None:
        self._inner, self._recorder, self._topic = inner, recorder, topic
        self._newest_ms: dict[int, int] = {}

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:
        self._recorder.phase(Phase.WORKING)
        with self._reporting_failures(assignment.partition for assignment in assignments):
            positions = self._inner.assigned(assignments, deadline)
        for assignment in assignments:
            topic_partition, end = (assignment.topic, assignment.partition), assignment.last_stable
            self._recorder.surveyed(topic_partition, positions.get(assignment.partition, assignment.first), end, end)
        return positions

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        # Before the work is done, because positions reported during it refer to these records.
        self._newest_ms |= {batch.partition: batch.records[-1].timestamp()[1] for batch in batches if batch.records}
        with self._reporting_failures([batch.partition for batch in batches]):
            self._inner.handle(batches, self._reporting_positions(context))
        for batch in batches:
            self._recorder.read((self._topic, batch.partition), len(batch.records))

    def tick(self, context: HandlerContext) -> None:
        """Run the handler's tick; it also shows that the loop polls."""
        self._recorder.phase(Phase.WORKING)
        self._recorder.polled((self._topic, partition) for partition in context.partitions)
        with self._reporting_failures(context.partitions):
            self._inner.tick(self._reporting_positions(context))

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        try:
            self._inner.revoked(partitions, deadline)
        finally:
            self._recorder.released((self._topic, partition) for partition in partitions)

    def lost(self, partitions: Collection[int]) -> None:
        self._recorder.released((self._topic, partition) for partition in partitions)
        self._inner.lost(partitions)

    def close(self, deadline: Deadline) -> None:
        self._recorder.phase(Phase.STOPPING)
        self._inner.close(deadline)

    def _reporting_positions(self, context: HandlerContext) -> HandlerContext:
        def both(positions: Mapping[int, int]) -> None:
            context.report(positions)
            for partition, position in positions.items():
                self._recorder.moved((self._topic, partition), position, self._newest_ms.get(partition))

        return replace(context, report=both)

    @contextmanager
    def _reporting_failures(self, partitions: Iterable[int]) -> Iterator[None]:
        try:
            yield
        except (RetryLater, NotOwned) as error:
            self._recorder.waits([(self._topic, partition) for partition in partitions], str(error))
            raise
        except Exception as error:
            self._recorder.fatal(f"{type(error).__name__}: {error}")
            raise
