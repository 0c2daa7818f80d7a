"""The cost of claims: folding 1,000,000 messages, a new member with such a log, messages per second, a take-over."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click
from environment import save
from rich.console import Console
from rich.table import Table

from brew import names
from brew.claims.heartbeater import Heartbeater
from brew.claims.log import Entry, Item
from brew.claims.member import INTERVAL_S, Membership, read_to_end
from brew.claims.messages import NOTHING, SNAPSHOT_KEY, ClaimingPartition, Heartbeat, Message, encode
from brew.claims.state import SNAPSHOT_RECORDS, ClaimsView, snapshot_of
from brew.claims.state import Table as ClaimsTable
from brew.cli import REACH_S, option, run
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka.claims_log import ClaimsLog
from brew.kafka.clients import reach

_MEMBERS, _PARTITIONS, _BATCH, _PATIENCE_S = 8, 64, 5_000, 300.0


def traffic(count: int) -> Iterator[Message]:
    """Yield what eight members of 64 partitions write: claims, then heartbeats with positions and member heartbeats."""
    for partition in range(_PARTITIONS):
        yield ClaimingPartition(f"m{partition % _MEMBERS}", "g", "worked", partition, 3000)
    for number in range(count - _PARTITIONS):
        turn, place = divmod(number, _PARTITIONS + _MEMBERS)
        if place < _PARTITIONS:
            yield Heartbeat(f"m{place % _MEMBERS}", "g", "worked", place, turn * 100, place, 3000, resume=False)
        else:
            yield Heartbeat(f"m{place - _PARTITIONS}", "g", "worked", None, NOTHING, NOTHING, 3000, resume=False)


def fold(count: int) -> dict[str, float]:
    """Decode and apply messages without a broker; return messages per second."""
    numbered = enumerate(traffic(count))
    entries = [Entry(0, offset, 1_000_000 + offset * 20, *encode(message)) for offset, message in numbered]
    view = ClaimsView([ClaimsTable()])
    began = time.process_time()
    for entry in entries:
        view.apply(entry)
    took = time.process_time() - began
    return {"fold messages": count, "fold CPU s": took, "fold messages/CPU s": count / took}


def newcomer(connection: Connection, count: int) -> dict[str, float]:
    """Write the traffic with its snapshots; then measure how long a new member needs, with and without them."""
    topic = f"brew.bench-claims-{uuid.uuid4().hex[:8]}"
    log = ClaimsLog(connection, topic)
    table, until = ClaimsTable(), 0
    batch: list[Item] = []
    for message in traffic(count):
        batch.append(Item(0, *encode(message)))
        table.apply(table.next, time.time_ns() // 1_000_000, message)
        if table.next - until >= SNAPSHOT_RECORDS:
            batch.append(Item(0, *encode(snapshot_of(table, "m0"))))
            table.next, until = table.next + 1, table.next
        if len(batch) >= _BATCH:
            log.append(batch, Deadline(_PATIENCE_S))
            batch = []
    if batch:
        log.append(batch, Deadline(_PATIENCE_S))
    log.close()

    reader = ClaimsLog(connection, topic, create=False)
    began = time.perf_counter()
    view = read_to_end(reader, Deadline(_PATIENCE_S))
    with_snapshot = time.perf_counter() - began
    began = time.perf_counter()
    whole = ClaimsView([ClaimsTable()])
    for entry in reader.history(reader.bounds(Deadline(_PATIENCE_S)), Deadline(_PATIENCE_S)):
        if entry.key != SNAPSHOT_KEY:
            whole.apply(entry)
    without = time.perf_counter() - began
    reader.close()
    tables = view.tables[0], whole.tables[0]
    read, folded = ({p: (o.client_id, o.token) for p, o in table.owners.items()} for table in tables)
    if read != folded:
        raise click.ClickException("from a snapshot a new member got other owners than from the whole log")
    return {"newcomer s": with_snapshot, "whole log s": without}


def take_overs(connection: Connection, interval_s: float, times: int) -> dict[str, float]:
    """Silence the owner repeatedly; measure time until the next one holds all 64 partitions, and the message rate."""
    topic, silent = f"brew.bench-claims-{uuid.uuid4().hex[:8]}", [False] * (times + 1)
    partitions, took = tuple(range(_PARTITIONS)), []

    def keeper(number: int) -> Heartbeater:
        membership = Membership(f"m{number}", "g", "worked", partitions, interval_s)
        return Heartbeater(lambda: ClaimsLog(connection, topic), membership, healthy=lambda: not silent[number])

    with ExitStack() as stack:
        owner = stack.enter_context(keeper(0))
        _until_all(owner)
        for number in range(times):
            silent[number] = True
            began = time.monotonic()
            owner = stack.enter_context(keeper(number + 1))
            _until_all(owner)
            took.append(time.monotonic() - began)
        log = ClaimsLog(connection, topic, create=False)
        start, began = log.bounds(Deadline(_PATIENCE_S))[0][1], time.monotonic()
        while time.monotonic() - began < 2 * interval_s:
            owner.wait(interval_s)
        rate = (log.bounds(Deadline(_PATIENCE_S))[0][1] - start) / (time.monotonic() - began)
        log.close()
        silent[times] = True
    return {
        "interval s": interval_s,
        "take-over s, shortest": min(took),
        "take-over s, longest": max(took),
        "messages/s, 64 partitions": rate,
    }


def _until_all(keeper: Heartbeater) -> None:
    deadline = Deadline(_PATIENCE_S)
    while len(keeper.held()) < _PARTITIONS:
        deadline.check("all partitions")
        keeper.wait(0.05)


@click.command()
@option(
    "--bootstrap", default=names.BOOTSTRAP, envvar="BOOTSTRAP", metavar="HOST:PORT", help="Kafka's bootstrap servers."
)
@option("--count", type=click.IntRange(100_000), default=1_000_000, help="Number of messages in the claims log.")
@option("--interval-s", default=INTERVAL_S, help="Seconds between two heartbeats.")
@option("--times", type=click.IntRange(1), default=5, help="Number of take-overs.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write the results to, as JSON.")
def bench(bootstrap: str, count: int, interval_s: float, times: int, out: Path | None) -> None:
    """Measure claims on running brokers; the topics that it creates there are not deleted."""
    connection = Connection(bootstrap)
    reach(connection, Deadline(REACH_S))
    measured = fold(count) | newcomer(connection, count) | take_overs(connection, interval_s, times)
    table = Table("what", "measured")
    for name, value in measured.items():
        table.add_row(name, f"{value:,.3f}" if value % 1 else f"{value:,.0f}")
    Console().print(table)
    if out is not None:
        save(out, {name: round(value, 4) for name, value in measured.items()})


if __name__ == "__main__":
    run(bench, "benchmarks/claims.py")
