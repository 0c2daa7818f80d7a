"""Observed runs: probes, metrics, /status and spans, if the options ask for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from brew.driver.progress import RunProgress
from brew.observability.settings import ProbeSettings, probe_settings
from brew.settings import PipelineSettings

NO_SPANS = "none"
EXPORTERS = (NO_SPANS, "otlp", "console")

spans_option = click.option(
    "--spans",
    envvar="SPANS",
    type=click.Choice(EXPORTERS),
    default=NO_SPANS,
    show_default=True,
    help="Export a span per transaction by OpenTelemetry; otlp sends to OTEL_EXPORTER_OTLP_ENDPOINT.",
)


def probes_of(option: dict[str, Any], settings: PipelineSettings) -> ProbeSettings | None:
    """
    The probes' settings from a run's options; an attempt may take twice its time-out before the watchdog ends it.

    Raises:
        UsageError: a value that can't be.
    """
    return probe_settings(option, follow=settings.follow, longest_work_s=2 * settings.transaction_timeout_s)


@contextmanager
def observed_progress(
    settings: PipelineSettings, probes: ProbeSettings | None, exporter: str = NO_SPANS
) -> Iterator[RunProgress]:
    """
    The progress of a run, served by probes and exported as spans during the block if the options ask for it.

    Raises:
        UsageError: the requested port is in use, or spans can't be exported.
    """
    if probes is None and exporter == NO_SPANS:
        yield RunProgress()
        return
    from brew.driver.telemetry import ObservedProgress, recorder_of  # noqa: PLC0415 - a tenth of a second, for who is watched
    from brew.observability.server import Producers, serving  # noqa: PLC0415 - the same

    recorder = recorder_of(settings, probes or ProbeSettings())
    with contextlib.ExitStack() as ending:
        if probes is not None:
            ending.enter_context(serving(probes, recorder, Producers.of(settings.connection)))
        progress = ObservedProgress(recorder, settings)
        if exporter != NO_SPANS:
            from brew.observability.tracing import Spans, provider  # noqa: PLC0415 - an extra dependency, and slow to import

            spans = Spans(provider(exporter), recorder.subject)
            ending.callback(spans.close)
            progress.spans = spans
        yield progress
