"""Run the scripts repeatedly with one writer, evaluate every try, and show timelines side by side."""

from __future__ import annotations

import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

from rich.table import Table
from rich.text import Text

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.clients import admin, consumer
from brew.kafka.kafka_python import raw_batches
from brew.kafka.log_reader import scan
from brew.kafka.offsets import committed, log_offsets
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from proof.wire.codec import Api, error_name
from proof.wire.late import STEP_S, WRITERS, RecordPlacement, Tally, Try, anomalies, run_script, tally
from proof.wire.proxy import Event, WireProxy

F11 = ("late-commit", "late-abort")
_ASK_S = 60.0
# With a smaller share of broken tries, the control has not shown the fault, and a clean strict writer proves nothing.
_BELIEVED_FROM = 0.95
_FRAMES_KEPT = 4
TITLES = {
    "reuse": "one producer for all transactions (as in every tutorial)",
    "strict": "a producer per transaction (ours)",
}
_AGAIN = "The client sends it again, is answered, and goes on. The old frame arrives inside transaction 2;"
SCRIPT_DESCRIPTIONS = {
    "late-commit": f"The COMMIT of transaction 1 is held back on the wire. {_AGAIN} transaction 2 is then ABORTED.",
    "late-abort": f"The ABORT of transaction 1 is held back on the wire. {_AGAIN} transaction 2 is then COMMITTED.",
}
_WIDTH = 69
_UP_TO_CUT, _UP_TO_RELEASE, _LATE, _AFTER = range(4)


def _log(connection: Connection, output: str) -> dict[str, RecordPlacement]:
    """Return every record of the output by key."""

    def records(first: int, until: int, isolation: str) -> Iterator[tuple[int, str]]:
        for batch in scan(connection, output, {0: (first, until)}, isolation):
            for record in batch:
                yield record.offset(), (record.key() or b"").decode()

    ends = log_offsets(admin(connection), output, [0], Deadline(_ASK_S))[0]
    seen = list(records(ends.first, ends.last_stable, READ_COMMITTED))
    # A visible copy of a record counts, wherever aborted ones are.
    where = {key: offset for offset, key in (*records(ends.first, ends.end, READ_UNCOMMITTED), *seen)}
    visible, copies = {offset for offset, _ in seen}, Counter(key for _, key in seen)
    writers: dict[int, tuple[int, int]] = defaultdict(lambda: (-1, -1))
    for batch in raw_batches(connection, output, 0, ends.first, ends.end, Deadline(_ASK_S)):
        of_batch = range(batch.base_offset, batch.last_offset + 1)
        writers |= dict.fromkeys(of_batch, (batch.producer_id, batch.producer_epoch))
    return {
        key: RecordPlacement(offset, *writers[offset], visible=offset in visible, copies=max(1, copies[key]))
        for key, offset in where.items()
    }


@dataclass(frozen=True)
class Result:
    """One writer's tries, their tally, the frames of the first few, and the duration in seconds."""

    writer: str
    tally: Tally
    tries: list[Try]
    log: dict[str, RecordPlacement]
    frames: list[list[Event]]
    seconds: float

    @property
    def expected(self) -> str:
        return "proven" if self.writer == "strict" else "violated"

    @property
    def verdict(self) -> str:
        """Violated if any try broke, but at least 95 % of a control's; inconclusive if any try was."""
        if self.expected == "violated":
            return "violated" if self.tally.broken >= _BELIEVED_FROM * max(1, self.tally.tries) else "inconclusive"
        return "violated" if self.tally.broken else "inconclusive" if self.tally.inconclusive else "proven"

    def document(self) -> dict[str, Any]:
        tally = self.tally
        counts = {name: getattr(tally, name) for name in ("tries", "clean", "broken", "inconclusive")}
        names = {"anomalies": dict(tally.names), "late_frames": dict(tally.late)}
        first = [{"try": number, **asdict(anomaly)} for number, anomaly in tally.first]
        evidence = {"first": first, "troubles": tally.troubles, "seconds": round(self.seconds, 2)}
        return {"writer": self.writer, **counts, **names, **evidence}


def experiment(
    connection: Connection, writer: str, tries: int, scripts: Sequence[str] = F11, *, seed: int = 0
) -> Result:
    """Run the scripts in turn, starting with number ``seed``, ``tries`` times in all, and evaluate them by the log."""
    began = time.monotonic()
    stem, client = f"wire-{writer}-{secrets.token_hex(4)}", admin(connection)
    source, output, group = f"{stem}.in", f"{stem}.out", f"{stem}.group"
    topics.create(client, [topics.TopicSpec(name, 1, {}) for name in (source, output)], Deadline(_ASK_S))
    topics.describe_all(client, [source, output], Deadline(_ASK_S))
    done, frames = list[Try](), list[list[Event]]()
    with WireProxy(connection.bootstrap, seed=seed) as proxy:
        actor = WRITERS[writer](proxy.connection, group, source, output)
        reader = consumer(connection, group, READ_COMMITTED)
        with closing(reader), closing(actor):
            for number in range(tries):
                proxy.timeline.clear()
                done.append(run_script(proxy, actor, number, scripts[(seed + number) % len(scripts)]))
                position = committed(reader, source, [0], Deadline(STEP_S))[0]
                done[-1].position = None if position is None else position.offset
                if number < _FRAMES_KEPT:
                    frames.append(proxy.timeline.events())
        for failure in proxy.failures:
            done[-1].trouble = done[-1].trouble or failure
    log = _log(connection, output)
    return Result(writer, tally(done, log), done, log, frames, time.monotonic() - began)


def timelines(first: Result, second: Result, number: int) -> Table:
    """Return both writers' try ``number`` in two columns, aligned at the cut and at the release of the frame."""
    table = _columns(Text(TITLES[result.writer], style="bold") for result in (first, second))
    for acts in zip(*(_acts(result.frames[number]) for result in (first, second)), strict=True):
        for row in zip_longest(*acts, fillvalue=Text("")):
            table.add_row(*row)
        table.add_row("", "")
    return table


def _columns(titles: Iterable[Text]) -> Table:
    table = Table(show_edge=False, pad_edge=False, box=None, padding=(0, 2, 0, 0))
    for title in titles:
        table.add_column(title, no_wrap=True, min_width=_WIDTH)
    return table


def _acts(events: Sequence[Event]) -> list[list[Text]]:
    """Split a run into lines up to the cut, up to the release, of the late frame, and after it."""
    began = events[0].at if events else 0.0
    acts: list[list[Text]] = [[], [], [], []]
    act: int = _UP_TO_CUT
    late = None
    for event in events:
        if event.what == "released":
            act, late = _LATE, (event.connection, event.header.correlation_id)
        if event.what != "request":
            is_late = (event.connection, event.header.correlation_id) == late
            acts[act].append(_line(event, began, is_late=is_late))
        if event.what == "cut":
            act = _UP_TO_RELEASE
        if event.what == "reply" and act == _LATE:
            act = _AFTER
    return acts


def _line(event: Event, began: float, *, is_late: bool) -> Text:
    details = event.details
    clock = f"{(event.at - began) * 1000:4.0f} ms "
    name = event.header.title + (f"({details.text})" if event.header.api == Api.EndTxn else "")
    producer = f"epoch {details.epoch}" if details.epoch >= 0 else ""
    if event.what == "held":
        return Text.assemble((clock, "dim"), (f"{name} {producer}: HELD by the proxy", "yellow bold"))
    if event.what == "cut":
        return Text.assemble((clock, "dim"), ("its connection is CUT", "yellow"))
    if event.what == "released":
        return Text.assemble((clock, "dim"), (f"{name} {producer}: RELEASED, too late", "yellow bold"))
    error = error_name(details.error) if details.error is not None else "?"
    fine = details.error == 0
    style = ("red bold" if fine else "green bold") if is_late else ("" if fine else "dim")
    tail = "  <- taken" if is_late and fine else "  <- refused" if is_late else ""
    records = f"{details.text.partition(' to ')[0]}, " if event.header.api == Api.Produce else ""
    what = f"{name:<19}{producer:<9}{records}"
    return Text.assemble((clock, "dim"), (f"{what}{error}{tail}", style))


def seen_by_reader(results: Sequence[Result], number: int) -> Table:
    """Return what a `read_committed` reader gets of each transaction, and the group's position."""
    table = _columns(Text(f"what a read_committed reader then sees ({result.writer})") for result in results)
    for row in zip_longest(*(_seen(result.tries[number], result.log) for result in results), fillvalue=Text("")):
        table.add_row(*row)
    return table


def _seen(tried: Try, log: Mapping[str, RecordPlacement]) -> list[Text]:
    wrong = {anomaly.evidence: anomaly for anomaly in anomalies(tried, log)}
    lines = []
    for number, attempt in enumerate(tried.attempts, 1):
        visible = sum(log[key].visible for key in attempt.keys if key in log)
        outcome = "aborted by its writer" if attempt.state.value == "given up" else f"{attempt.state}, acknowledged"
        mine = next((a for a in wrong.values() if f" {attempt.name} " in f" {a.evidence} "), None)
        text = f"transaction {number} ({outcome}): {visible} of {len(attempt.keys)} records"
        lines.append(Text(f"{text}  {mine.name}", "red bold") if mine else Text(text, "green"))
    lines.append(Text(f"the group's position: {tried.position}"))
    return lines


def conclusion(results: Sequence[Result]) -> list[Text]:
    lines = []
    for result in results:
        counts = result.tally
        names = ", ".join(f"{name} in {count}" for name, count in sorted(counts.names.items())) or "0 anomalies"
        answers = ", ".join(f"{name} x {count}" for name, count in sorted(counts.late.items()))
        text = f"{TITLES[result.writer]}: {names} of {counts.tries} tries; late frames answered: {answers}"
        style = "red bold" if counts.broken else "green bold" if counts.clean == counts.tries else "yellow"
        lines.append(Text(text, style))
    return lines
