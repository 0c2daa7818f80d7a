"""What became of one physical record: plain, committed, aborted or open, and who sees it by which rule; pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from protocol.batches import RawBatch
from protocol.position import LogOffsets


class Fate(enum.StrEnum):
    """How the transaction of a record ended."""

    PLAIN = "plain"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Written:
    """Who wrote a record, and the marker behind it, if there is one."""

    fate: Fate
    producer_id: int = -1
    producer_epoch: int = -1
    marker_offset: int | None = None
    marker_epoch: int | None = None


class Finder:
    """Takes raw batches in log order, from the one that holds ``offset`` on, until the record's fate is known."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._own: RawBatch | None = None
        self._end: RawBatch | None = None

    def add(self, batch: RawBatch) -> bool:
        """True once no later batch matters."""
        if self._own is None and batch.base_offset <= self._offset <= batch.last_offset:
            self._own = batch
            return not batch.transactional
        if self._own is not None and batch.control and batch.producer_id == self._own.producer_id:
            self._end = batch
            return True
        return self._own is None and batch.base_offset > self._offset

    def written(self) -> Written:
        own, end = self._own, self._end
        if own is None:
            return Written(Fate.UNKNOWN)
        if not own.transactional:
            return Written(Fate.PLAIN, own.producer_id, own.producer_epoch)
        if end is None:
            return Written(Fate.OPEN, own.producer_id, own.producer_epoch)
        fate = Fate.COMMITTED if end.marker == "commit" else Fate.ABORTED
        return Written(fate, own.producer_id, own.producer_epoch, end.base_offset, end.producer_epoch)


@dataclass(frozen=True, slots=True)
class View:
    """Whether a `read_committed` reader sees a record, and the rule."""

    visible: bool
    rule: str


def view(offset: int, written: Written, log: LogOffsets) -> View:
    """What a `read_committed` reader is given."""
    if written.fate is Fate.ABORTED:
        ended = f"aborted by the marker at {written.marker_offset}"
        if written.marker_epoch is not None and written.marker_epoch > written.producer_epoch:
            ended += f" (epoch {written.marker_epoch}, newer than the writer's: a fence or its time-out ended it)"
        else:
            ended += " (its own writer ended it)"
        return View(visible=False, rule=ended)
    if written.fate is Fate.OPEN:
        return View(visible=False, rule="its transaction is still open: no marker yet")
    if written.fate is Fate.UNKNOWN:
        return View(visible=False, rule="no batch holds it: retention or compaction took it")
    if offset >= log.last_stable:
        behind = f"not below the last stable offset {log.last_stable}"
        return View(visible=False, rule=f"{behind}: an older transaction is open, and readers wait for it")
    if written.fate is Fate.PLAIN:
        return View(visible=True, rule="no transaction, and below the last stable offset")
    return View(visible=True, rule=f"committed by the marker at {written.marker_offset}")
