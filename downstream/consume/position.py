"""Where a pattern whose position is the group's offset in Kafka reads on, and the text beside that offset; pure."""

from __future__ import annotations

import re

from downstream.consume.handler import Seat
from protocol.errors import Refused
from protocol.position import Committed

_FORM = re.compile(r"topic-id=(\S+)")


def metadata(topic_id: str) -> str:
    """The text beside an offset that the loop commits."""
    return f"topic-id={topic_id}"


def topic_id_in(found: Committed) -> str | None:
    """The topic that the offset was committed for; None where others have set it."""
    match = _FORM.match(found.metadata)
    return None if match is None else match[1]


def start(seat: Seat) -> int:
    """
    The group's offset; the log's first one where there is none.

    Raises:
        Refused: the offset is one of another topic, or retention took what was still to be read.
    """
    if seat.committed is None:
        return seat.first
    where = f"{seat.topic}[{seat.partition}]"
    if seat.committed_topic_id not in {None, seat.topic_id}:
        raise Refused(
            f"topic-recreated: the group's offset {seat.committed} of {where} belongs to the topic with id "
            f"{seat.committed_topic_id}, and the topic there now is {seat.topic_id}; "
            f"read it with another --group, or set the group's offset to {seat.first}"
        )
    if seat.committed < seat.first:
        raise Refused(
            f"input-lost: {where} was left at {seat.committed}, and retention has taken what lies before "
            f"{seat.first}; if these are to be left out, set the group's offset to {seat.first}"
        )
    return seat.committed
