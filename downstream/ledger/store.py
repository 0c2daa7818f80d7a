"""The ledger's tables, the statements of one transaction, and where to read on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brew.errors import Refused
from downstream.consume.handler import AssignedPartition, PartitionBatch, RetryLater
from downstream.ledger.entry import Entry
from downstream.postgres import Connection

ROLLBACK = "ledger-rollback"


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A row of `kafka_offsets`."""

    partition: int
    next_offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class Start:
    """The offset to read from, always the database's; ``alarm`` says what was odd, None if nothing."""

    offset: int
    alarm: str | None = None


def start(row: OffsetRow, seat: AssignedPartition) -> Start:
    """
    The database's offset, whatever Kafka's committed one is.

    Kafka's is stored after the database's commit: behind it, a crash came between; ahead of it, the database was set
    back (a restored dump), and what lies between is missing in it. Taking the larger of the two would lose that.

    Raises:
        Refused: the database's position is not a position of this log.
    """
    where = f"{seat.topic}[{seat.partition}]"
    if row.topic_id != seat.topic_id:
        raise Refused(
            f"topic-recreated: the ledger's position in {where} belongs to the topic with id {row.topic_id}, and the "
            f"topic there now is {seat.topic_id}; if its orders are new ones, delete the row of kafka_offsets"
        )
    if row.next_offset < seat.first:
        raise Refused(
            f"input-lost: the ledger stands at {row.next_offset} of {where}, and retention has taken what lies before "
            f"{seat.first}; if these orders are to be left out, set next_offset to {seat.first}"
        )
    if row.next_offset > seat.last_stable:
        raise Refused(
            f"offset-ahead: the ledger stands at {row.next_offset} of {where}, whose readers see up to "
            f"{seat.last_stable}; is this another cluster, or was its log cut? Restore the one that fits"
        )
    if seat.committed is not None and seat.committed > row.next_offset:
        return Start(
            row.next_offset,
            f"{ROLLBACK}: Kafka's offset of {where} is {seat.committed} and the database stands at {row.next_offset}: "
            "it was set back; reading again from there",
        )
    return Start(row.next_offset)


# No unique index on entries: that each is there once is the position's work, and the check's to confirm.
TABLES = """
CREATE TABLE IF NOT EXISTS kafka_offsets (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    topic_id text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, partition)
);
CREATE TABLE IF NOT EXISTS ledger_entries (
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    source text,
    order_id text,
    customer_id text,
    tier text,
    cents numeric,
    discount numeric,
    problem text
);
CREATE TABLE IF NOT EXISTS ledger_balances (
    customer_id text NOT NULL,
    tier text NOT NULL,
    orders bigint NOT NULL,
    cents numeric NOT NULL,
    discount_cents numeric NOT NULL,
    PRIMARY KEY (customer_id, tier)
);
"""

# Two ledgers that begin at once would each find no other's rows.
_ONE_BY_ONE = "SELECT pg_advisory_xact_lock('kafka_offsets'::regclass::bigint)"
_FOREIGN = "SELECT consumer_group, topic FROM kafka_offsets WHERE (consumer_group, topic) <> (%s, %s) LIMIT 1"
_MAKE = """
INSERT INTO kafka_offsets (consumer_group, topic, partition, next_offset, topic_id)
SELECT %s, %s, * FROM unnest(%s::integer[], %s::bigint[], %s::text[]) ON CONFLICT DO NOTHING
"""
# Always in the order of partitions, and balances in that of their keys: two members can't wait for each other.
_LOCK = """
SELECT partition, next_offset, topic_id FROM kafka_offsets
WHERE consumer_group = %s AND topic = %s AND partition = ANY(%s::integer[]) ORDER BY partition FOR UPDATE
"""
_BOOK = """
WITH booked AS (
    INSERT INTO ledger_entries
    SELECT * FROM unnest(%s::integer[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[],
                         %s::numeric[], %s::numeric[], %s::text[])
    RETURNING customer_id, tier, cents, discount, problem
)
INSERT INTO ledger_balances AS known (customer_id, tier, orders, cents, discount_cents)
SELECT customer_id, tier, count(*), sum(cents), sum(cents * discount) FROM booked
WHERE problem IS NULL GROUP BY customer_id, tier ORDER BY customer_id, tier
ON CONFLICT (customer_id, tier) DO UPDATE SET
    orders = known.orders + excluded.orders,
    cents = known.cents + excluded.cents,
    discount_cents = known.discount_cents + excluded.discount_cents
"""
_ADVANCE = """
UPDATE kafka_offsets AS known SET next_offset = given.until, updated_at = now()
FROM unnest(%s::integer[], %s::bigint[], %s::bigint[]) AS given (partition, expected, until)
WHERE consumer_group = %s AND topic = %s AND known.partition = given.partition AND next_offset = given.expected
"""


class Ledger:
    """The statements on one group's positions in one topic; the caller begins and commits."""

    def __init__(self, group: str, topic: str) -> None:
        self._names = (group, topic)

    def make(self, connection: Connection, seats: Sequence[AssignedPartition]) -> None:
        """
        Make the rows that are missing, at the log's first offset.

        Raises:
            Refused: the tables are another group's, or another topic's; its entries can't be told from ours.
        """
        connection.execute(_ONE_BY_ONE)
        foreign = connection.execute(_FOREIGN, self._names).fetchone()
        if foreign is not None:
            raise Refused(
                f"these tables are the ledger of group {foreign[0]!r} on topic {foreign[1]!r}, not of "
                f"{self._names[0]!r} on {self._names[1]!r}; give this one tables of its own with --schema"
            )
        columns = ([s.partition for s in seats], [s.first for s in seats], [s.topic_id for s in seats])
        connection.execute(_MAKE, [*self._names, *columns])

    def lock(self, connection: Connection, partitions: Sequence[int]) -> dict[int, OffsetRow]:
        """Take the rows; until the transaction ends nobody else moves these positions."""
        found = connection.execute(_LOCK, [*self._names, list(partitions)])
        return {row[0]: OffsetRow(*row) for row in found}

    def require(self, rows: Mapping[int, OffsetRow], slices: Sequence[PartitionBatch]) -> None:
        """
        Go on if the database still stands where these slices begin.

        Raises:
            Later: somebody else has moved a position; read from there.
        """
        for one in slices:
            row = rows.get(one.partition)
            if row is None or row.next_offset != one.start:
                stands = "nowhere" if row is None else str(row.next_offset)
                raise RetryLater(
                    f"partition {one.partition} stands at {stands} and not at {one.start}: another was here", 0.1
                )

    def book(self, connection: Connection, entries: Sequence[Entry]) -> None:
        """Insert the entries and move the balances, in one statement."""
        if entries:
            connection.execute(_BOOK, [list(column) for column in zip(*entries, strict=True)])

    def advance(self, connection: Connection, slices: Sequence[PartitionBatch]) -> None:
        """
        Move the positions, each from exactly where its slice began.

        Raises:
            Later: one of them was not there; nothing of this transaction may stay.
        """
        columns = ([s.partition for s in slices], [s.start for s in slices], [s.until for s in slices])
        moved = connection.execute(_ADVANCE, [*columns, *self._names]).rowcount
        if moved != len(slices):
            raise RetryLater(f"{len(slices) - moved} of {len(slices)} positions were moved by another", 0.1)
