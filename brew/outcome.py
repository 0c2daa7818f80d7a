"""The result of an attempt at one range, as a task reports it to the driver."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Status(enum.StrEnum):
    """The result of an attempt."""

    COMMITTED = "committed"
    ALREADY_DONE = "already-done"
    AHEAD = "ahead"
    OFFSET_GAP = "offset-gap"
    FENCED = "fenced"
    FAILED = "failed"
    TRANSFORM_FAILED = "transform-failed"
    CRASHED = "crashed"


GOOD = {Status.COMMITTED, Status.ALREADY_DONE, Status.AHEAD}
"""The committed offset is now past the range, whoever committed it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    A range and its result; ``position`` is the committed offset that *locate* found (-1: none).

    ``enriched``, ``rejected`` and ``dropped`` count input records by their result; ``written`` counts records of the
    output topics, where one input may have several.
    ``steps``: seconds of each step that was begun. ``began_at``: seconds since the epoch. ``reasons``: reason for
    rejection -> number of records; ``examples``: reason -> its first offset. ``read_bytes``: of Spark's Arrow batches.
    ``newest_ms``: the timestamp of the last record of a committed range, if it has one.
    ``malformed_profiles``: in the profile table that the task used; None if there is none.
    ``traces``: `traceparent` headers of its records, if requested (`brew.attempt`).
    """

    partition: int
    start: int
    until: int
    status: Status
    position: int = -1
    enriched: int = 0
    rejected: int = 0
    seconds: float = 0.0
    detail: str = ""
    steps: Mapping[str, float] = field(default_factory=dict)
    began_at: float = 0.0
    reasons: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, int] = field(default_factory=dict)
    read_bytes: int = 0
    newest_ms: int | None = None
    traces: list[str] = field(default_factory=list)
    malformed_profiles: int | None = None
    dropped: int = 0
    written: int = 0

    @property
    def records(self) -> int:
        """Input records."""
        return self.enriched + self.rejected + self.dropped
