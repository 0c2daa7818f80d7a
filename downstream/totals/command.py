"""`python -m downstream totals`: its options, a run, and a comparison."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click

from brew import names
from brew.cli import bootstrap_option, connection, group_option, option, printable
from brew.deadline import Deadline
from brew.errors import Refused
from brew.fault_injection import KillAt
from brew.kafka.clients import AdminClient, admin, reach
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.offsets import committed_by, log_offsets
from brew.kafka.topics import Topic
from brew.names import READ_COMMITTED, CrashPoint, ExitCode, checked_topic, quantity
from brew.observability.recorder import Subject
from brew.observability.settings import probe_options
from brew.observability.status import Topics as ObservedTopics
from brew.offsets import LogOffsets
from downstream.observed import follow_option, observed, stop_event, to_stderr
from downstream.totals.run import Run
from downstream.totals.stages import add
from downstream.totals.state_store import (
    CHECKPOINT_KEY,
    MemoryStore,
    RocksStore,
    Store,
    is_total,
    parse_checkpoint,
    parse_counted,
    put,
    wait_until_stable,
)
from downstream.totals.topics import Position, Topics, TotalsSettings, found, position, recreated, require_within
from downstream.totals.total import Total, deltas

_REACH_S = 12.0
_ASK_S = 30.0
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """A total that differs from what it should be; None where it is missing."""

    where: str
    key: str
    wanted: str | None
    found: str | None

    def __str__(self) -> str:
        return f"{self.where}: {self.key} is {self.found or 'missing'}, expected {self.wanted or 'none'}"


@dataclass
class Comparison:
    """Result of the comparison, with the first differences of each kind; amounts as `orders sum discount unpriced`."""

    orders: int = 0
    totals: int = 0
    pending_deltas: int = 0
    differences: int = 0
    first: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return self.differences == 0

    def compare(self, where: str, wanted: Mapping[bytes, bytes], actual: Mapping[bytes, bytes]) -> None:
        wrong = [key for key in wanted.keys() | actual.keys() if wanted.get(key) != actual.get(key)]
        self.differences += len(wrong)
        for key in sorted(wrong)[:_SHOWN]:
            name = key.decode("utf-8", "backslashreplace")
            self.first.append(Difference(where, name, _total_text(wanted.get(key)), _total_text(actual.get(key))))

    def document(self) -> dict[str, object]:
        return {"equal": self.equal, **asdict(self)}

    def text(self) -> str:
        verdict = "equal" if self.equal else quantity(self.differences, "difference")
        head = f"{verdict}: {quantity(self.totals, 'total')} of {quantity(self.orders, 'order')}"
        waiting = [f"{self.pending_deltas} deltas are not added yet"] if self.pending_deltas else []
        return "\n".join([head, *waiting, *(printable(str(difference)) for difference in self.first), *self.notes])


class _StageOffsets(NamedTuple):
    """Committed positions and end offsets of one stage, by partition."""

    positions: Mapping[int, Position]
    logs: Mapping[int, LogOffsets]


def recompute(settings: TotalsSettings, home: Path | None) -> Comparison:
    """
    Recompute the totals and compare; ``home`` holds a RocksDB state per partition, or is None to skip them. Orders
    below the committed offset are summed afresh; the changelog and the deltas not added yet must give the same, and
    states and results equal the changelog. Raises `Refused` if it can't be compared, or a program counts.
    """
    reach(settings.connection, Deadline(_REACH_S))
    client = admin(settings.connection)
    topics = found(client, settings, Deadline(_ASK_S))
    if topics is None:
        raise Refused(f"nothing was counted in group {settings.group!r} yet: run `downstream totals` first")
    wait_until_stable(client, settings.deltas, range(topics.deltas.partitions), Deadline(_ASK_S))
    reading = _Reading(settings, client, topics)
    orders, sums = reading.offsets(topics.input), reading.offsets(topics.deltas)
    comparison = Comparison()
    by_partition, standings = reading.changelog()
    changelog = {key: value for values in by_partition.values() for key, value in values.items()}
    comparison.totals = len(changelog)
    counted = {key: Total.read(f"changelog-damaged: {settings.changelog}", text) for key, text in changelog.items()}
    documents = {key: total.document(key) for key, total in counted.items()}
    _compare_with_orders(reading, orders, sums, counted, comparison)
    comparison.compare("results", documents, reading.results())
    for partition, until in standings.items():
        stands = sums.positions[partition].offset
        if stands != until:
            comparison.differences += 1
            place = f"{settings.changelog}[{partition}]"
            comparison.first.append(Difference("changelog", place, str(stands), f"{until} (deltas below it)"))
    if home is not None:
        _compare_states(topics.changelog.topic_id, home, by_partition, standings, comparison)
    after = [reading.offsets(topic).positions for topic in (topics.input, topics.deltas)]
    if [orders.positions, sums.positions] != after:
        raise Refused(f"group {settings.group!r} is counting during the comparison; stop that program, then compare")
    return comparison


@dataclass(frozen=True, slots=True)
class _Reading:
    settings: TotalsSettings
    client: AdminClient
    topics: Topics

    def offsets(self, topic: Topic) -> _StageOffsets:
        partitions = range(topic.partitions)
        whose = (self.settings.connection, self.settings.group, topic.name)
        known = committed_by(*whose, partitions, READ_COMMITTED, Deadline(_ASK_S))
        logs = log_offsets(self.client, topic.name, partitions, Deadline(_ASK_S))
        positions = {p: position(f"{topic.name}[{p}]", topic.topic_id, known[p], logs[p]) for p in partitions}
        for p in partitions:
            require_within(f"{topic.name}[{p}]", positions[p].offset, logs[p])
        return _StageOffsets(positions, logs)

    def records(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[LogRecord]:
        for batch in scan(self.settings.connection, topic, ranges, READ_COMMITTED, group=self.settings.group):
            yield from batch

    def changelog(self) -> tuple[dict[int, dict[bytes, bytes]], dict[int, int]]:
        """Return, per partition, the latest value of every key, and up to where the deltas are included."""
        ends = _ends(self.client, self.topics.changelog)
        values: dict[int, dict[bytes, bytes]] = {p: {} for p in ends}
        standings: dict[int, int] = {}
        for record in self.records(self.settings.changelog, ends):
            key, value = record.key(), record.value()
            if key == CHECKPOINT_KEY and value is not None:
                standings[record.partition()] = parse_checkpoint(value)[0]
            elif key is not None and is_total(key):
                put(values[record.partition()], {key: value})
            elif value is not None and (counted := parse_counted(value)[1]) != self.topics.input.topic_id:
                raise Refused(recreated(self.settings.input, self.topics.input.topic_id, counted))
        return values, standings

    def results(self) -> dict[bytes, bytes]:
        values: dict[bytes, bytes] = {}
        for record in self.records(self.settings.output, _ends(self.client, self.topics.output)):
            put(values, {record.key() or b"": record.value()})
        return values


def _ends(client: AdminClient, topic: Topic) -> dict[int, tuple[int, int]]:
    logs = wait_until_stable(client, topic.name, range(topic.partitions), Deadline(_ASK_S))
    return {p: (log.first, log.last_stable) for p, log in logs.items()}


def _compare_with_orders(
    reading: _Reading, orders: _StageOffsets, sums: _StageOffsets, counted: dict[bytes, Total], comparison: Comparison
) -> None:
    settings, ranges = reading.settings, {}
    for p, counted_to in orders.positions.items():
        if counted_to.began < orders.logs[p].first:
            raise Refused(
                f"range-lost: {settings.input}[{p}] begins at {orders.logs[p].first} and was counted from "
                f"{counted_to.began} on; what retention deleted can't be computed again"
            )
        ranges[p] = counted_to.began, counted_to.offset
    wanted: dict[bytes, Total] = {}
    for record in reading.records(settings.input, ranges):
        comparison.orders += 1
        add(wanted, deltas([record.value()]))
    waiting = {p: (position.offset, sums.logs[p].last_stable) for p, position in sums.positions.items()}
    for record in reading.records(settings.deltas, waiting):
        comparison.pending_deltas += 1
        where = f"foreign-delta: {settings.deltas}[{record.partition()}] offset {record.offset()}"
        add(counted, {record.key() or b"": Total.read(where, record.value() or b"")})
    texts = ({key: total.encode() for key, total in totals.items()} for totals in (wanted, counted))
    comparison.compare("recomputation", *texts)


def _compare_states(
    topic_id: str,
    home: Path,
    changelog: Mapping[int, Mapping[bytes, bytes]],
    standings: Mapping[int, int],
    comparison: Comparison,
) -> None:
    """Compare the states that were closed cleanly at the changelog's position; report why others are skipped."""
    for p, wanted in changelog.items():
        place = home / str(p)
        if not RocksStore.trusted(place, topic_id):
            comparison.notes.append(f"state {place}: not closed cleanly; it will be restored")
            continue
        with closing(RocksStore(place, topic_id)) as store:
            until = -1 if store.checkpoint is None else store.checkpoint.until
            if until == standings.get(p, -1):
                comparison.compare(f"state {place}", wanted, dict(store.items()))
            else:
                comparison.notes.append(f"state {place}: at offset {until}; it will be restored from there")


def _total_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")


GROUP = "brew-totals"
ROCKSDB, MEMORY = "rocksdb", "memory"
ORDERS, DELTAS = "orders", "deltas"
HOME = Path(".brew-state")


@click.command("totals")
@bootstrap_option
@option("--topic", default=names.OUTPUT_TOPIC, metavar="TOPIC", help="Topic of enriched orders.")
@option("--output", default=names.TOTALS_TOPIC, metavar="TOPIC", help="Topic for the results, compacted.")
@group_option(GROUP, "Consumer group; also names the topics GROUP.deltas and GROUP.changelog.")
@follow_option
@option(
    "--store",
    type=click.Choice([ROCKSDB, MEMORY]),
    default=ROCKSDB,
    help="State store of the totals; both kinds are restored from the changelog.",
)
@option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=HOME,
    help="Folder of RocksDB's files; may be lost at any time.",
)
@option("--max-offsets", type=click.IntRange(1), default=20_000, help="Maximum offsets per transaction.")
@option(
    "--transaction-timeout",
    type=click.FloatRange(1, 900),
    default=30.0,
    help="Seconds after which the brokers abort an open transaction.",
)
@click.option(
    "--recompute",
    "compare",
    is_flag=True,
    help="Compare the totals with the orders, count nothing; exit 1 if they differ.",
)
@click.option(
    "--crash-point",
    type=click.Choice([str(point) for point in CrashPoint]),
    help="Point at which the process crashes on purpose, by SIGKILL.",
)
@option(
    "--crash-in",
    type=click.Choice([ORDERS, DELTAS]),
    default=DELTAS,
    help="Transactions that crash: those that read orders, or those that read deltas and write totals.",
)
@option("--crash-prob", default=1.0, help="Probability of a crash per transaction, 0 to 1.")
@probe_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def totals_command(
    bootstrap: str, topic: str, output: str, group: str, *, follow: bool, as_json: bool, **given: Any
) -> int:
    """
    Keep running totals per customer and per tier: orders, their sum, the discount given; each order counted once.

    Changelog, results and offsets are committed in one Kafka transaction. With --recompute the totals are computed
    again from the orders and compared with changelog, state and results; no totals program may run meanwhile.

    Examples:
      python -m downstream totals
      python -m downstream totals --follow --state-dir /var/lib/brew
      python -m downstream totals --recompute --json
    """
    checked_topic(topic, "--topic")
    checked_topic(output, "--output")
    settings = TotalsSettings(
        connection(bootstrap),
        group,
        topic,
        output,
        timeout_s=given["transaction_timeout"],
        max_offsets=given["max_offsets"],
    )
    home = None if given["store"] == MEMORY else given["state_dir"] / group
    checked_topic(settings.changelog, "--group")
    if given["compare"]:
        compared = recompute(settings, home)
        click.echo(json.dumps(compared.document(), indent=2) if as_json else compared.text())
        return ExitCode.DONE if compared.equal else ExitCode.VIOLATION

    def store_of(partition: int, changelog: Topic) -> Store:
        return MemoryStore() if home is None else RocksStore(home / str(partition), changelog.topic_id)

    stop, crash = stop_event(follow=follow), None
    if given["crash_point"] is not None:
        crashing = topic if given["crash_in"] == ORDERS else settings.deltas
        crash = KillAt(CrashPoint(given["crash_point"]), crashing, given["crash_prob"])
    work_s = settings.timeout_s + settings.restore_s  # an attempt at a partition may have to restore its state first
    subject = Subject("downstream totals", group, ObservedTopics(topic, output), settings.connection.bootstrap)
    times = {"longest_work_s": work_s, "patience_s": Run.patience_s}
    began = time.monotonic()
    with observed(subject, settings.connection, given, follow=follow, **times) as recorder:
        result = Run(settings, store_of, stop, to_stderr, crash, recorder).run(follow=follow)
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        click.echo(json.dumps({**asdict(result), "restore_s": round(result.restore_s, 3), "seconds": seconds}))
    else:
        done = f"{quantity(result.orders, 'order')} in {quantity(result.transactions, 'transaction')}"
        restored = f"{quantity(result.restored, 'record')} restored"
        click.echo(f"{done}, {result.fenced + result.failed} tried again, {restored}, {seconds:.1f} s")
    return ExitCode.DONE
