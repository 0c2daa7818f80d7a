"""`lag`: the remaining records of each partition, and the transaction that blocks it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from brew.cli import as_called, bootstrap_option, flag, plain_option, printable, repeatable, typed_option
from brew.cluster import CoordinatorTransaction, OpenTransaction, RawBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused, UsageError
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin, consumer, is_cut_off
from brew.kafka.kafka_python import RawLogs
from brew.kafka.offsets import committed, log_offsets
from brew.kafka.raw_log import FirstVisible, first_visible
from brew.kafka.transactions_admin import TransactionsAdmin, open_transactions_admin
from brew.names import READ_UNCOMMITTED, ExitCode, SinkTransactionalId, TransactionalId
from brew.offsets import Committed, LogOffsets
from brew.sink.position import PositionMetadata
from operations import options
from operations.partition_state import PartitionSnapshot, Remaining, State, classify, remaining_records


class Observer:
    """
    Takes snapshots of a group's partitions repeatedly, with the same clients.

    ``exact``: the most offsets for which records are counted exactly. ``ages``: also read the first remaining record.
    ``unavailable``: what could not be read for the last snapshot, or None. ``leaderless``: its partitions without a
    leader, which a snapshot leaves out.
    """

    def __init__(self, connection: Connection, topic: str, group: str, exact: int, *, ages: bool = True) -> None:
        self._connection, self._topic, self._group, self._exact = connection, topic, group, exact
        self._ages = ages
        self._first: dict[int, tuple[int, FirstVisible]] = {}
        self._topic_id: str | None = None
        self.unavailable: str | None = None
        self.leaderless: list[int] = []
        self._open()

    def _open(self) -> None:
        self._admin = admin(self._connection)
        # Does not wait for pending offsets: an open transaction must not block the tool that shows it.
        self._reader = consumer(self._connection, self._group, READ_UNCOMMITTED)

    def snapshot(self, deadline: Deadline) -> list[PartitionSnapshot]:
        """Return all partitions that have a leader; positions are read first, so none exceeds an end read later."""
        try:
            return self._look(deadline)
        except (DeadlineExceeded, KafkaFailure):
            # Clients that have lost the brokers for good are replaced, so that the next snapshot of a long watch works.
            if any(is_cut_off(client, self._connection, self._topic) for client in (self._admin, self._reader)):
                self._reader.close()
                self._open()
            raise

    def _look(self, deadline: Deadline) -> list[PartitionSnapshot]:
        topic = topics.describe_one(self._admin, self._topic, deadline)
        if topic.topic_id != self._topic_id:  # a recreated topic has other records at the same positions
            self._topic_id, self._first = topic.topic_id, {}
        self.leaderless = cluster_admin.leaderless(self._admin, self._topic, deadline)
        led = [p for p in range(topic.partitions) if p not in self.leaderless]
        positions = committed(self._reader, self._topic, led, deadline)
        logs = log_offsets(self._admin, self._topic, led, deadline)
        snapshots = [_plain(p, logs[p], positions[p]) for p in led]
        self._note(None)
        if all(snapshot.log.end == snapshot.position for snapshot in snapshots):
            return snapshots
        with self._noted(), open_transactions_admin(self._connection, deadline) as transactions:
            return self._deep(snapshots, transactions, deadline)
        return snapshots

    def _note(self, error: BrewError | None) -> None:
        """Set ``unavailable`` to the partitions without a leader, and this error."""
        problems = [cluster_admin.no_leader(self._topic, self.leaderless), str(error or "")]
        self.unavailable = "; ".join(filter(None, problems)) or None

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Note an error, as of older brokers or missing rights, that must not hide what else is known."""
        try:
            yield
        except BrewError as error:
            self._note(error)

    def _deep(
        self, snapshots: list[PartitionSnapshot], transactions: TransactionsAdmin, deadline: Deadline
    ) -> list[PartitionSnapshot]:
        blocked = [snapshot.partition for snapshot in snapshots if snapshot.log.last_stable < snapshot.log.end]
        behind = [snapshot for snapshot in snapshots if snapshot.position < snapshot.log.last_stable]
        holders: Mapping[int, list[OpenTransaction]] = {}
        own: Mapping[int, CoordinatorTransaction] = {}
        with self._noted():
            holders = self._holders(transactions, blocked)
        with self._noted():
            own = self._own(transactions, behind)
        deep = []
        for snapshot in snapshots:
            remaining, p = self._remaining(snapshot, transactions.raw, deadline), snapshot.partition
            deep.append(replace(snapshot, remaining=remaining, holders=tuple(holders.get(p, ())), own=own.get(p)))
        return [self._aged(snapshot, transactions.raw, deadline) for snapshot in deep] if self._ages else deep

    def _aged(self, snapshot: PartitionSnapshot, raw: RawLogs, deadline: Deadline) -> PartitionSnapshot:
        """Add the timestamp of the oldest remaining record; it is read again only after the position has moved."""
        if not snapshot.remaining.records or snapshot.outside:
            return snapshot
        known_position, visible = self._first.get(snapshot.partition, (-1, FirstVisible()))
        if known_position != snapshot.position or visible.time_ms is None:
            visible, span = FirstVisible(), (snapshot.position, snapshot.log.last_stable)
            with self._noted():
                visible = first_visible(raw, self._topic, snapshot.partition, *span, deadline)
            self._first[snapshot.partition] = snapshot.position, visible
        remaining = Remaining(0) if visible.nothing else snapshot.remaining
        return replace(snapshot, remaining=remaining, oldest_ms=visible.time_ms)

    def _own(
        self, transactions: TransactionsAdmin, behind: list[PartitionSnapshot]
    ) -> Mapping[int, CoordinatorTransaction]:
        """Return each partition's own transaction: the pipeline's, or that of the sink that committed its offset."""
        sinks = {snapshot.partition: sink_of(snapshot.committed) for snapshot in behind}
        ids = {p: str(sink or TransactionalId(self._group, self._topic, p)) for p, sink in sinks.items()}
        known = {transaction.transactional_id: transaction for transaction in transactions.named(set(ids.values()))}
        found = {p: known[name] for p, name in ids.items() if name in known}
        # A sink's epoch grows with each batch, even while this partition waits; that is not a rival's fence.
        return {p: transaction for p, transaction in found.items() if sinks[p] is None or transaction.open}

    def _holders(self, transactions: TransactionsAdmin, blocked: list[int]) -> Mapping[int, list[OpenTransaction]]:
        held = transactions.held((self._topic, p) for p in blocked) if blocked else []
        owners = {owner.producer_id: owner for owner in transactions.of_producers(hold.producer_id for hold in held)}
        now_ms = int(time.time() * 1000)
        holders: defaultdict[int, list[OpenTransaction]] = defaultdict(list)
        for hold in held:
            owner = owners.get(hold.producer_id)
            name, age_s = (None, None) if owner is None else (owner.transactional_id, owner.age_s(now_ms))
            writer = (hold.producer_id, hold.producer_epoch, hold.first_offset)
            holders[hold.partition].append(OpenTransaction(hold.partition, *writer, name, age_s))
        return holders

    def _remaining(self, snapshot: PartitionSnapshot, raw: RawLogs, deadline: Deadline) -> Remaining:
        position, log = snapshot.position, snapshot.log
        if not 0 < log.last_stable - position <= self._exact or snapshot.outside:
            return snapshot.remaining
        until = min(log.end, log.last_stable + self._exact)  # markers may lie above the last stable offset

        def batches() -> Iterator[RawBatch]:
            with self._noted():  # of one partition, or too many partitions for the time: the others' states stay
                for batch, _ in raw.batches(self._topic, snapshot.partition, position, until, deadline):
                    yield batch

        return remaining_records(position, log.last_stable, batches())

    def close(self) -> None:
        self._reader.close()


def _plain(partition: int, log: LogOffsets, position: Committed | None) -> PartitionSnapshot:
    snapshot = PartitionSnapshot(partition, log, position, Remaining(0))
    # Nobody knows what follows a position outside the log; at most all that is in it is left.
    left = max(0, log.last_stable - (log.first if snapshot.outside else snapshot.position))
    return replace(snapshot, remaining=Remaining(left, exact=left == 0))


_ASK_S = 30.0
_STYLES = {State.IDLE: "dim", State.WORKING: "green", State.BLOCKED: "yellow"}  # others: bold red


@click.command("lag")
@bootstrap_option
@options.input_option
@options.group_option
@typed_option("--interval", click.FloatRange(0.1, 3600), 1.0, "Time between two snapshots.")
@flag("--watch", "Repeat until SIGTERM or Ctrl-C; with --json, one line per snapshot.")
@typed_option(
    "--exact",
    click.IntRange(0, 10_000_000),
    20_000,
    "Count the records exactly if the lag is at most N offsets; else show an upper bound.",
)
@repeatable(
    "--fail-on",
    "Exit with 1 if a partition is in this state; repeatable.  [default: none]",
    type=click.Choice([state.value for state in State]),
)
@plain_option(
    "--fail-older-than",
    "Exit with 1 if the oldest record to read is older than this.  [default: never]",
    "SECONDS",
    type=click.FloatRange(0),
)
@options.json_option
@options.advised()
def lag(
    bootstrap: str,
    topic: str,
    group: str,
    *,
    interval: float,
    exact: int,
    watch: bool,
    fail_on: tuple[str, ...],
    fail_older_than: float | None,
    as_json: bool,
) -> ExitCode:
    """
    Show for each partition the number of records to read, the age of the oldest one, and the state.

    Records are counted up to the last stable offset, without markers and aborted records. States: idle, working,
    blocked (by an open transaction), fenced (attempts begin, but none commits), stuck (no progress).

    Examples:
      python -m pipeline lag
      python -m pipeline lag --group brew-enricher --interval 5 --json
      python -m pipeline lag --watch
      python -m pipeline lag --fail-on stuck --fail-on fenced --interval 30
      python -m pipeline lag --fail-older-than 300

    Exit codes: 0 shown, 1 a --fail option applies, 3 refused or brokers unreachable, 64 wrong usage.
    """
    if watch and (fail_on or fail_older_than is not None):
        raise UsageError(
            "--watch runs until it is stopped, so it excludes --fail-on and --fail-older-than; leave it out, and set "
            "--interval to the time to observe"
        )
    with contextlib.closing(Observer(options.connected(bootstrap), topic, group, exact)) as observer:
        before = observer.snapshot(Deadline(_ASK_S))
        if (sink := sink_position(before)) is not None:
            if watch or fail_on or fail_older_than is not None:
                raise Refused(_of_sink(group, sink))
            found = {"sink": group, "topic": topic, **sink}
            options.print_json(found) if as_json else click.echo(_of_sink(group, sink))
            return ExitCode.DONE
        if watch:
            _watch(observer, before, interval, topic, group, as_json=as_json)
        document = _next(observer, before, interval)[1] | {"topic": topic, "group": group}
        options.print_json(document) if as_json else options.show(lag_table(document, topic, group))
        bad = bool(set(fail_on) & document["states"].keys()) or late(document, fail_older_than)
        if observer.leaderless and not bad and (fail_on or fail_older_than is not None):
            raise Refused(f"--fail-on and --fail-older-than need all partitions: {observer.unavailable}")
        return ExitCode.VIOLATION if bad else ExitCode.DONE


def sink_of(committed: Committed | None) -> SinkTransactionalId | None:
    """Return the sink that committed a source's offset, from its metadata (`brew.kafka.sink_transaction`)."""
    metadata = "" if committed is None else committed.metadata
    try:
        # librdkafka may append stray bytes to the metadata that it returns (its issue 4649).
        return SinkTransactionalId.parse(metadata[: metadata.rfind(":sink") + len(":sink")])
    except ValueError:
        return None


def sink_position(snapshots: Sequence[PartitionSnapshot]) -> dict[str, Any] | None:
    """Return the next batch, the query and whether `start_at` set it if the group is a sink's; None for others."""
    if not snapshots or (committed := snapshots[0].committed) is None:
        return None
    try:
        mark = PositionMetadata.parse(committed.metadata)
    except ValueError:
        return None
    query = None if mark is None else mark.query
    return {"next_batch": committed.offset, "query": query, "by_start_at": mark is None}


def _of_sink(group: str, sink: Mapping[str, Any]) -> str:
    query = "write() of a batch job" if sink["query"] is None else f"query {printable(sink['query'])}"
    origin = "set by start_at" if sink["by_start_at"] else f"of {query}"
    return (
        f"group {group} holds the position of a sink (the next batch is {sink['next_batch']}, {origin}) and has no "
        "lag; set --group to the sink's source_group, and --input to the topic that its query reads"
    )


def late(document: Mapping[str, Any], limit_s: float | None) -> bool:
    """Return whether the oldest readable record is older than ``limit_s``; `Refused` if that can't be known."""
    if limit_s is None or (_least_lag_s(document) or 0) > limit_s:
        return limit_s is not None
    if untold := [row for row in document["partitions"] if row["lag_s"] is None]:
        inside = untold[0]["committed"] is None or untold[0]["log_start"] <= untold[0]["committed"] <= untold[0]["end"]
        cause = "it has no timestamp, or many aborted records precede it" if inside else untold[0]["why"]
        raise Refused(
            f"--fail-older-than is {limit_s:g}, but the age of the oldest record in partition "
            f"{untold[0]['partition']} is unknown ({document['unavailable'] or cause}); "
            "see --json, or use --fail-on"
        )
    return False


def _least_lag_s(document: Mapping[str, Any]) -> float | None:
    """Return the age of the oldest record whose age is known; one of an unknown age may be older."""
    return max((row["lag_s"] for row in document["partitions"] if row["lag_s"] is not None), default=None)


def _watch(
    observer: Observer, before: list[PartitionSnapshot], interval_s: float, topic: str, group: str, *, as_json: bool
) -> NoReturn:
    drawn_over = not as_json and Console().is_terminal  # elsewhere, `Live` shows the last table only, at the end
    with Live(auto_refresh=False) if drawn_over else contextlib.nullcontext() as live:
        while True:
            try:
                before, document = _next(observer, before, interval_s)
            except BrewError as error:  # brokers come back, or a topic that is recreated, and the user wants to see it
                document = document_of([], [], 0, str(error)) | {"remaining": None, "exact": False}
            if as_json:
                options.print_json(document | {"topic": topic, "group": group}, lines=True)
            elif live is None:
                options.show(lag_table(document, topic, group))
            else:
                live.update(lag_table(document, topic, group), refresh=True)


def _next(
    observer: Observer, before: list[PartitionSnapshot], interval_s: float
) -> tuple[list[PartitionSnapshot], dict[str, Any]]:
    threading.Event().wait(interval_s)
    now = observer.snapshot(Deadline(_ASK_S))
    document = document_of(before, now, int(time.time() * 1000), observer.unavailable)
    # Nobody knows the number of records in a partition without a leader, nor their age.
    unknown = {"remaining": None, "exact": False, "lag_s": None} if observer.leaderless else {}
    return now, document | unknown


def document_of(
    before: list[PartitionSnapshot], now: list[PartitionSnapshot], now_ms: int, unavailable: str | None
) -> dict[str, Any]:
    """Return two snapshots as one document; a partition missing in the first is compared with itself."""
    known = {snapshot.partition: snapshot for snapshot in before}
    rows = [_row(snapshot, known.get(snapshot.partition, snapshot), now_ms) for snapshot in now]
    known_ages = all(row["lag_s"] is not None for row in rows)
    return {
        "remaining": sum(snapshot.remaining.records for snapshot in now),
        "exact": all(snapshot.remaining.exact for snapshot in now),
        "lag_s": _least_lag_s({"partitions": rows}) if known_ages else None,
        "states": Counter(row["state"] for row in rows),
        "unavailable": unavailable,
        "partitions": rows,
    }


def _row(snapshot: PartitionSnapshot, before: PartitionSnapshot, now_ms: int) -> dict[str, Any]:
    age_s, (state, why) = snapshot.lag_s(now_ms), classify(before, snapshot, now_ms)
    same = ("producer_id", "producer_epoch", "transactional_id", "first_offset")
    holders = [
        {name: getattr(holder, name) for name in same}
        | {"age_s": None if holder.age_s is None else round(holder.age_s, 1)}
        for holder in snapshot.holders
    ]
    return {
        "partition": snapshot.partition,
        "state": state.value,
        "why": as_called(why),
        "committed": None if snapshot.committed is None else snapshot.committed.offset,
        "log_start": snapshot.log.first,
        "last_stable": snapshot.log.last_stable,
        "end": snapshot.log.end,
        "remaining": snapshot.remaining.records,
        "exact": snapshot.remaining.exact,
        "lag_s": None if age_s is None else round(age_s, 1),
        "held_by": holders,
    }


def lag_table(document: Mapping[str, Any], topic: str, group: str) -> Group:
    def cells(row: Mapping[str, Any]) -> list[str | Text]:
        committed = "-" if row["committed"] is None else f"{row['committed']:,}"
        left = str(Remaining(row["remaining"], row["exact"])).replace("at most ", "≤ ")
        offsets = [str(row["partition"]), committed, f"{row['last_stable']:,}", f"{row['end']:,}"]
        state = Text(row["state"], _STYLES.get(State(row["state"]), "bold red"))
        return [*offsets, left, _age(row["lag_s"]), state, Text(row["why"])]

    numbers = ["p", "committed", "LSO", "end", "to read", "oldest"]
    look: dict[str, Any] = {"title": Text(f"group {group} in {topic}"), "title_justify": "left"}
    rows = map(cells, document["partitions"])
    drawn = options.table([*numbers, "state", "why"], rows, right=numbers, narrow=["state"], **look)
    lines = []
    if document["remaining"] is not None:
        total = str(Remaining(document["remaining"], document["exact"]))
        age_s, least = _least_lag_s(document), "at least " if document["lag_s"] is None else ""
        oldest = f", the oldest is {least}{_age(age_s)} old" if age_s else ""
        lines.append(Text(f"{total} {'record' if total == '1' else 'records'} to read{oldest}"))
    lines += [Text(f"unavailable: {document['unavailable']}", "cyan")] if document["unavailable"] else []
    return Group(drawn, *lines)


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f} s"
