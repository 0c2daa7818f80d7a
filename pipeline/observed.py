"""A run that can be watched: its board tells a recorder, and probes, metrics and /status are answered from that."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from pipeline.outcome import Outcome, Status
from pipeline.ownership import EVERY
from pipeline.plan import Fact
from pipeline.progress import Board
from pipeline.settings import PipelineSettings
from pipeline.timed import COMMIT
from protocol.names import TransactionalId
from protocol.observe.counts import Ended, Ending
from protocol.observe.liveness import Bounds, Phase
from protocol.observe.recorder import Recorder, Subject
from protocol.observe.server import serving
from protocol.observe.settings import ProbeSettings, probe_settings
from protocol.observe.status import Topics

if TYPE_CHECKING:
    from pipeline.spans import Spans

NO_SPANS = "none"
EXPORTERS = (NO_SPANS, "otlp", "console")

spans_option = click.option(
    "--spans",
    envvar="SPANS",
    type=click.Choice(EXPORTERS),
    default=NO_SPANS,
    show_default=True,
    help="A span per transaction, by OpenTelemetry; otlp goes where OTEL_EXPORTER_OTLP_ENDPOINT says.",
)

_OUT_OF_PATIENCE_S = 60.0
"""By then a run that lost its patience has ended by itself: a survey, a pause, and the end of what runs."""


def probes_of(option: dict[str, Any], settings: PipelineSettings) -> ProbeSettings | None:
    """
    The probes' settings from a run's options; an attempt may take twice its time-out before the watchdog ends it.

    Raises:
        UsageError: a value that can't be.
    """
    return probe_settings(option, follow=settings.follow, longest_work_s=2 * settings.transaction_timeout_s)


@contextmanager
def observed(settings: PipelineSettings, probes: ProbeSettings | None, exporter: str = NO_SPANS) -> Iterator[Board]:
    """
    The board of a run; while the block lasts it is served, and spans go out, where somebody wants to see them.

    Raises:
        UsageError: the port that was asked for is taken, or spans can't be sent from here.
    """
    if probes is None and exporter == NO_SPANS:
        yield Board()
        return
    recorder = recorder_of(settings, probes or ProbeSettings())
    with contextlib.ExitStack() as ending:
        if probes is not None:
            ending.enter_context(serving(probes, recorder))
        board = ObservedBoard(recorder, settings)
        if exporter != NO_SPANS:
            from pipeline.spans import Spans, provider  # noqa: PLC0415 - an extra dependency, and slow to import

            spans = Spans(provider(exporter), recorder.subject)
            ending.callback(spans.close)
            board.spans = spans
        yield board


def recorder_of(settings: PipelineSettings, probes: ProbeSettings) -> Recorder:
    """A run's memory."""
    topics = Topics(settings.input, settings.output, settings.dead_letter)
    bounds = Bounds(probes.polling_ttl_s, probes.consuming_ttl_s, settings.patience_s + _OUT_OF_PATIENCE_S)
    reader = settings.reader.value
    return Recorder(Subject("pipeline", settings.group, topics, settings.connection.bootstrap, reader), bounds)


class ObservedBoard(Board):
    """The run's counters, and a recorder that hears all that they hear."""

    def __init__(self, recorder: Recorder, settings: PipelineSettings) -> None:
        super().__init__()
        self.recorder, self._topic, self._group = recorder, settings.input, settings.group
        self.spans: Spans | None = None

    def survey(self, facts: Iterable[Fact], ours: Container[int] = EVERY) -> None:
        told = list(facts)
        super().survey(told, ours)
        self.recorder.released((one.topic, one.partition) for one in told if one.partition not in ours)
        for one in told:
            if one.partition in ours:
                self.recorder.surveyed((one.topic, one.partition), one.position, one.log.last_stable, one.log.end)

    def outcome(self, outcome: Outcome) -> None:
        super().outcome(outcome)
        told = ended(outcome, self._topic, self._group)
        self.recorder.ended(told)
        if self.spans is not None:
            self.spans.ended(told)

    def unanswered(self, why: str) -> None:
        self.recorder.unanswered(why)

    def phase(self, phase: Phase, detail: str = "") -> None:
        if phase is Phase.STANDING_BY:
            self.recorder.released()
        self.recorder.phase(phase, detail)

    def fatal(self, why: str) -> None:
        self.recorder.fatal(why)


def ended(outcome: Outcome, topic: str, group: str) -> Ended:
    """An outcome in the words that every program shares."""
    return Ended(
        topic,
        outcome.partition,
        _ending(outcome),
        outcome.start,
        outcome.until,
        outcome.enriched + outcome.rejected,
        outcome.reasons,
        outcome.seconds,
        outcome.steps,
        outcome.began_at or None,
        str(TransactionalId(group, topic, outcome.partition)),
        outcome.detail,
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
        case Status.FAILED:  # whether a commit that failed was applied, the next attempt's locate tells
            return Ending.INDEFINITE if COMMIT in outcome.steps else Ending.ABORTED
