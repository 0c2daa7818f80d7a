"""The command line: `python -m pipeline run` (or `brew-pipeline run`); builds the settings once."""

from __future__ import annotations

import brew.first_imports

# isort: split

import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import click
import orjson

import brew.cli
from brew.cli import CONTEXT, LazyGroup, UnfinishedError, as_called, flag, forget_variables, named_option, typed_option
from brew.commands import COMMANDS
from brew.config_file import checked_by
from brew.driver.run_context import JsonLines, LiveTable, ProgressView, RunProgress
from brew.errors import UsageError
from brew.kafka.cluster import broker_watch
from brew.names import ExitCode, quantity
from brew.observability.settings import ProbeSettings, probe_options, probe_settings
from brew.options import run_options
from brew.options import settings_of as settings_with
from brew.pipeline import work
from brew.settings import PipelineSettings, Reader
from brew.signals import stop_on_signals
from brew.transformation import transformation
from pipeline.transformation import ORDERS

_EPILOG = """\b
Examples:
  python -m pipeline run                        drain the input and exit
  python -m pipeline run --follow               keep going until SIGTERM
  python -m pipeline run --follow --stand-by    on two machines: one works
  python -m pipeline run --follow --share       on two machines: both work
  python -m pipeline run --crash-prob 1.0       die before the commit, code 2
  python -m pipeline run --bootstrap k1:9092 --input a --output b --group g

\b
Exit codes: 0 done, 2 crashed on purpose, 3 refused, 64 wrong usage."""

_SUBMITTED = """\b
Examples:
  python -m pipeline submit --dry-run           print the spark-submit line
  python -m pipeline submit --master spark://m:7077 --follow
  MASTER=yarn python -m pipeline submit --conf spark.submit.deployMode=cluster"""

_COMMANDS = """\b
Examples:
  python -m pipeline run                        drain the input and exit
  python -m pipeline preflight                  what would make a run unsafe
  python -m pipeline lag                        what is left, per partition
  python -m pipeline explain gold-000016        where an order is, and why
  python -m pipeline show brew.orders.enriched  a topic's newest records
  python -m pipeline ui                         a group in a browser, live"""

_LATER = {
    name: entry.target
    for name, entry in COMMANDS.items()
    if entry.program == "pipeline" and not entry.target.startswith("pipeline.")
}


_NO_SPANS = "none"
_spans_option = named_option(
    "--spans",
    "SPANS",
    _NO_SPANS,
    "Export a span per transaction by OpenTelemetry; otlp sends to OTEL_EXPORTER_OTLP_ENDPOINT.",
    type=click.Choice([_NO_SPANS, "otlp", "console"]),
)


@click.group(cls=LazyGroup, later=_LATER, epilog=_COMMANDS, context_settings=CONTEXT)
def cli() -> None:
    """Exactly once from one Kafka topic to another, on Spark."""


def settings_of(option: dict[str, Any]) -> PipelineSettings:
    """Return the settings of a run; its transformation is the orders' unless `--transform` names another."""
    settings = _settings(option)
    transformation(settings)  # reports a typo before anything starts
    return settings


def _settings(option: dict[str, Any]) -> PipelineSettings:
    settings = settings_with(option, ORDERS, ("brew", "pipeline"))
    if settings.profiles is not None and settings.transform != ORDERS:
        raise UsageError(
            "TIERS (--tiers) is 'profiles' and --transform is set: only orders have tiers; unset one of them"
        )
    return settings


def _check(option: dict[str, Any]) -> None:
    """Refuse what a run refuses, without importing the transformation."""
    _probes_of(option, _settings(option))


@cli.command("run", epilog=_EPILOG)
@run_options
@probe_options
@_spans_option
@typed_option(
    "--progress",
    click.Choice(["auto", "table", "json", "none"]),
    "auto",
    "auto, table, json or none; auto: a table on a terminal, else a JSON object a line.",
)
@flag("--json as_json", "All as JSON lines: --progress json, summary and refusals.")
@checked_by(_check)
def run_command(progress: str, spans: str, *, as_json: bool, **option: Any) -> ExitCode:
    """Drain the input topic and exit, or follow it."""
    lines = JsonLines()
    # With --json, stdout holds nothing but objects: what the transformation prints goes to stderr.
    with contextlib.redirect_stdout(sys.stderr) if as_json else nullcontext():
        settings = settings_of(option)
        forget_variables()
        stop = threading.Event()
        stop_on_signals(stop, follow=settings.follow)
        with _observed_progress(settings, _probes_of(option, settings), spans) as counters:
            view = lines if as_json else _view(progress, counters)
            waits = "this run waits, and continues from the committed offsets"
            watch = broker_watch(settings.connection, settings.input, waits, settings.patience_s, view.note)
            with watch if settings.follow else nullcontext():
                try:
                    code = work(settings, stop, counters, view)
                except BrokenPipeError as error:
                    raise UnfinishedError(
                        "stopped before the end, because the reader of its output is gone; "
                        "run again, and it continues from the committed offsets (--progress none prints no progress)"
                    ) from error
        totals = counters.totals
        if totals.rejected and totals.rejected == totals.records:
            every = "the only record was" if totals.records == 1 else f"all {totals.records} records were"
            warning = f"warning: {every} rejected; `brew dlq list --dead-letter {settings.dead_letter}` shows why"
            if as_json:
                lines.note(as_called(warning))
            else:
                click.echo(as_called(f"pipeline: {warning}"), err=True)
    if as_json:
        lines.done(counters)
        return code
    done = "enriched" if settings.transform == ORDERS else "transformed"
    dropped = f", {totals.dropped} dropped" if totals.dropped else ""
    written = f" into {totals.written}" if totals.written != totals.enriched else ""
    became = f"{totals.enriched} {done}{written}, {totals.rejected} rejected{dropped}"
    click.echo(
        f"{quantity(totals.records, 'record')}: {became}, "
        f"{quantity(totals.transactions, 'transaction')}, {totals.fenced} fenced, {totals.failed} failed, "
        f"{counters.rate():,.0f} records/s"
    )
    return code


def _probes_of(option: dict[str, Any], settings: PipelineSettings) -> ProbeSettings | None:
    """Return the probes' settings; an attempt may take twice its time-out before the watchdog ends it."""
    load_s = 0.0 if settings.profiles is None else settings.profiles.load_timeout_s  # before that
    pause_s = settings.poll_interval_s if settings.reader is Reader.CONNECTOR else 0.0
    longest_work_s = max(load_s + 2 * settings.transaction_timeout_s, pause_s)
    return probe_settings(option, follow=settings.follow, longest_work_s=longest_work_s)


@contextmanager
def _observed_progress(
    settings: PipelineSettings, probes: ProbeSettings | None, exporter: str = _NO_SPANS
) -> Iterator[RunProgress]:
    """Yield the progress of a run, with probes and exported spans during the block if the options ask for them."""
    if probes is None and exporter == _NO_SPANS:
        yield RunProgress()
        return
    from brew.driver.telemetry import ObservedProgress, recorder_of  # noqa: PLC0415 - a tenth of a second, only if observed
    from brew.observability.server import Producers, serving  # noqa: PLC0415 - as above

    recorder = recorder_of(settings, probes or ProbeSettings())
    with contextlib.ExitStack() as ending:
        if probes is not None:
            ending.enter_context(serving(probes, recorder, Producers.of(settings.connection)))
        progress = ObservedProgress(recorder, settings)
        if exporter != _NO_SPANS:
            from brew.observability.tracing import Spans, provider  # noqa: PLC0415 - an extra dependency, and slow to import

            spans = Spans(provider(exporter), recorder.subject)
            ending.callback(spans.close)
            progress.spans = spans
        yield progress


@cli.command("submit", epilog=_SUBMITTED)
@run_options
@probe_options
@_spans_option
@flag("--dry-run", "Print the spark-submit line instead of running it.")
@flag("--json as_json", "--dry-run as a document; a refusal, too.")
@checked_by(_check)
def submit_command(*, dry_run: bool, as_json: bool, spans: str, **option: Any) -> ExitCode:
    """Hand the run to spark-submit (the driver then lives where Spark puts it)."""
    from pipeline.submit import spark_submit, submitter  # noqa: PLC0415 - Spark is slow to import, and a run may need none

    settings = settings_of(option)
    if settings.spark.absent:
        raise UsageError("MASTER (--master) is 'none': there is nothing to submit; use `brew run`")
    _probes_of(option, settings)  # refused here, not where Spark runs the driver
    line = spark_submit(settings, click.get_current_context().command.params, {**option, "spans": spans})
    if not dry_run:
        os.execv(submitter(), line)  # noqa: S606 - no shell in between, signals reach spark-submit
    click.echo(orjson.dumps({"command": line}) if as_json else shlex.join(line))
    return ExitCode.DONE


def _view(kind: str, progress: RunProgress) -> ProgressView:
    if kind == "auto":
        kind = "table" if sys.stdout.isatty() else "json"
    return {"table": lambda: LiveTable(progress), "json": JsonLines, "none": ProgressView}[kind]()


def main() -> None:
    brew.cli.run(cli, "pipeline")


if __name__ == "__main__":
    main()
