"""The progress of an observed run, passed on to a recorder that serves probes, metrics and spans."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from typing import TYPE_CHECKING

from brew.attempt import COMMIT
from brew.claims.heartbeater import ALL_PARTITIONS
from brew.driver.run_context import RunProgress
from brew.names import TransactionalId
from brew.observability.counters import Ended, Ending
from brew.observability.health import Bounds
from brew.observability.recorder import Recorder, Subject
from brew.observability.settings import ProbeSettings
from brew.observability.status import Phase, Topics
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.settings import PipelineSettings
from brew.transformation import transformation

if TYPE_CHECKING:
    from brew.observability.tracing import Spans

_SHUTDOWN_S = 60.0
"""A run that gives up ends by itself within this time: a survey, a pause, and the running transactions."""


def recorder_of(settings: PipelineSettings, probes: ProbeSettings) -> Recorder:
    topics = Topics(settings.input, settings.output, settings.dead_letter)
    bounds = Bounds(probes.polling_ttl_s, probes.consuming_ttl_s, settings.patience_s + _SHUTDOWN_S)
    reader = settings.reader.value
    recorder = Recorder(Subject("pipeline", settings.group, topics, settings.connection.bootstrap, reader), bounds)
    if settings.transform is not None:
        for reason in transformation(settings).reasons:  # from 0 on, or Prometheus sees no increase at the first one
            recorder.rejected(reason, 0)
    return recorder


class ObservedProgress(RunProgress):
    """The run's counters; passes every event on to a recorder."""

    watched = True

    def __init__(self, recorder: Recorder, settings: PipelineSettings) -> None:
        super().__init__()
        self.recorder, self._topic, self._group = recorder, settings.input, settings.group
        self.spans: Spans | None = None
        self._leaderless = frozenset[int]()

    @property
    def traced(self) -> bool:
        return self.spans is not None

    def survey(self, facts: Iterable[PartitionFacts], owned: Container[int] = ALL_PARTITIONS) -> None:
        surveyed = list(facts)
        super().survey(surveyed, owned)
        self.recorder.released((fact.topic, fact.partition) for fact in surveyed if fact.partition not in owned)
        for fact in surveyed:
            if fact.partition in owned:
                self.recorder.surveyed((fact.topic, fact.partition), fact.position, fact.log.last_stable, fact.log.end)

    def begun(self, partition: int) -> None:
        self.recorder.begun((self._topic, partition))

    def outcome(self, outcome: Outcome) -> None:
        super().outcome(outcome)
        ended = ended_attempt(outcome, self._topic, self._group)
        self.recorder.ended(ended)
        if self.spans is not None:
            self.spans.ended(ended)

    def unanswered(self, reason: str) -> None:
        self.recorder.unanswered(reason)

    def missing(self, which: str) -> None:
        self.recorder.missing(which)

    def leaderless(self, partitions: Collection[int], looked_at: Collection[int]) -> None:
        with self._lock:  # each lane looks at its own partitions, in its own thread
            self._leaderless = self._leaderless.difference(looked_at).union(partitions)
            self.recorder.leaderless([(self._topic, partition) for partition in self._leaderless])

    def phase(self, phase: Phase, detail: str = "") -> None:
        if phase is Phase.STANDING_BY:
            with self._lock:
                self._leaderless = frozenset()
                self.recorder.released()
        self.recorder.phase(phase, detail)

    def fatal(self, reason: str) -> None:
        self.recorder.fatal(reason)


def ended_attempt(outcome: Outcome, topic: str, group: str) -> Ended:
    return Ended(
        topic,
        outcome.partition,
        _ending(outcome),
        outcome.start,
        outcome.until,
        outcome.records,
        outcome.reasons,
        outcome.seconds,
        outcome.steps,
        outcome.began_at or None,
        str(TransactionalId(group, topic, outcome.partition)),
        outcome.detail,
        outcome.newest_ms,
        outcome.traces,
        outcome.malformed_profiles,
    )


def _ending(outcome: Outcome) -> Ending:
    match outcome.status:
        case Status.COMMITTED:
            return Ending.COMMITTED
        case Status.FENCED:
            return Ending.FENCED
        case Status.ALREADY_DONE | Status.AHEAD | Status.OFFSET_GAP:
            return Ending.REFUSED
        case Status.CRASHED:
            return Ending.INDEFINITE
        case Status.TRANSFORM_FAILED:
            return Ending.ABORTED
        case Status.FAILED:  # the next attempt's locate shows whether a failed commit was applied
            return Ending.INDEFINITE if COMMIT in outcome.steps else Ending.ABORTED
