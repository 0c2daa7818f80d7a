"""The group's part of Kafka's own offset log: which commits took effect, in which order; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from proof.checking.positions import Positions
from proof.checking.transactions import COMMIT, Attempt, Endings, RawLog
from proof.findings import Findings, Name
from protocol.batches import OFFSETS_TOPIC, OffsetBatch


class OffsetLog:
    """Takes batches in log order; without any, it says nothing. Gaps are compaction: the chain begins anew behind."""

    def __init__(self, positions: Mapping[int, Positions], found: Findings, endings: Endings, *, strict: bool) -> None:
        self._positions, self._found, self._endings, self._strict = positions, found, endings, strict
        self._raw: RawLog | None = None
        self._next = 0
        self.readable = False
        self.notes: list[str] = []
        self._compacted = False

    def begin(self, partition: int) -> None:
        """The group's offsets lie in this partition, and can be read."""
        self._raw = RawLog(OFFSETS_TOPIC, partition, self._found, self._endings, strict=self._strict)
        self._raw.of_records = False
        # Other groups' transactions lie in the same partition; how they behave is not ours to judge or to count.
        self._raw.mine = lambda attempt: bool(attempt.commits)
        self._raw.on_end = self._ended
        self.readable = True
        for position in self._positions.values():
            position.readable = True

    def take(self, batches: Iterable[OffsetBatch]) -> None:
        """Batches of the partition, those of other groups without their commits."""
        assert self._raw is not None, "begin() names the partition first"
        for batch in batches:
            raw = batch.raw
            if raw.base_offset > self._next or raw.records <= raw.last_offset - raw.base_offset:
                self._broken()
            self._next = raw.last_offset + 1
            attempt = self._raw.take(raw)
            for commit in batch.commits:
                if commit.partition not in self._positions:
                    continue
                if attempt is not None and commit.until is not None:
                    attempt.commits.append((commit.partition, commit.until, raw.base_offset))
                else:
                    self._positions[commit.partition].set_by_hand(commit.until)

    def _broken(self) -> None:
        if not self._compacted:
            self._compacted = True
            self.notes.append(
                "older offset commits of the group are compacted away: regressions and gaps among them can't be seen; "
                "verify earlier, or keep them longer (log.cleaner.min.compaction.lag.ms)"
            )
        for position in self._positions.values():
            position.broken()

    def _ended(self, attempt: Attempt) -> None:
        if attempt.status == COMMIT:
            for partition, until, offset in attempt.commits:
                self._positions[partition].moved(until, attempt.key, offset, strict=self._strict)

    def open(self) -> Iterable[Attempt]:
        """Offset commits in transactions that have not ended."""
        return () if self._raw is None else [one for one in self._raw.open() if one.commits]

    def compare(self, committed: Mapping[int, int | None]) -> None:
        """The offset that the coordinator names is the one that the log shows last."""
        if self._raw is None:
            return
        for partition, position in self._positions.items():
            told, shown = committed.get(partition), position.last
            if told is None or shown is None or shown < 0 or told == shown:
                continue
            name = Name.OFFSET_AHEAD if told > shown else Name.OFFSET_BEHIND
            evidence = f"the coordinator names it, the last commit in {OFFSETS_TOPIC} is {shown}"
            self._found.say(name, (position.topic, partition, told), evidence)
