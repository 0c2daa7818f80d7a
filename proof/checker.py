"""
Check the promise record by record: every visible input once downstream, nothing else, unchanged, in order.

Pure: records and facts in, findings out. Input, output and dead letters may arrive in any interleaving, each in offset
order per partition. Memory holds one bit per input offset, and the records whose other half has not arrived yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from proof.doubts import Tally, own_doubts
from proof.findings import Finding, Findings, Name, Report
from proof.matching import wrong_dead_letter, wrong_output
from protocol.position import LogOffsets, SourcePosition


class Record(NamedTuple):
    """A record as a reader sees it; ``created`` is its timestamp in ms, None where the broker set it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    created: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What the brokers say before the records are read.

    ``doubts`` are reasons why downstream records may be missing without having been lost.
    """

    input: str
    output: str
    dead_letter: str
    logs: dict[int, LogOffsets]
    committed: dict[int, int | None]
    output_partitions: int
    doubts: tuple[str, ...] = ()


class _Bits:
    """A set of offsets at or above ``first``."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._bits = bytearray()

    def add(self, offset: int) -> bool:
        """Put it in; False when it was there."""
        at, bit = divmod(offset - self._first, 8)
        if at >= len(self._bits):
            self._bits.extend(bytes(at + 1 - len(self._bits) + 4096))
        mask = 1 << bit
        if self._bits[at] & mask:
            return False
        self._bits[at] |= mask
        return True


class Checker:
    """A fold over three logs; ask for the report once all of them have ended."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._found = Findings()
        self._inputs = self._backlog = self._unverifiable = 0
        self._downstream = {facts.output: 0, facts.dead_letter: 0}
        self._seen = {p: _Bits(log.first) for p, log in facts.logs.items()}
        self._last: dict[tuple[str, int, int], int] = {}
        self._early_inputs: dict[tuple[int, int], Record] = {}
        self._early_outputs: dict[tuple[int, int], tuple[str, Record]] = {}
        self._input_open = self._downstream_open = True
        self._offsets_ahead()

    @property
    def in_flight(self) -> int:
        """Records that wait for their other half."""
        return len(self._early_inputs) + len(self._early_outputs)

    def _say(self, name: Name, topic: str, record: Record, evidence: str) -> None:
        self._found.add(Finding(name, topic, record.partition, record.offset, evidence))

    def _offsets_ahead(self) -> None:
        for partition, committed in self._facts.committed.items():
            log = self._facts.logs.get(partition)
            if log is not None and committed is not None and committed > log.last_stable:
                evidence = f"it is committed, but readers see the input up to {log.last_stable} only (end {log.end})"
                self._found.add(Finding(Name.OFFSET_AHEAD, self._facts.input, partition, committed, evidence))

    def _position(self, partition: int) -> int:
        committed = self._facts.committed.get(partition)
        return -1 if committed is None else committed

    def input(self, records: Iterable[Record]) -> None:
        """Take in visible records of the input."""
        for record in records:
            place = record.partition, record.offset
            if record.offset >= self._position(record.partition):
                self._backlog += 1
                continue
            self._inputs += 1
            other = self._early_outputs.pop(place, None)
            if other is not None:
                self._compare(record, *other)
            elif self._downstream_open:
                self._early_inputs[place] = record
            else:
                self._lost(record)

    def output(self, records: Iterable[Record]) -> None:
        """Take in visible records of the output."""
        self._take(self._facts.output, records)

    def dead_letters(self, records: Iterable[Record]) -> None:
        """Take in visible records of the dead-letter topic."""
        self._take(self._facts.dead_letter, records)

    def _take(self, topic: str, records: Iterable[Record]) -> None:
        for record in records:
            self._downstream[topic] += 1
            source = SourcePosition.of(record.headers)
            if source is None:
                self._say(Name.PHANTOM, topic, record, "no readable source headers")
            elif source.topic != self._facts.input or source.partition not in self._facts.logs:
                self._say(Name.PHANTOM, topic, record, f"its source is {_at(source)}, not in {self._facts.input}")
            else:
                self._place(topic, record, source)

    def _place(self, topic: str, record: Record, source: SourcePosition) -> None:
        """Find the input of one downstream record."""
        log = self._facts.logs[source.partition]
        if source.offset < log.first:
            self._unverifiable += 1
            return
        if source.offset >= log.last_stable:
            self._say(Name.PHANTOM, topic, record, f"its source {_at(source)} is not visible (LSO {log.last_stable})")
            return
        if not self._seen[source.partition].add(source.offset):
            self._say(Name.DUPLICATE, topic, record, f"its source {_at(source)} came out before")
            return
        self._in_order(topic, record, source)
        if source.offset >= self._position(source.partition):
            told = self._facts.committed.get(source.partition)
            self._say(
                Name.OFFSET_BEHIND, topic, record, f"its source {_at(source)} is out, the committed offset is {told}"
            )
            return
        place = source.partition, source.offset
        came = self._early_inputs.pop(place, None)
        if came is not None:
            self._compare(came, topic, record)
        elif self._input_open:
            self._early_outputs[place] = topic, record
        else:
            self._phantom(topic, record, source.partition, source.offset)

    def _in_order(self, topic: str, record: Record, source: SourcePosition) -> None:
        stream = topic, record.partition, source.partition
        before = self._last.get(stream, -1)
        if source.offset < before:
            self._say(Name.NONMONOTONIC, topic, record, f"its source {_at(source)} follows offset {before}")
        else:
            self._last[stream] = source.offset
        same_shape = topic == self._facts.output and self._facts.output_partitions == len(self._facts.logs)
        if same_shape and record.partition != source.partition:
            evidence = (
                f"its source {_at(source)} belongs into output partition {source.partition}, or keys lose their order"
            )
            self._say(Name.NONMONOTONIC, topic, record, evidence)

    def _compare(self, came: Record, topic: str, record: Record) -> None:
        source = SourcePosition(self._facts.input, came.partition, came.offset)
        wrong = (wrong_output if topic == self._facts.output else wrong_dead_letter)(came, record, source)
        if wrong is not None:
            self._say(Name.CORRUPT, topic, record, f"source {_at(source)}: {wrong}")

    def _lost(self, record: Record) -> None:
        self._say(
            Name.LOST, self._facts.input, record, f"neither on {self._facts.output} nor {self._facts.dead_letter}"
        )

    def _phantom(self, topic: str, record: Record, partition: int, offset: int) -> None:
        at = f"{self._facts.input}[{partition}] offset {offset}"
        self._say(Name.PHANTOM, topic, record, f"its source {at} is no visible record (aborted, or never written)")

    def input_ended(self) -> None:
        """No input will come any more: outputs that still wait for theirs have none."""
        self._input_open = False
        for (partition, offset), (topic, record) in self._early_outputs.items():
            self._phantom(topic, record, partition, offset)
        self._early_outputs.clear()

    def downstream_ended(self) -> None:
        """No output and no dead letter will come any more: inputs that still wait for theirs are lost."""
        self._downstream_open = False
        for record in self._early_inputs.values():
            self._lost(record)
        self._early_inputs.clear()

    def _tally(self) -> Tally:
        return Tally(self._inputs, self._backlog, self._unverifiable)

    def report(self) -> Report:
        """The verdict on all that was taken in."""
        totals = {str(name): total for name, total in self._found.totals.items()}
        findings = self._found.first()
        doubts = own_doubts(self._facts.input, self._facts.logs, self._facts.committed, self._tally())
        if self._facts.doubts and Name.LOST in totals:
            lost = totals.pop(Name.LOST)
            findings = [finding for finding in findings if finding.name is not Name.LOST]
            doubts.append(f"{lost} inputs have not come out, which the following may explain")
        return Report(
            inputs=self._inputs,
            outputs=self._downstream[self._facts.output],
            dead_letters=self._downstream[self._facts.dead_letter],
            backlog=self._backlog,
            unverifiable=self._unverifiable,
            totals=totals,
            findings=findings,
            doubts=[*doubts, *self._facts.doubts],
        )


def _at(source: SourcePosition) -> str:
    return f"{source.topic}[{source.partition}] offset {source.offset}"
