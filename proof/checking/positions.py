"""
Check that offset commits are contiguous, and that each covers exactly its transaction's records; pure.

Every visible transaction moves the committed offset from the previous transaction's end over exactly the records that
it wrote: `[from, until)`. Commits arrive in the order in which they took effect, transactions' sources in any order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from brew.cluster import OFFSETS_TOPIC, OffsetBatch
from proof.checking.input_partition import InputPartition
from proof.checking.transactions import COMMIT, Attempt, Endings, Key, RawLog, lacks_records
from proof.findings import Findings, Name


class _Range(NamedTuple):
    """
    A committed range; ``start`` is None if the previous commit is unknown.

    ``key`` is None for what lies below an offset that was set by hand where commits before it are missing.
    """

    start: int | None
    until: int
    key: Key | None


class Positions:
    """The history of one input partition's committed offset."""

    def __init__(
        self, topic: str, partition: int, lane: InputPartition, found: Findings, both: Callable[[Key], bool]
    ) -> None:
        self.topic, self.partition = topic, partition
        self._lane, self._found, self._both = lane, found, both
        self._ranges: deque[_Range] = deque()
        self._attempts: list[Attempt] = []
        self._holder: int | None = None
        self._retired: set[int] = set()
        self.last: int | None = -1
        self.logged: int | None = -1
        """The last commit of the log, also if some before it are missing: None if it was a deletion, -1 without any."""
        self.by_hand = self.readable = False
        self._before_hand: int | None = -1
        self._commits_missing = False

    def moved(self, until: int, key: Key, *, strict: bool) -> None:
        """Record that a committed transaction moved the offset to ``until``."""
        before, self.last, self.by_hand, self._commits_missing = self.last, until, False, False
        self.logged = until
        location = self.topic, self.partition, until
        if strict and key[0] in self._retired:
            evidence = "this producer id moved the offset again, after another one had taken the partition over"
            self._found.add(Name.ZOMBIE, location, evidence, key)
        if self._holder is not None and self._holder != key[0]:
            self._retired.add(self._holder)
        self._holder = key[0]
        if before is not None and until < before:
            self._found.add(Name.OFFSET_REGRESSION, location, f"the committed offset was {before} before", key)
            self._attempts = [attempt for attempt in self._attempts if attempt.key != key]
        elif before is None or until > before:
            self._ranges.append(_Range(before, until, key))

    def set_by_hand(self, until: int | None) -> None:
        """Record that the offset was set outside a transaction, or deleted (None); the chain starts anew."""
        if not self.by_hand:
            self._before_hand = self.last
        if self._commits_missing and until is not None:
            self._ranges.append(_Range(None, until, None))
            self._commits_missing = False
        self.last = self.logged = until
        self.by_hand = True

    def moved_before_hand(self, until: int, key: Key, *, strict: bool) -> None:
        """Record a transaction that sent its offset before the offset was set by hand, and ended after that."""
        by_hand, self.last, missing = self.last, self._before_hand, self._commits_missing
        below = [self._ranges.pop()] if self._ranges and self._ranges[-1].key is None else []
        self.moved(until, key, strict=strict)
        self._ranges += below  # judged last, because it excuses what others wrote
        self._commits_missing = missing
        self._before_hand, self.last, self.logged, self.by_hand = until, by_hand, by_hand, True

    def broken(self) -> None:
        """Record that commits are missing from the log (compaction, retention): the next start is unknown."""
        self.last = self._before_hand = None
        self._commits_missing = True

    def wrote(self, attempt: Attempt) -> None:
        """Add a transaction with records from this partition; its sources may still grow."""
        self._attempts.append(attempt)

    def settle(self) -> None:
        """Check the ranges whose inputs all have an output."""
        low = self._lane.low
        while self._ranges and self._ranges[0].until <= low:
            self._judge(self._ranges.popleft())

    def _judge(self, span: _Range) -> None:
        """Check that only the range's own transaction has sources below its end, and that it is complete."""
        mine: set[tuple[str, int]] = set()
        kept = []
        for attempt in self._attempts:
            lowest, highest, _ = attempt.sources[self.partition]
            if lowest >= span.until:
                kept.append(attempt)
            elif span.start is None and attempt.key != span.key and highest < span.until:
                continue  # its own commit is no longer in the log
            elif attempt.key != span.key or highest >= span.until or lowest < (span.start or 0):
                self._torn(attempt)
            elif (attempt.topic, attempt.partition) in mine:
                self._torn(attempt)  # a transaction ends only once in a partition
            else:
                mine.add((attempt.topic, attempt.partition))
        self._attempts = kept

    def _torn(self, attempt: Attempt) -> None:
        lowest, highest, count = attempt.sources[self.partition]
        evidence = (
            f"{count} visible records with sources {lowest} to {highest} of {self.topic}[{self.partition}]: "
            "no offset commit of this transaction covers exactly them"
        )
        self._found.add(Name.TORN, attempt.location, evidence, attempt.key)

    def ended(self, lost: Iterable[int]) -> None:
        """Signal the end of all logs; ``lost`` are the inputs below the committed offset without output, in order."""
        missing = deque(lost)
        for span in self._ranges:
            gone = []
            while missing and missing[0] < span.until:
                if missing[0] >= (span.start or 0):
                    gone.append(missing[0])
                missing.popleft()
            if gone and span.key is not None:  # an operator may have skipped them
                self._incomplete(span, gone, span.key)
            self._judge(span)
        self._ranges.clear()
        if self.readable and self.last is not None:
            for attempt in self._attempts:
                self._torn(attempt)

    def _incomplete(self, span: _Range, gone: list[int], key: Key) -> None:
        """Report lost inputs of a committed range: below the transaction's first source, or above it."""
        wrote = [a.sources[self.partition][0] for a in self._attempts if a.key == key]
        location = self.topic, self.partition, gone[0]
        if wrote and gone[-1] < min(wrote):
            evidence = f"{span.start} was committed, but the transaction that moved it to {span.until} begins at "
            self._found.add(Name.OFFSET_GAP, location, evidence + str(min(wrote)), key)
        if not wrote or gone[-1] >= min(wrote) or self._both(key):
            evidence = f"its offset {span.until} is committed, but {len(gone)} of its records are not visible"
            self._found.add(Name.TORN, location, evidence, key)


class OffsetLog:
    """The group's offset commits, in log order; without batches, nothing is checked. The chain restarts after gaps."""

    def __init__(self, positions: Mapping[int, Positions], found: Findings, endings: Endings, *, strict: bool) -> None:
        self._positions, self._found, self._endings, self._strict = positions, found, endings, strict
        self._raw: RawLog | None = None
        self._next = self._first = 0
        self._set_by_hand_at: dict[int, int] = {}
        self.readable = False
        self.notes: list[str] = []
        self._compacted = False

    def begin(self, partition: int, first: int = 0) -> None:
        """Start: the group's offsets are in this partition, which can be read from ``first``, the log's start."""
        self._first = first
        self._raw = RawLog(OFFSETS_TOPIC, partition, self._found, self._endings, strict=self._strict)
        self._raw.of_records = False
        # The partition also holds other groups' transactions, which are neither checked nor counted.
        self._raw.mine = lambda attempt: bool(attempt.commits)
        self._raw.on_end = self._ended
        self.readable = True
        for position in self._positions.values():
            position.readable = True

    def take(self, batches: Iterable[OffsetBatch]) -> None:
        """Take batches of the partition; other groups' batches come without their commits."""
        assert self._raw is not None, "begin() names the partition first"
        for batch in batches:
            raw = batch.raw
            if lacks_records(raw, self._next):
                self._broken()
            self._next = raw.last_offset + 1
            attempt = self._raw.take(raw)
            for commit in batch.commits:
                if commit.partition not in self._positions:
                    continue
                if attempt is not None and commit.until is not None:
                    attempt.commits.append((commit.partition, commit.until, raw.base_offset))
                    continue
                self._positions[commit.partition].set_by_hand(commit.until)
                self._set_by_hand_at[commit.partition] = -1 if commit.until is None else raw.base_offset

    def _broken(self) -> None:
        if not self._compacted:
            self._compacted = True
            self.notes.append(
                "older offset commits of the group were compacted, so their regressions and gaps can't be detected; "
                "verify earlier, or raise the brokers' log.cleaner.min.compaction.lag.ms"
            )
        for position in self._positions.values():
            position.broken()

    def _ended(self, attempt: Attempt) -> None:
        if attempt.status == COMMIT:
            # Of several offsets in one transaction the coordinator keeps the last.
            last = {partition: (until, sent_at) for partition, until, sent_at in attempt.commits}
            for partition, (until, sent_at) in last.items():
                position = self._positions[partition]
                # Coordinators keep the offset whose record comes later in the log, whenever the transaction ends.
                overtaken = position.by_hand and sent_at < self._set_by_hand_at.get(partition, -1)
                moved = position.moved_before_hand if overtaken else position.moved
                moved(until, attempt.key, strict=self._strict)

    def open(self) -> Iterable[Attempt]:
        return () if self._raw is None else [attempt for attempt in self._raw.open() if attempt.commits]

    def compare(self, committed: Mapping[int, int | None]) -> None:
        """Check that the coordinator's offset is the log's last, which compaction keeps; a cut-off log may lack it."""
        if self._raw is None:
            return
        for partition, position in self._positions.items():
            stored, shown = committed.get(partition), position.logged
            if stored is None or stored == shown or (shown == -1 and self._first > 0):
                continue
            name = Name.OFFSET_BEHIND if shown is not None and stored < shown else Name.OFFSET_AHEAD
            last = f"the last commit in {OFFSETS_TOPIC} is {'a deletion' if shown is None else shown}"
            evidence = last if shown != -1 else f"{OFFSETS_TOPIC} has no commit of this partition"
            self._found.add(
                name, (position.topic, partition, stored), f"the coordinator returns this offset, but {evidence}"
            )
