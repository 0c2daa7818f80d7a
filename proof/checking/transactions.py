"""
Transactions from the raw batches of a log: producer, end marker, and violations of the rules on epochs; pure.

The coordinator ends a fenced or timed-out transaction with a marker of the next epoch (seen on Kafka 4.1.1), so a
marker ends everything its producer id has open, regardless of epoch. A coordinator may write a marker twice.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from brew.cluster import RawBatch
from proof.findings import Findings, Name

Key = tuple[int, int]
COMMIT, ABORT = "commit", "abort"


def lacks_records(batch: RawBatch, expected: int) -> bool:
    """Return whether compaction removed some of a batch, or of what was between ``expected``, an offset, and it."""
    return batch.base_offset > expected or batch.records <= batch.last_offset - batch.base_offset


@dataclass(slots=True, eq=False)
class Attempt:
    """
    What one producer epoch wrote to one partition up to one end marker.

    ``visible`` is its first offset that a `read_committed` reader returned. ``sources`` maps an input partition to
    [lowest, highest, count] of the sources seen. ``zombie``: the higher epoch that came first; ``reused``: its first
    offset, if the epoch had already ended a transaction. ``commits``: partition, offset, and place in the log.
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    first: int
    last: int = -1
    records: int = 0
    status: str | None = None
    visible: int = -1
    zombie: int | None = None
    reused: int | None = None
    spans: list[tuple[int, int]] = field(default_factory=list)
    sources: dict[int, list[int]] = field(default_factory=dict)
    commits: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return self.producer_id, self.epoch

    @property
    def location(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.first


class Endings:
    """
    How each (producer id, epoch) ended in all partitions; it must not both commit and abort.

    A fence is an abort with a newer epoch. Under `transaction.version` 2 (KIP-890), every end of a transaction has a
    newer one, so no abort counts of a producer whose commits have one.

    Not ``strict``: an epoch may have several transactions. Two of them without a common partition look like one with
    two ends, so only their records and offsets show a torn one (`Positions`).
    """

    def __init__(self, found: Findings, healed_ms: Iterable[int] = (), *, strict: bool = True) -> None:
        self._found, self._strict = found, strict
        self.first_commit_ms: dict[int, int | None] = dict.fromkeys(healed_ms)
        # (end, producer id) -> a bit set of the epochs that ended this way, at most 4 KiB.
        self._ended: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._torn: dict[Key, Attempt] = {}
        self._reused: set[Key] = set()
        self._bumping: set[int] = set()
        self._fences: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()

    def committed_at(self, when_ms: int) -> None:
        """Record a commit; the first one after each heal is kept."""
        for healed, first in self.first_commit_ms.items():
            if when_ms >= healed and (first is None or when_ms < first):
                self.first_commit_ms[healed] = when_ms

    def ended(self, attempt: Attempt, status: str, marker: RawBatch, *, counted: bool) -> None:
        """Record the end of a transaction; ``counted``: its log holds records, not offset commits."""
        new = not self._has(status, attempt.key)
        self._ended[status, attempt.producer_id] |= 1 << attempt.epoch
        outcome = "committed" if status == COMMIT else "aborted"
        if new and marker.producer_epoch > attempt.epoch:
            self._newer_epoch(attempt.producer_id, status)
        if new or attempt.reused is not None:
            self.counts[f"{outcome}_transactions"] += 1
        if counted:
            self.counts[f"{outcome}_records"] += attempt.records
        if attempt.reused is not None:
            self._reused.add(attempt.key)
        if self._strict and self.both(attempt.key):
            self._torn.setdefault(attempt.key, attempt)

    def _newer_epoch(self, producer_id: int, status: str) -> None:
        if status == COMMIT:
            self._bumping.add(producer_id)
            self.counts["fences"] -= self._fences.pop(producer_id, 0)
        elif producer_id not in self._bumping:
            self._fences[producer_id] += 1
            self.counts["fences"] += 1

    def _has(self, status: str, key: Key) -> bool:
        return bool(self._ended[status, key[0]] >> key[1] & 1)

    def both(self, key: Key) -> bool:
        """Return whether this producer epoch both committed and aborted."""
        return self._has(COMMIT, key) and self._has(ABORT, key)

    def report(self) -> None:
        """Report transactions with both ends as torn; reused epochs are left to `epoch-reuse`."""
        for key, attempt in self._torn.items():
            if key not in self._reused:
                evidence = f"it ended with {attempt.status} here, but differently in another partition"
                self._found.add(Name.TORN, attempt.location, evidence, key)


class RawLog:
    """One partition's batches in log order."""

    def __init__(self, topic: str, partition: int, found: Findings, endings: Endings, *, strict: bool) -> None:
        self.topic, self.partition = topic, partition
        self._found, self._endings, self._strict = found, endings, strict
        self._open: dict[int, list[Attempt]] = {}
        self._top: dict[int, int] = {}
        self._ended: dict[int, tuple[int, str]] = {}
        self.on_end: Callable[[Attempt], None] = lambda _attempt: None
        self.mine: Callable[[Attempt], bool] = lambda _attempt: True
        self.of_records = True

    def take(self, batch: RawBatch) -> Attempt | None:
        """Take the next batch; return its transaction, or None for markers and non-transactional batches."""
        if batch.control:
            if batch.marker is not None:
                self._end(batch, batch.marker)
            return None
        if not batch.transactional:
            return None
        attempt = self._attempt(batch)
        attempt.last = batch.last_offset
        attempt.records += batch.records
        return attempt

    def _attempt(self, batch: RawBatch) -> Attempt:
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        open_here = self._open.setdefault(producer_id, [])
        if open_here and open_here[-1].epoch == epoch:
            return open_here[-1]
        attempt = Attempt(self.topic, self.partition, producer_id, epoch, batch.base_offset)
        open_here.append(attempt)
        top = self._top.get(producer_id, epoch)
        if epoch < top:
            attempt.zombie = top
        self._top[producer_id] = max(epoch, top)
        before = self._ended.get(producer_id)
        if before is not None and before[0] == epoch:
            attempt.reused = batch.base_offset
        return attempt

    def _end(self, marker: RawBatch, status: str) -> None:
        producer_id, epoch = marker.producer_id, marker.producer_epoch
        attempts = [attempt for attempt in self._open.pop(producer_id, []) if self.mine(attempt)]
        for attempt in attempts:
            attempt.status = status
            self._judge(attempt)
            self._endings.ended(attempt, status, marker, counted=self.of_records)
            self.on_end(attempt)
        before = self._ended.get(producer_id)
        if attempts:
            self._ended[producer_id] = attempts[-1].epoch, status
        elif before is not None and before == (epoch, COMMIT if status == ABORT else ABORT):
            self._reuse(marker.base_offset, before[1], (producer_id, epoch))
        self._top[producer_id] = max(epoch, self._top.get(producer_id, epoch))
        if status == COMMIT and (attempts or self.of_records):
            self._endings.committed_at(marker.max_timestamp)

    def _judge(self, attempt: Attempt) -> None:
        if attempt.status == COMMIT and attempt.zombie is not None:
            evidence = f"visible, although the higher epoch {attempt.zombie} wrote or ended a transaction here before"
            self._found.add(Name.ZOMBIE, attempt.location, evidence, attempt.key)
        if attempt.status == ABORT and attempt.visible >= 0:
            self.aborted_read(attempt, attempt.visible)
        if attempt.reused is not None:
            self._reuse(attempt.reused, self._ended[attempt.producer_id][1], attempt.key)

    def _reuse(self, offset: int, before: str, key: Key) -> None:
        if self._strict:
            evidence = f"this epoch had ended with {before} before: a late request from then could affect this one"
            self._found.add(Name.EPOCH_REUSE, (self.topic, self.partition, offset), evidence, key)

    def aborted_read(self, attempt: Attempt, offset: int) -> None:
        evidence = "a read_committed reader returned it, but its transaction was aborted"
        self._found.add(Name.ABORTED_READ, (self.topic, self.partition, offset), evidence, attempt.key)

    def outside(self, offset: int) -> None:
        evidence = "written outside of any transaction, so nothing ties it to its offset"
        self._found.add(Name.TORN, (self.topic, self.partition, offset), evidence)

    def open(self) -> list[Attempt]:
        return [attempt for some in self._open.values() for attempt in some]
