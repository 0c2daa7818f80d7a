"""
A span for each transaction, with a child span for each of its steps (OpenTelemetry, the extra `otel`). The driver
creates them from what attempts report, so executors need no exporter. Messaging attributes are those of the semantic
conventions (v1.44), which do not cover transactions: `brew.txn.*` are ours.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from brew.errors import UsageError
from brew.observability.counters import Ended, Ending
from brew.observability.recorder import Subject

_NS = 1_000_000_000
_SERVICE = "brew-pipeline"
_CLOSE_S = 3.0
_W3C = TraceContextTextMapPropagator()


def provider(exporter: str) -> TracerProvider:
    """Return a tracer for ``exporter`` (otlp or console); raises `UsageError` if that is not installed."""
    # The environment's attributes last: with `create`, OTEL_RESOURCE_ATTRIBUTES could not set the name.
    resource = Resource.create({SERVICE_NAME: _SERVICE}).merge(OTELResourceDetector().detect())
    made = TracerProvider(resource=resource)
    made.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    return made


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"--spans is {name!r}, and {error.name} is not installed; run pip install 'brew[otel]'"
        ) from error
    exporter: SpanExporter = OTLPSpanExporter()
    return exporter


class Spans:
    """Creates spans of attempts that have ended; closing it sends the remaining ones, for at most three seconds."""

    def __init__(self, sending: TracerProvider, subject: Subject) -> None:
        self._provider, self._subject = sending, subject
        self._tracer = sending.get_tracer("brew")

    def ended(self, end: Ended) -> None:
        """Create the spans of one attempt; none if its start time is unknown (Spark lost the task)."""
        if end.began_at is None:
            return
        began = int(end.began_at * _NS)
        until = began + int(end.seconds * _NS)
        kind = SpanKind.CONSUMER
        name, links = f"transact {end.topic}", [*_links(end.traces)]
        span = self._tracer.start_span(name, None, kind, self._attributes(end), links, start_time=began)
        if end.ending not in {Ending.COMMITTED, Ending.REFUSED}:
            span.set_attribute("error.type", end.ending.value)
            span.set_status(Status(StatusCode.ERROR, end.detail[:200]))
        inside, start = set_span_in_context(span), began
        for step, seconds in end.steps.items():
            child = self._tracer.start_span(step, inside, SpanKind.INTERNAL, start_time=start)
            start = min(until, start + int(seconds * _NS))
            child.end(start)
        span.end(until)

    def _attributes(self, end: Ended) -> dict[str, str | int]:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "transact",
            "messaging.operation.type": "process",
            "messaging.destination.name": end.topic,
            "messaging.destination.partition.id": str(end.partition),
            "messaging.batch.message_count": end.records,
            "messaging.kafka.offset": end.start,
            "brew.txn.outcome": end.ending.value,
            "brew.txn.start": end.start,
            "brew.txn.until": end.until,
        }
        named = {"messaging.consumer.group.name": self._subject.group, "brew.txn.id": end.transactional_id}
        return attributes | {name: value for name, value in named.items() if value is not None}

    def close(self) -> None:
        # It waits for an unreachable collector for up to 30 s, and a signal ends a run within 10 s.
        closing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


def _links(traces: Sequence[str]) -> Iterator[Link]:
    """Yield links to the spans that wrote the input's records, as the conventions ask for batches; skip invalid."""
    for trace in traces:
        span_context = get_current_span(_W3C.extract({"traceparent": trace}, context=Context())).get_span_context()
        if span_context.is_valid:
            yield Link(span_context)
