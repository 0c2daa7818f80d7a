"""What the committed offsets of this program say, and when to refuse them; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from protocol.errors import Refused
from protocol.position import Committed, LogOffsets

_FORM = re.compile(r"topic-id=(\S+) began=(\d+)")


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to read of one partition, and the first one that was ever counted."""

    offset: int
    began: int

    def metadata(self, topic_id: str) -> str:
        """The text beside the committed offset."""
        return f"topic-id={topic_id} began={self.began}"


def position(place: str, topic_id: str, found: Committed | None, log: LogOffsets) -> Position:
    """
    Where to go on; the log's first offset where nothing was counted yet.

    Raises:
        Refused: somebody else moved the offset, the topic is another one, or retention took what was not counted.
    """
    if found is None:
        return Position(log.first, log.first)
    match = _FORM.fullmatch(found.metadata)
    if match is None:
        raise Refused(
            f"position-moved: the offset {found.offset} of {place} was not committed by this program "
            f"(its metadata is {found.metadata!r}); orders would be counted twice or left out. "
            "Count afresh with another --group"
        )
    if match[1] != topic_id:
        raise Refused(
            f"topic-recreated: {place} has the id {topic_id}, and what was counted lay in the topic with the id "
            f"{match[1]}; count afresh with another --group"
        )
    if found.offset < log.first:
        raise Refused(
            f"range-lost: {place} begins at {log.first}, and counting stands at {found.offset}; what lay between is "
            "gone. Count afresh with another --group, and give the topic a longer retention"
        )
    return Position(found.offset, int(match[2]))
