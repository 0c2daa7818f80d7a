"""What the output adds up to, read from the log and from the stores: the campaign's own sums, beside the programs'."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg

from proof.campaign.cells.stores_programs import Consumer
from proof.campaign.stage import Stage
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka import offsets
from protocol.kafka.clients import READ_COMMITTED
from protocol.kafka.scan import scan

_ASK_S = 30.0
_CONNECT_S = 5


@dataclass(frozen=True, slots=True)
class Sums:
    """So many orders, with so many cents and cups in them."""

    orders: int
    cents: int
    cups: int


def sold(stage: Stage) -> Sums:
    """The output as a `read_committed` reader sees it."""
    orders = cents = cups = 0
    for _key, value in _records(stage, stage.names.output):
        found = json.loads(value or b"")
        orders, cents, cups = orders + 1, cents + found["total_cents"], cups + found["quantity"]
    stage.counts["orders"] = orders
    stage.counts["cents"] = cents
    return Sums(orders, cents, cups)


def totals(stage: Stage, topic: str) -> tuple[int, Decimal]:
    """Orders and cents of all tiers together, from the latest record of each in the topic of results."""
    latest = {key: json.loads(value) for key, value in _records(stage, topic) if value is not None}
    tiers = [total for key, total in latest.items() if (key or b"").startswith(b"tier/")]
    return sum(int(one["orders"]) for one in tiers), sum((Decimal(one["sum_cents"]) for one in tiers), Decimal(0))


def _records(stage: Stage, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
    logs = offsets.log_offsets(stage.cluster.admin, topic, range(stage.cell.partitions), Deadline(_ASK_S))
    ends = {p: (log.first, log.last_stable) for p, log in logs.items()}
    for batch in scan(stage.cluster.connection, topic, ends, READ_COMMITTED):
        yield from ((record.key(), record.value()) for record in batch)


def asked(url: str, schema: str, query: str) -> tuple[Any, ...]:
    """
    One row of the database.

    Raises:
        Refused: it can't be asked.
    """
    try:
        with psycopg.connect(url, options=f"-c search_path={schema}", connect_timeout=_CONNECT_S) as session:
            row = session.execute(query.encode()).fetchone()
    except psycopg.Error as error:
        raise Refused(f"the database can't be asked: {' '.join(str(error).split())}") from error
    assert row is not None
    return row


def positions(url: str, schema: str) -> dict[int, int]:
    """The ledger's position in each partition; empty while the database can't tell."""
    try:
        found = asked(url, schema, "SELECT json_object_agg(partition, next_offset) FROM kafka_offsets")[0]
    except Refused:
        return {}
    return {int(partition): offset for partition, offset in (found or {}).items()}


def compare(stage: Stage, name: str, what: str, found: object, wanted: object) -> None:
    """Keep a finding where a sum is not what it has to be."""
    if found != wanted:
        stage.findings.append({"name": name, "evidence": f"{what}: {found} instead of {wanted}"})


def compare_ledger(ledger: Consumer, url: str, schema: str) -> None:
    """Rows and balances in the database against the output, to the cent."""
    stage, wanted = ledger.stage, sold(ledger.stage)
    rows, cents = asked(url, schema, "SELECT count(*), coalesce(sum(cents), 0) FROM ledger_entries")
    name = "ledger-missing" if rows < wanted.orders else "ledger-duplicate"
    compare(stage, name, "rows of the ledger", rows, wanted.orders)
    compare(stage, "ledger-drift", "cents in the ledger's rows", cents, wanted.cents)
    booked = asked(url, schema, "SELECT coalesce(sum(orders), 0), coalesce(sum(cents), 0) FROM ledger_balances")
    compare(stage, "ledger-drift", "orders and cents in the balances", booked, (wanted.orders, wanted.cents))
    stage.notes.append(f"{rows} rows of {wanted.orders} outputs, {booked[1]} of {wanted.cents} cents")


def compare_receiver(receiver: Consumer, url: str, schema: str) -> None:
    """Effects and points in the database against the output."""
    stage, wanted = receiver.stage, sold(receiver.stage)
    effects, messages = asked(url, schema, "SELECT count(*), count(DISTINCT message_id) FROM receiver_effects")
    compare(stage, "receiver-lost", "messages with an effect", messages, wanted.orders)
    compare(stage, "receiver-duplicate", "effects", effects, messages)
    points = asked(url, schema, "SELECT coalesce(sum(points), 0) FROM receiver_points")[0]
    compare(stage, "receiver-duplicate" if points > wanted.cups else "receiver-lost", "points", points, wanted.cups)
    stage.notes.append(f"{effects} effects of {wanted.orders} outputs, {points} of {wanted.cups} points")
