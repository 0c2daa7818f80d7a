"""`explain`: where one order is, or why it was delivered twice."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from brew.cli import as_bytes, as_text, flag, names_by_output, plain_option, printable, repeatable, typed_option
from brew.deadline import Deadline
from brew.errors import UsageError
from brew.kafka.log_reader import LogRecord
from brew.kafka.transactions_admin import open_transactions_admin
from brew.load import load
from brew.names import ExitCode, SinkTransactionalId
from brew.offsets import SinkBatch, SourcePosition
from operations.explain.search import OrderSearch, OrderTopics, related_records
from operations.explain.verdict import BROKEN, Copy, OrderHistory, Verdict, delivery_status, order_id, verdict
from operations.options import advised, connected, json_option, pipeline_options, print_json, progress, show, table
from operations.record_status import RecordState

_STYLES = {"committed": "green", "plain": "green", "aborted": "dim", "open": "yellow"}


def document(history: OrderHistory) -> dict[str, Any]:
    status, why = delivery_status(history)
    order = history.order
    return {
        "order": history.location,
        "answer": status.value,
        "why": why,
        "group": {"committed": history.position, "view": history.group_view()},
        "order_id": None if order is None else order.order_id,
        "replay_of": None if history.replayed_from is None else str(history.replayed_from),
        "replayed_as": list(history.replays),
        "input": None if history.source is None else _copy(history.source),
        "copies": [_copy(copy) for copy in history.copies],
    }


def _copy(copy: Copy) -> dict[str, Any]:
    written = copy.written
    return (
        {"role": copy.role, "at": copy.location, "index": copy.index, "fate": written.state.value}
        | {"producer_id": written.producer_id, "producer_epoch": written.producer_epoch}
        | {"transactional_id": copy.transactional_id}
        | {"range": None if copy.span is None else [copy.span.start, copy.span.until]}
        | {"reason": copy.reason, "message": copy.message or None}
        | {"marker": written.marker_offset, "marker_epoch": written.marker_epoch}
        | {"visible": copy.view.visible, "rule": copy.view.rule}
    )


def remarks(summary: Mapping[str, Any]) -> Iterator[Text]:
    if (found := summary["verdict"]) is not None:
        style = "bold red" if found["verdict"] == Verdict.DELIVERED_TWICE else "bold"
        yield Text("verdict: ").append(found["verdict"], style).append(f": {printable(found['why'])}")
    for note in summary["unavailable"]:
        yield Text(f"unavailable: {printable(note)}", "cyan")


def render(history: dict[str, Any]) -> Group:
    copies = _copies(row for row in (history["input"], *history["copies"]) if row is not None)
    style = "bold red" if history["answer"] in BROKEN else "bold"
    head = Text(f"{history['order']}: ").append(history["answer"], style).append(f": {printable(history['why'])}")
    group, letter = Text(f"group: {history['group']['view']}"), history["replay_of"]
    return Group(head, copies, group, *([] if letter is None else [Text(f"replayed from dead letter {letter}")]))


def _copies(rows: Iterable[dict[str, Any]]) -> Table:
    def cells(row: dict[str, Any]) -> tuple[str, Text, str, Text]:
        seen = Text("yes: ", "green") if row["visible"] else Text("no: ", "yellow")
        state = Text(row["fate"], _STYLES.get(row["fate"], "red"))
        return f"{row['role']}\n{row['at']}", state, _transaction(row), seen.append(row["rule"], "default")

    return table(["where", "state", "transaction", "read_committed sees it?"], map(cells, rows), narrow=["state"])


def _transaction(row: dict[str, Any]) -> str:
    if row["fate"] in {"plain", "unknown"}:
        return "none" if row["fate"] == "plain" else "-"
    lines = [printable(row["transactional_id"] or ""), f"producer {row['producer_id']}, epoch {row['producer_epoch']}"]
    if row["range"] is not None:
        start, until = row["range"]
        lines.append(f"input range up to {until}" if start is None else f"input range [{start}, {until})")
    return "\n".join(line for line in lines if line)


_SPAN = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ALL_S = 3600.0


@click.command("explain")
@click.argument("what", metavar="KEY|TOPIC/PARTITION/OFFSET")
@pipeline_options
@plain_option(
    "--transform",
    "Transformation of the run, to find out whether it drops a record.",
    "MODULE:FUNCTION",
    envvar="TRANSFORM",
)
@repeatable("--py-files", "Module, archive or wheel that contains the transformation; repeatable.", "FILE")
@flag("--key is_key", "Treat the argument as a key, even if it looks like TOPIC/PARTITION/OFFSET.")
@flag("--order-id is_order_id", "Treat the argument as the order_id in a record's value.")
@plain_option(
    "--since",
    "Search input records from this time or age on: 2026-11-21T08:00, 90s, 15m, 2h, 7d.  [default: all]",
    "TIME",
)
@typed_option(
    "--limit",
    click.IntRange(1, 1000),
    5,
    "Maximum number of records with the key or order_id; the newest ones are shown.",
)
@json_option
@advised()
@names_by_output
def explain(what: str, bootstrap: str, *, is_key: bool, as_json: bool, **more: Any) -> ExitCode:
    """
    Explain where an order is: its copies in the logs, whether read_committed readers see them, and why.

    Takes a key, an order_id, or a record of the input, an output or the dead-letter topic. It reads the logs, which
    takes long if they are long; --since limits the search for a key or order_id. Several records are compared: they may
    be written twice by upstream, delivered twice by the pipeline, or replayed from the dead letters. For a record of a
    sink (set --output to its topic, but not --input), it shows the sink and the batch.

    Examples:
      python -m pipeline explain gold-000016
      python -m pipeline explain brew.orders.v1/2/10441
      python -m pipeline explain brew.orders.enriched/2/20893 --json
      python -m pipeline explain gold-000016 --since 2h --limit 1
      python -m pipeline explain order-4711 --order-id
      python -m pipeline explain c-17 --transform clicks:add_domain --input clicks --output clicks.enriched

    Exit codes: 0 explained, 1 not exactly once (twice, lost, ghost), 3 refused or brokers unreachable, 64 wrong usage.
    """
    order_topics = OrderTopics(more["topic"], more["output"], more["dead_letter"], more["group"], more["also_output"])
    function = None if more["transform"] is None else load(more["transform"], more["py_files"]).target
    since_ms = None if more["since"] is None else since(more["since"], time.time())
    by_id = more["is_order_id"]
    position = None if is_key or by_id else _position(what, order_topics)
    connection = connected(bootstrap)
    with open_transactions_admin(connection, Deadline(_ALL_S)) as transactions, progress() as report:
        tracer = OrderSearch(connection, order_topics, transactions, report, function)
        if position is not None:
            tracer.check(position.topic)
            # A pipeline's input may be a sink's topic; the question is then what became of the record.
            written = None if position.topic == order_topics.input else tracer.sink_record(position)
            if written is not None:
                return _sink_record(what, *written, tracer.unavailable, as_json=as_json)
        tracer.check(order_topics.input)
        if position is None:
            asked, count = tracer.matching(_named(what, by_id=by_id), since_ms, more["limit"])
        else:
            asked, count = [tracer.origin(position.topic, position.partition, position.offset)], 1
        histories = related_records(tracer, asked)
    found = verdict(histories)
    together = found and {"verdict": found[0].value, "why": found[1]}
    summary = {"what": as_text(what), "found": count, "verdict": together, "unavailable": tracer.unavailable}
    if as_json:
        print_json(summary | {"orders": [document(history) for history in histories]})
    else:
        show(*(render(document(history)) for history in histories), *remarks(summary))
        name = "order_id" if by_id else "key"
        if not histories:
            remedy = "check it, set an earlier --since, or give TOPIC/PARTITION/OFFSET"
            click.echo(f"no record of {order_topics.input} has the {name} {as_text(what)!r}; {remedy}")
        elif count > len(asked):
            click.echo(f"{count} records have that {name}, the last {len(asked)} are shown; --limit {count} shows all")
    return ExitCode.VIOLATION if BROKEN & {delivery_status(history)[0] for history in histories} else ExitCode.DONE


def _position(what: str, order_topics: OrderTopics) -> SourcePosition | None:
    if (position := SourcePosition.parse(what)) is not None and position.topic not in order_topics.topics:
        raise UsageError(
            f"{what!r} is on none of {', '.join(order_topics.topics)}; set --input, --output, --also-output or "
            "--dead-letter to its topic, or add --key if it is a key"
        )
    return position


def _sink_record(what: str, batch: SinkBatch, copy: Copy, unavailable: list[str], *, as_json: bool) -> ExitCode:
    """Print a sink's record; its query may have made it from any number of records, so no source can be named."""
    summary, record, copied = {"what": what, "unavailable": unavailable}, _copy(copy), has_copied_headers(batch, copy)
    if as_json:
        print_json(summary | {"sink": batch.name, "batch": batch.number, "copied": copied, "record": record})
    else:
        said = "copied by another program, with its headers, from " if copied else "written by "
        head = Text(f"{copy.location}: {said}").append(printable(str(batch)), "bold")
        show(head, _copies([record]), *remarks(summary | {"verdict": None}))
    return ExitCode.DONE


def has_copied_headers(batch: SinkBatch, copy: Copy) -> bool:
    """Return whether a sink's headers are in a record that it did not write; False if its writer is unknown."""
    if copy.written.state is RecordState.PLAIN:
        return True  # a sink writes in transactions only
    if copy.transactional_id is None:
        return False
    try:
        return SinkTransactionalId.parse(copy.transactional_id).name != batch.name
    except ValueError:
        return True


def _named(what: str, *, by_id: bool) -> Callable[[LogRecord], bool]:
    if by_id:
        return lambda record: order_id(record.value()) == what
    key = as_bytes(what)
    return lambda record: record.key() == key


def since(text: str, now_s: float, setting: str = "--since", also: str = "") -> int:
    """Convert `2h` or a date (UTC without a zone) to ms since the epoch; `UsageError` if ``setting`` is neither."""
    if span := _SPAN.fullmatch(text):
        return max(0, int((now_s - int(span[1]) * _SECONDS[span[2]]) * 1000))
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{setting} is {text!r}; write {also}90s, 15m, 2h, 7d, or 2026-11-21T08:00") from error
    return max(0, int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000))
