"""Compare each input record with its output or dead letter; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import itemgetter

from brew.names import quantity
from brew.offsets import HEADER_OFFSET, SourcePosition
from brew.orders import Reason
from brew.records import (
    ERROR_EXCEPTION,
    ERROR_MESSAGE,
    ERROR_OFFSET,
    ERROR_OMITTED,
    ERROR_OMITTED_HEADERS,
    ERROR_PARTITION,
    ERROR_REASON,
    ERROR_TOPIC,
)
from proof.checking.input_partition import BrokerFacts, Early, Headers, InputPartition, Record, Row, Stream, at
from proof.findings import Findings, Name
from proof.oracle import Profiles, appended, key_hash, unjustified, wrong_enrichment

ExactMatch = Callable[[Row, Row], bool]

_LETTER_HEADERS = frozenset(
    {ERROR_REASON, ERROR_EXCEPTION, ERROR_MESSAGE, ERROR_TOPIC, ERROR_PARTITION, ERROR_OFFSET}
    | {ERROR_OMITTED, ERROR_OMITTED_HEADERS}
)


def exact_match(topic: str, partition: int) -> ExactMatch:
    """Return a function that is True for outputs certainly correct, byte by byte; others need a full comparison."""
    source: Headers = [*SourcePosition(topic, partition, 0).headers()[:-1]]

    def matches(came: Row, out: Row) -> bool:
        _, offset, key, value, headers, created = came
        _, _, out_key, out_value, out_headers, out_created = out
        return (
            out_key == key
            and out_created == created
            and value is not None
            and out_value is not None
            and out_headers == [*headers, *source, (HEADER_OFFSET, b"%d" % offset)]
            and appended(key, value, out_value)
        )

    return matches


def wrong_output(came: Record, out: Record, source: SourcePosition, profiles: Profiles | None = None) -> str | None:
    """Return what is wrong with an enriched record, or None. ``profiles``: the source of the tiers."""
    if out.key != came.key:
        return f"key is {out.key!r}, should be {came.key!r}"
    added = [] if profiles is None else out.headers[len(came.headers) :][:1]
    if out.headers != [*came.headers, *added, *source.headers()]:
        return f"headers are {[name for name, _ in out.headers]}, should be the input's and then three source headers"
    if (wrong := wrong_time(came.created, out)) is not None:
        return wrong
    if profiles is not None:
        return profiles.wrong(came.value, out.value, added[0])
    return wrong_enrichment(came.key, came.value, out.value)


def wrong_time(created: int | None, out: Record) -> str | None:
    """Return how a timestamp differs, or None; also None if the broker set either, or the client: 0 is now to it."""
    if out.created is None or not created or out.created == created:
        return None
    return f"timestamp is {out.created}, should be {created}"


def wrong_letter_frame(came: Record, out: Record, source: SourcePosition) -> str | None:
    """Return what is wrong with a rejected record, apart from its reason, or None."""
    added, behind = letter_headers(came, out), source.headers()
    if added is None:
        return "the first headers are not the input's"
    if added[-len(behind) :] != behind:
        return "the last headers are not the source headers"
    between = added[: -len(behind)]
    as_source = dict(zip((ERROR_TOPIC, ERROR_PARTITION, ERROR_OFFSET), [value for _, value in behind], strict=False))
    for name, value in between:
        if name not in _LETTER_HEADERS or [known for known, _ in between].count(name) > 1:
            return f"header {name} does not belong between the input's and the source headers, or is there twice"
        if as_source.get(name, value) != value:
            return f"header {name} is {value!r}, should be {as_source[name]!r}"
    if out.key != came.key:
        return f"key is {out.key!r}, should be {came.key!r}"
    omitted = dict(between).get(ERROR_OMITTED)
    if (out.value != came.value or omitted is not None) and not _omitted(came, out, omitted):
        return "the value differs from the input's"
    return wrong_time(came.created, out)


def wrong_dead_letter(came: Record, out: Record, source: SourcePosition) -> str | None:
    wrong = wrong_letter_frame(came, out, source)
    if wrong is not None:
        return wrong
    reason = letter_reason(came, out)
    if reason not in set(Reason):
        return f"reason {reason!r} is not one of {', '.join(Reason)}"
    return unjustified(Reason(reason), came.value)


def letter_reason(came: Record, out: Record) -> str:
    return (dict(letter_headers(came, out) or ()).get(ERROR_REASON) or b"").decode("utf-8", "replace")


def letter_headers(came: Record, out: Record) -> Headers | None:
    """Return a dead letter's headers after the record's own, which it may only refer to; None if these differ."""
    count = len(came.headers)
    if out.headers[:count] == came.headers:
        return out.headers[count:]
    referred = dict(out.headers).get(ERROR_OMITTED_HEADERS) == b"%d" % count and out.headers[0][0] == ERROR_REASON
    return out.headers if referred else None


def _omitted(came: Record, out: Record, size: bytes | None) -> bool:
    """Return whether the value was omitted as too large for the dead-letter topic; a header holds its length."""
    return out.value is None and came.value is not None and size == b"%d" % len(came.value)


_partition = itemgetter(0)


class Comparison:
    """
    Compares inputs and outputs, interleaved in any way; lost inputs are known once both have ended.

    ``unplaced``: outputs of partitions without a committed offset. ``elsewhere`` counts outputs that are where their
    key was if a topic had fewer partitions then, ``replaced`` those whose input compaction may have removed,
    ``oversized`` dead letters that only the limits of the run justify.
    """

    several_outputs = False

    def __init__(self, facts: BrokerFacts, found: Findings, lanes: dict[int, InputPartition]) -> None:
        self._facts, self._found, self._lanes = facts, found, lanes
        # Outputs that name the profile they were enriched with need the full comparison.
        fast = facts.profiles is None
        self._exact = {p: exact_match(facts.input, p) if fast else lambda _came, _out: False for p in lanes}
        self._downstream_open = True
        self.inputs = self.backlog = self.unverifiable = self.elsewhere = self.replaced = self.oversized = 0
        self.unplaced: defaultdict[int, Findings] = defaultdict(Findings)
        self.lost: dict[int, list[int]] = {p: [] for p in lanes}

    @property
    def notes(self) -> list[str]:
        limits = "by the run's limits of length and depth, which can't be verified"
        return [f"{quantity(self.oversized, 'dead letter')} {limits}"] if self.oversized else []

    def take_inputs(self, records: Iterable[Row]) -> None:
        """Take visible records of the input, in offset order per partition."""
        for partition, rows in groupby(records, _partition):
            self._take_inputs(partition, rows)

    def _take_inputs(self, partition: int, rows: Iterable[Row]) -> None:
        lane, position = self._lanes[partition], self._facts.position(partition)
        queue, early = lane.queue, lane.early
        read, count = lane.read, 0
        for row in rows:
            offset = row[1]
            if offset != read:
                lane.skip_to(offset)
            read = lane.read = offset + 1
            if offset >= position:
                self.backlog += 1
                continue
            count += 1
            if early and (offset, 0) in early:
                stream, out, _ = early.pop((offset, 0))
                if stream.topic != self._facts.output or not self._exact[partition](row, out):
                    self._compare(row, stream.topic, out)
            elif self._downstream_open:
                queue.append(row)
            else:
                self._missing(row)
        self.inputs += count
        if early:
            self._overdue(lane, partition)

    def take_rows(self, stream: Stream, rows: Iterable[Row]) -> int:
        """
        Take visible records of one downstream partition; return their number. Exact matches with the next input are
        compared here, all others are found by their source headers (`_match`).
        """
        partition = stream.partition
        quick = stream.topic == self._facts.output and partition in self._lanes
        queue = self._lanes[partition].queue if quick else None
        exactly = self._exact[partition] if quick else None
        layout, last = stream.layout, stream.last
        before = last.get(partition, -1)
        upto = stream.upto
        lowest, highest, run, count = -1, -1, 0, 0
        for row in rows:
            count += 1
            offset = row[1]
            if offset > upto:
                if run:
                    stream.note(partition, lowest, highest, run)
                    run = 0
                stream.move_to(offset)
                upto = stream.upto
            if queue and exactly is not None and queue[0][1] > before and exactly(queue[0], row):
                highest = before = queue.popleft()[1]
                if not run:
                    lowest = highest
                run += 1
                if layout is not None:
                    layout.add(offset, partition, highest)
                continue
            last[partition] = before
            self._slowly(stream, row)
            before = last[partition]
        if run:
            stream.note(partition, lowest, highest, run)
        last[partition] = before
        return count

    def _slowly(self, stream: Stream, row: Row) -> None:
        record = Record(*row)
        source = SourcePosition.of(record.headers)
        if stream.layout is not None:
            ours = source is not None and source.topic == self._facts.input
            location = (source.partition, source.offset) if source is not None and ours else (-1, -1)
            stream.layout.add(record.offset, *location)
        if source is None:
            self._add(Name.PHANTOM, stream, record, "no readable source headers")
            return
        log = self._facts.logs.get(source.partition)
        if source.topic != self._facts.input or log is None:
            self._add(Name.PHANTOM, stream, record, f"its source is {at(source)}, not in {self._facts.input}")
        elif source.offset < log.first:
            self.unverifiable += 1
            if self._lanes[source.partition].below_start.add(source.offset, source.index):
                self._duplicate(stream, record, source)
        elif source.offset >= log.last_stable:
            evidence = f"its source {at(source)} is not visible (LSO {log.last_stable})"
            self._add(Name.PHANTOM, stream, record, evidence)
        else:
            self._match(stream, record, source)

    def _match(self, stream: Stream, record: Record, source: SourcePosition) -> None:
        """Find the input of one downstream record, whose source is in the readable part of the input."""
        lane, place = self._lanes[source.partition], (source.offset, source.index if self.several_outputs else 0)
        if source.offset >= self._facts.position(source.partition):
            if place in lane.behind:
                self._duplicate(stream, record, source)
                return
            lane.behind.add(place)
            self._behind(stream, record, source)
            stream.note(source.partition, source.offset, source.offset, 1)
        elif source.offset < lane.read:
            self._judge(stream, record, source)
        elif place in lane.early:
            self._duplicate(stream, record, source)
        else:
            self._first_time(stream, record, source)
            lane.early[place] = Early(stream, record, stream.attempt)

    def _judge(self, stream: Stream, record: Record, source: SourcePosition, *, early: bool = False) -> None:
        """Compare an output with its input, which has been read if it is visible; ``early``: its order was checked."""
        lane = self._lanes[source.partition]
        if (came := lane.take(source.offset)) is not None:
            if not early:
                self._first_time(stream, record, source)
            self._compare(came, stream.topic, record)
        elif lane.visible(source.offset):
            self._duplicate(stream, record, source)
        else:
            self._phantom(stream, record, source)

    def _behind(self, stream: Stream, record: Record, source: SourcePosition) -> None:
        """Report an output above the committed offset; if there is none, it may turn out to be deleted."""
        committed = self._facts.committed.get(source.partition)
        found = self._found if committed is not None else self.unplaced[source.partition]
        evidence = f"its source {at(source)} was output, but the committed offset is {committed}"
        location = stream.topic, record.partition, record.offset
        found.add(Name.OFFSET_BEHIND, location, evidence, stream.key)

    def _duplicate(self, stream: Stream, record: Record, source: SourcePosition) -> None:
        self._add(Name.DUPLICATE, stream, record, f"its source {at(source)} came out before")

    def _first_time(self, stream: Stream, record: Record, source: SourcePosition) -> None:
        stream.note(source.partition, source.offset, source.offset, 1)
        before = stream.last.get(source.partition, source.offset)
        if source.offset < before:
            self._add(Name.NONMONOTONIC, stream, record, f"its source {at(source)} was output after offset {before}")
        else:
            stream.last[source.partition] = source.offset
        if stream.topic != self._facts.output:
            return
        place = self._place(record, source, self._facts.output_partitions)
        if record.partition != place:
            evidence = f"its source {at(source)} belongs in output partition {place}, to keep the order of its key"
            self._add(Name.NONMONOTONIC, stream, record, evidence)

    def _place(self, out: Record, source: SourcePosition, partitions: int, *, kept: bool = True) -> int:
        """Return the output's partition, or its own if that may be right; ``kept``: its key is that of its input."""
        if not kept or partitions != len(self._lanes):
            return self._place_of(out, partitions, source.partition if kept else None)
        if out.partition == source.partition:
            return out.partition
        # Before the input was expanded to the output's count, the key selected the partition; without one, nothing did.
        if not out.key or key_hash(out.key) % partitions == out.partition:
            self.elsewhere += 1
            return out.partition
        return source.partition

    def _place_of(self, out: Record, partitions: int, before: int | None) -> int:
        """
        Return the partition of the record's key among so many, or its own where that may be right.

        ``before``: its partition if the topics had equal partition counts before one of them was expanded.
        """
        if not out.key or not partitions or out.partition == before:
            return out.partition
        if (place := (hashed := key_hash(out.key)) % partitions) == out.partition:
            return place
        if any(hashed % fewer == out.partition for fewer in range(out.partition + 1, partitions)):
            self.elsewhere += 1
            return out.partition
        return place

    def _compare(self, came: Row, topic: str, record: Record) -> None:
        before = Record(*came)
        source = SourcePosition(self._facts.input, before.partition, before.offset)
        if topic == self._facts.output:
            wrong = wrong_output(before, record, source, self._facts.profiles)
        else:
            wrong = wrong_dead_letter(before, record, source)
            self.oversized += wrong is None and letter_reason(before, record) in {Reason.TOO_LARGE, Reason.TOO_DEEP}
        if wrong is not None:
            location = topic, record.partition, record.offset
            self._found.add(Name.CORRUPT, location, f"source {at(source)}: {wrong}")

    def _add(self, name: Name, stream: Stream, record: Record, evidence: str) -> None:
        self._found.add(name, (stream.topic, record.partition, record.offset), evidence, stream.key)

    def _missing(self, row: Row) -> None:
        partition, offset = row[0], row[1]
        self.lost[partition].append(offset)
        evidence = f"neither on {self._facts.output} nor {self._facts.dead_letter}"
        self._found.add(Name.LOST, (self._facts.input, partition, offset), evidence)

    def _overdue(self, lane: InputPartition, partition: int) -> None:
        for place, (stream, record, attempt) in lane.overdue():
            current, stream.attempt = stream.attempt, attempt  # its findings name its own producer
            self._judge(stream, record, SourcePosition(self._facts.input, partition, *place), early=True)
            stream.attempt = current

    def _phantom(self, stream: Stream, record: Record, source: SourcePosition) -> None:
        if self._facts.compacted():
            self.replaced += 1
            return
        evidence = f"its source {at(source)} is not a visible record (aborted, or never written)"
        self._found.add(Name.PHANTOM, (stream.topic, record.partition, record.offset), evidence)

    def input_ended(self) -> None:
        """Signal the end of the input: outputs that still wait for their input have none."""
        for partition, lane in self._lanes.items():
            lane.skip_to(self._facts.logs[partition].last_stable)
            self._overdue(lane, partition)

    def downstream_ended(self) -> None:
        """Signal the end of outputs and dead letters: inputs that still wait for theirs are lost."""
        self._downstream_open = False
        for lane in self._lanes.values():
            self._all_missing(lane)

    def _all_missing(self, lane: InputPartition) -> None:
        for row in lane.waiting():
            self._missing(row)
        lane.forget()
