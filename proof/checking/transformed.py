"""
Compare outputs with what the transformation returns for their inputs: the checker calls the same function; pure.

This proves nothing unless the function is deterministic. The checker calls it twice for some records, and for each
record whose output is not as expected. Differing answers are reported, and their outputs are not judged.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from brew.errors import BrewError, text_of
from brew.names import quantity
from brew.offsets import SourcePosition
from brew.record import TOO_LARGE, TRANSFORM_ERROR, Function, Reject, apply, takes_batches
from brew.record import Record as Given
from proof.checking.comparison import Comparison, letter_reason, wrong_letter_frame, wrong_time
from proof.checking.input_partition import BrokerFacts, InputPartition, OffsetRanges, Record, Row, Stream, at
from proof.findings import Findings, Name

Answer = tuple[Given, ...] | Reject

_TWICE_FIRST, _TWICE_EVERY = 1000, 100


class Oracle:
    """Calls the function; ``differs`` describes the first nondeterministic answer, or is empty."""

    def __init__(self, name: str, function: Function) -> None:
        self.name, self._function = name, function
        self._asked, self._now_ms = 0, int(time.time() * 1000)
        self.differs = ""

    def answers(self, records: list[Given]) -> list[Answer]:
        """Return an answer for each record, a rejection if it raises; `BrewError` if a service does not answer."""
        found = self._batch(records) if takes_batches(self._function) else None
        answers = [self._alone(record) for record in records] if found is None else found
        for record, answer in zip(records, answers, strict=True):
            self._asked += 1
            if self._asked <= _TWICE_FIRST or self._asked % _TWICE_EVERY == 0:
                self.same_again(record, answer)
        return answers

    def same_again(self, record: Given, answer: Answer) -> bool:
        """Call the function again and return whether the answer is the same."""
        again = self._alone(record) if record.timestamp else self._at_another_time(record)
        if _comparable(again) == _comparable(answer):
            return True
        if not self.differs:
            where = f"{record.topic}[{record.partition}] offset {record.offset}"
            how = " alone and in a batch" if takes_batches(self._function) else " twice"
            how = how if record.timestamp else " with two timestamps (the brokers set the input's)"
            self.differs = f"called{how} for {where}, it returned {_brief(answer)} and {_brief(again)}"
        return False

    def _at_another_time(self, record: Given) -> Answer:
        """Call the function for a record without a known timestamp: an answer that depends on it can't be judged."""
        answer = self._alone(replace(record, timestamp=self._now_ms))
        if isinstance(answer, Reject):
            return answer
        return tuple(replace(one, timestamp=0) if one.timestamp == self._now_ms else one for one in answer)

    def _alone(self, record: Given) -> Answer:
        try:
            return apply(self._function, record)
        except BrewError:
            raise  # a service that it needs does not answer, so the record can't be judged
        except (Exception, SystemExit) as error:  # noqa: BLE001 - as the pipeline does
            return Reject(TRANSFORM_ERROR, f"{type(error).__name__}: {text_of(error)}")

    def _batch(self, records: list[Given]) -> list[Answer] | None:
        from brew.record_batches import apply_batch  # noqa: PLC0415 - needs pyarrow

        try:
            return apply_batch(self._function, records)
        except (Exception, SystemExit):  # noqa: BLE001 - one record fails; retry one by one, as the pipeline does
            return None


def _comparable(answer: Answer) -> object:
    """Return the part that must not differ: the records, or the reason of a rejection without its message."""
    return answer.reason if isinstance(answer, Reject) else answer


def _brief(answer: Answer) -> str:
    if isinstance(answer, Reject):
        return f"a rejection ({answer.reason})"
    if not answer:
        return "nothing"
    value = answer[0].value
    text = "no value" if value is None else repr(value[:60])
    return text if len(answer) == 1 else f"{len(answer)} records, the first with {text}"


@dataclass(slots=True)
class _Pending:
    """An input whose outputs have not all arrived; ``left`` are the indices of the missing ones."""

    came: Record
    given: Given
    answer: Answer
    left: set[int]


class TransformComparison(Comparison):
    """A `Comparison` for a function: any number of outputs per input; ``untellable``: those of differing answers."""

    several_outputs = True

    def __init__(self, facts: BrokerFacts, found: Findings, lanes: dict[int, InputPartition], oracle: Oracle) -> None:
        super().__init__(facts, found, lanes)
        self.oracle = oracle
        self._pending: dict[int, dict[int, _Pending]] = {p: {} for p in lanes}
        self._dropped: dict[int, OffsetRanges] = defaultdict(OffsetRanges)
        self._last: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.transformed = self.dropped = self.untellable = 0

    @property
    def counts(self) -> dict[str, int]:
        return {"transformed": self.transformed, "dropped": self.dropped}

    @property
    def doubts(self) -> list[str]:
        if not self.oracle.differs:
            return []
        why = (
            f"{self.oracle.name} is not deterministic: {self.oracle.differs}; {quantity(self.untellable, 'record')} "
            "can't be verified; make its result independent of time, random numbers, outside state and batch boundaries"
        )
        return [why]

    @property
    def notes(self) -> list[str]:
        if not self.oversized:
            return []
        return [f"{self.oversized} inputs were rejected because an output was too large, which can't be verified"]

    def _take_inputs(self, partition: int, rows: Iterable[Row]) -> None:
        lane, position = self._lanes[partition], self._facts.position(partition)
        taken: list[Record] = []
        for row in rows:
            record = Record(*row)
            lane.skip_to(record.offset)
            lane.read = record.offset + 1
            if record.offset < position:
                taken.append(record)
            else:
                self.backlog += 1
        self.inputs += len(taken)
        topic = self._facts.input
        given = [Given(topic, partition, r.offset, r.key, r.value, tuple(r.headers), r.created or 0) for r in taken]
        for came, record_in, answer in zip(taken, given, self.oracle.answers(given), strict=True):
            if answer == ():
                self.dropped += 1
                self._dropped[partition].add(came.offset, came.offset + 1)
                continue
            self.transformed += not isinstance(answer, Reject)
            left = {0} if isinstance(answer, Reject) else set(range(len(answer)))
            self._pending[partition][came.offset] = _Pending(came, record_in, answer, left)
            lane.passed[came.offset] = came
        self._overdue(lane, partition)
        if not self._downstream_open:
            self._all_missing(lane)

    def _first_time(self, stream: Stream, record: Record, source: SourcePosition) -> None:
        """Check that the sources of one input partition ascend within each downstream partition."""
        stream.note(source.partition, source.offset, source.offset, 1)
        location, position = (stream.topic, stream.partition, source.partition), (source.offset, source.index)
        before = self._last.get(location, position)
        if position < before:
            self._add(
                Name.NONMONOTONIC, stream, record, f"its source {source} was output after {before[0]}#{before[1]}"
            )
        self._last[location] = max(position, before)

    def _judge(self, stream: Stream, record: Record, source: SourcePosition, *, early: bool = False) -> None:
        if not early:
            self._first_time(stream, record, source)
        lane, pending = self._lanes[source.partition], self._pending[source.partition]
        entry = pending.get(source.offset)
        if entry is None or source.index not in entry.left:
            self._unexpected(stream, record, source, entry)
            return
        wrong = self._wrong(stream, entry, record, source)
        if wrong is not None and not self.oracle.same_again(entry.given, entry.answer):
            self.untellable += 1
        elif wrong is not None:
            self._add(Name.CORRUPT, stream, record, f"source {at(source)}: {wrong}")
        entry.left.discard(source.index)
        if not entry.left or stream.topic == self._facts.dead_letter:
            del pending[source.offset], lane.passed[source.offset]

    def _unexpected(self, stream: Stream, record: Record, source: SourcePosition, entry: _Pending | None) -> None:
        """Report a record that the function does not return, or that arrived before."""
        dropped = source.offset in self._dropped[source.partition]
        if self.oracle.differs and (dropped or source.index):
            self.untellable += 1  # a different answer may explain it
        elif dropped:
            self._add(Name.CORRUPT, stream, record, f"source {at(source)}: the function drops it")
        elif entry is not None and isinstance(entry.answer, tuple) and source.index >= len(entry.answer):
            evidence = f"source {source}: the function returns {len(entry.answer)} records for it"
            self._add(Name.CORRUPT, stream, record, evidence)
        elif self._lanes[source.partition].visible(source.offset):
            more = ", or the function returns fewer records for it" if source.index else ""
            self._add(Name.DUPLICATE, stream, record, f"its source {source} came out before{more}")
        else:
            self._phantom(stream, record, source)

    def _wrong(self, stream: Stream, entry: _Pending, out: Record, source: SourcePosition) -> str | None:
        if stream.topic == self._facts.dead_letter:
            return self._wrong_letter(entry, out, source)
        if isinstance(entry.answer, Reject):
            return f"the function rejects it ({text_of(entry.answer)})"
        wanted = entry.answer[source.index]
        topic = wanted.destination or self._facts.output
        if stream.topic != topic:
            return f"it belongs on {topic}"
        if out.value != wanted.value:
            return f"value is {_shown(out.value)}, should be {_shown(wanted.value)}"
        if out.key != wanted.key:
            return f"key is {out.key!r}, should be {wanted.key!r}"
        if out.headers != [*wanted.headers, *source.headers()]:
            return f"headers are {[name for name, _ in out.headers]}, should be the function's and then source headers"
        if (wrong := wrong_time(wanted.timestamp or entry.came.created, out)) is not None:
            return wrong
        partitions = len(self._facts.downstream.get(topic, ()))
        place = self._place(out, source, partitions, kept=wanted.key == entry.came.key)
        return None if out.partition == place else f"it belongs in partition {place}, to keep the order of its key"

    def _wrong_letter(self, entry: _Pending, out: Record, source: SourcePosition) -> str | None:
        reason = letter_reason(entry.came, out)
        if isinstance(entry.answer, Reject):
            if reason != entry.answer.reason:
                return f"rejected as {reason}, but the function rejects it as {entry.answer.reason}"
        elif reason != TOO_LARGE or len(entry.left) < len(entry.answer):
            came_out = len(entry.answer) - len(entry.left)
            return f"rejected as {reason}, but the function returns {_brief(entry.answer)}, and {came_out} came out"
        else:
            self.oversized += 1
            self.transformed -= 1
        return wrong_letter_frame(entry.came, out, source)

    def _missing(self, row: Row) -> None:
        partition, offset = row[0], row[1]
        entry = self._pending[partition].pop(offset)
        if not self.oracle.same_again(entry.given, entry.answer):
            self.untellable += 1
            return
        self.lost[partition].append(offset)
        topics = f"{', '.join(self._facts.outputs)} nor {self._facts.dead_letter}"
        wanted = 1 if isinstance(entry.answer, Reject) else len(entry.answer)
        some = "" if wanted == 1 else f"{len(entry.left)} of its {wanted} outputs are "
        self._found.add(Name.LOST, (self._facts.input, partition, offset), f"{some}neither on {topics}")


def _shown(value: bytes | None) -> str:
    """Return the value, shortened; the length shows a difference in the part cut off."""
    if value is None:
        return "none"
    return repr(value) if len(value) <= 80 else f"{value[:77]!r}... ({len(value)} bytes)"  # noqa: PLR2004 - a line's worth
