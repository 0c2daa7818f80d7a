"""Where to read on, decided from the database's row and what Kafka says; pure."""

from __future__ import annotations

from dataclasses import dataclass

from downstream.consume.handler import Seat
from protocol.errors import Refused

ROLLBACK = "ledger-rollback"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of `kafka_offsets`."""

    partition: int
    next_offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class Start:
    """The offset to read from, always the database's; ``alarm`` says what was odd, None if nothing."""

    offset: int
    alarm: str | None = None


def start(row: Row, seat: Seat) -> Start:
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
