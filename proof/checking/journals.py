"""Check readers' and writers' journals against the logs, and a campaign's demands; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any

from brew.journal import Entry, Phase, Run, Step
from brew.names import READ_COMMITTED
from proof.checking.input_partition import Layout
from proof.findings import Findings, Name


class Acknowledged:
    """Input offsets whose commit a writer's journal records as done, as merged ranges per partition."""

    def __init__(self, entries: Iterable[Entry], topic: str, group: str | None = None) -> None:
        found: dict[int, list[tuple[int, int]]] = {}
        self.any_writer = False
        for entry in entries:
            if entry.step is Step.READ:
                continue
            self.any_writer = True
            said = entry.fields
            if entry.step is not Step.COMMIT or entry.phase is not Phase.DONE or said.get("topic", topic) != topic:
                continue
            if group is None or said.get("group", group) == group:
                found.setdefault(said["partition"], []).append((said["start"], said["until"]))
        self.ranges = {partition: _merged(some) for partition, some in found.items()}

    def until(self, partition: int) -> int:
        """Return the end of the last acknowledged range, or -1 if there is none."""
        some = self.ranges.get(partition)
        return some[-1][1] if some else -1

    def holding(self, partition: int, offset: int) -> tuple[int, int] | None:
        """Return the acknowledged range that contains the offset, or None."""
        some = self.ranges.get(partition, [])
        at = bisect_right(some, offset, key=itemgetter(0)) - 1
        return some[at] if at >= 0 and offset < some[at][1] else None

    def covers(self, partition: int, offset: int, count: int) -> bool:
        """Return whether any of these offsets was acknowledged; always True without a writer's journal."""
        if not self.any_writer:
            return True
        some = self.ranges.get(partition, [])
        return any(start < offset + count and offset < until for start, until in some)


def _merged(some: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, until in sorted(some):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(until, merged[-1][1])
        else:
            merged.append((start, until))
    return merged


TopicPartition = tuple[str, int]


class _Reader:
    """One process that read topics: a fold over its journal entries; ``_final``: it read its topics to the end."""

    def __init__(self, who: str, layouts: Mapping[TopicPartition, Layout], found: Findings) -> None:
        self._who, self._layouts, self._found = who, layouts, found
        self._next: dict[TopicPartition, int] = {}
        self._first: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._topics: set[str] = set()
        self._committed, self._final = True, False

    def take(self, fields: Mapping[str, Any]) -> None:
        """Take one entry; entries about topics that are not checked are ignored."""
        self._final = self._final or bool(fields.get("final"))
        if "topic" not in fields:
            return
        self._topics.add(fields["topic"])
        self._ends |= {(fields["topic"], partition): end for partition, end in fields.get("ends", ())}
        self._committed = fields.get("isolation", READ_COMMITTED) == READ_COMMITTED
        topic_partition = fields["topic"], fields.get("partition", -1)
        layout = self._layouts.get(topic_partition)
        if layout is not None:
            for run in fields.get("runs", ()):
                self._read(topic_partition, layout, Run(*run))

    def _read(self, topic_partition: TopicPartition, layout: Layout, run: Run) -> None:
        expected = self._next.get(topic_partition)
        if expected is None:
            self._first[topic_partition] = run.offset
        elif run.offset < expected:
            self._add(Name.NONMONOTONIC_POLL, topic_partition, run.offset, f"had read up to {expected - 1} before")
        elif (hole := next(layout.between(expected, run.offset), None)) is not None:
            evidence = f"went from {expected - 1} to {run.offset} and skipped {hole.length} visible records"
            self._add(Name.POLL_SKIP, topic_partition, hole.offset, evidence)
        self._next[topic_partition] = max(expected or run.offset, run.offset + run.length)
        self._compare(topic_partition, layout, run)

    def _compare(self, topic_partition: TopicPartition, layout: Layout, run: Run) -> None:
        """Compare each record's source with the log; a range that the log does not show is reported once."""
        offset, until = max(run.offset, layout.first), run.offset + run.length
        for seen in layout.between(offset, until):
            if seen.offset > offset:
                self._invisible(topic_partition, layout, offset)
            offset = seen.offset + seen.length
            read = run.source_partition, run.source_offset + seen.offset - run.offset
            if run.source_offset >= 0 and read != (seen.source_partition, seen.source_offset):
                holds = f"{seen.source_partition}:{seen.source_offset}"
                evidence = f"read source {read[0]}:{read[1]}, but the log has {holds}"
                self._add(Name.INCONSISTENT, topic_partition, seen.offset, evidence)
        if offset < until:
            self._invisible(topic_partition, layout, offset)

    def _invisible(self, topic_partition: TopicPartition, layout: Layout, offset: int) -> None:
        if layout.aborted(offset):
            if self._committed:
                evidence = "read it with read_committed, but its transaction did not commit"
                self._add(Name.ABORTED_READ, topic_partition, offset, evidence)
        elif not layout.compacted:
            self._add(Name.INCONSISTENT, topic_partition, offset, "read a record here, but the log has none")

    def ended(self, acknowledged: Acknowledged) -> None:
        """Check that a reader that reached the end, as it was then, saw all acknowledged records."""
        if not (self._final and self._committed):
            return
        for topic_partition, layout in self._layouts.items():
            if topic_partition[0] in self._topics:
                last = self._ends.get(topic_partition, layout.end)
                begin, end = self._first.get(topic_partition, last), self._next.get(topic_partition, last)
                self._unseen(topic_partition, layout.between(layout.first, begin), acknowledged)
                self._unseen(topic_partition, layout.between(end, last), acknowledged)

    def _unseen(self, topic_partition: TopicPartition, missed: Iterable[Run], acknowledged: Acknowledged) -> None:
        for run in missed:
            if acknowledged.covers(run.source_partition, run.source_offset, run.length):
                evidence = f"read to the end but missed {run.length} committed records from here on"
                self._add(Name.UNSEEN, topic_partition, run.offset, evidence)
                return

    def _add(self, name: Name, topic_partition: TopicPartition, offset: int, evidence: str) -> None:
        self._found.add(name, (*topic_partition, offset), f"{self._who} {evidence}")


def check_readers(
    entries: Iterable[Entry], layouts: Mapping[TopicPartition, Layout], found: Findings, acknowledged: Acknowledged
) -> None:
    """Compare readers' journals with what they could see; ``layouts`` are the partitions to check."""
    readers: list[_Reader] = []
    last: dict[tuple[str, int], _Reader] = {}
    for entry in entries:
        if entry.step is not Step.READ:
            continue
        process = entry.who, entry.pid
        if process not in last or entry.phase is Phase.INTENT:
            last[process] = _Reader(f"{entry.who} {entry.pid}", layouts, found)
            readers.append(last[process])
        last[process].take(entry.fields)
    for reader in readers:
        reader.ended(acknowledged)


_RUN = "run"


def check_fired(needed: Mapping[str, int], fired: Mapping[str, int], found: Findings) -> None:
    """Report demanded counts that were not reached; such a run proves nothing."""
    for what, least in sorted(needed.items()):
        count = fired.get(what, 0)
        if count < least:
            evidence = f"{what}: {count} seen, {least} needed; run longer, or check why the fault had no effect"
            found.add(Name.SILENT_FAULT, (_RUN, -1, count), evidence)


def check_stalls(first_commit_ms: Mapping[int, int | None], bound_s: float | None, found: Findings) -> None:
    """Report each heal after which the first commit came later than ``bound_s``, or never."""
    if bound_s is None:
        return
    for healed, first in sorted(first_commit_ms.items()):
        if first is None or first - healed > bound_s * 1000:
            took = "never" if first is None else f"after {(first - healed) / 1000:.1f} s"
            found.add(Name.STALL, (_RUN, -1, healed), f"first commit {took} after the heal; the bound is {bound_s:g} s")


def check_secrets(name: str, chunks: Iterable[bytes], canaries: Iterable[str], found: Findings) -> None:
    """Report each canary in a file, given in chunks; findings name the place, never the canary."""
    wanted = [canary.encode() for canary in canaries if canary]
    if not wanted:
        return
    longest = max(map(len, wanted))
    tail, base = b"", 0
    for chunk in chunks:
        text = tail + chunk
        for number, canary in enumerate(wanted):
            # A canary that lies wholly in the tail was reported with the previous chunk.
            at = text.find(canary, max(0, len(tail) - len(canary) + 1))
            while at >= 0:
                found.add(Name.SECRET, (name, -1, base + at), f"canary number {number + 1} is at byte {base + at}")
                at = text.find(canary, at + 1)
        keep = min(len(text), longest - 1)
        base += len(text) - keep
        tail = text[len(text) - keep :]
