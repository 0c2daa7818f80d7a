"""
Check the promise record by record: every visible input exactly once downstream, correct, in order, nothing else.

Pure: takes records, batches and facts, and returns findings. Input, output and dead letters may be interleaved in any
way, each in offset order per partition; a partition's raw batches come before its records. Memory grows with the
partitions, open transactions, and records whose counterpart has not arrived yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, groupby
from operator import itemgetter

from brew.cluster import RawBatch
from brew.names import quantity
from proof.checking.comparison import Comparison
from proof.checking.input_partition import BrokerFacts, InputPartition, Layout, Row, Stream
from proof.checking.journals import Acknowledged
from proof.checking.positions import OffsetLog, Positions
from proof.checking.transactions import Attempt, Endings, RawLog
from proof.checking.transformed import Oracle, TransformComparison
from proof.findings import Findings, Name, Report

_partition = itemgetter(0)
MISPLACED = "in another partition than the present numbers of partitions select"


class Checker:
    """A fold over three logs; call `finish` and `report` after all of them have ended."""

    def __init__(
        self, facts: BrokerFacts, acknowledged: Acknowledged | None = None, oracle: Oracle | None = None
    ) -> None:
        """``oracle``: the function that produced the outputs; None if orders were enriched."""
        self._facts = facts
        self._acknowledged = acknowledged or Acknowledged((), facts.input)
        self.found = Findings()
        self.endings = Endings(self.found, facts.healed_ms, strict=facts.strict)
        self._downstream = dict.fromkeys((*facts.outputs, facts.dead_letter), 0)
        self._lanes = {p: InputPartition(log.first) for p, log in facts.logs.items()}
        self._positions = {
            p: Positions(facts.input, p, lane, self.found, self.endings.both) for p, lane in self._lanes.items()
        }
        self.offsets = OffsetLog(self._positions, self.found, self.endings, strict=facts.strict)
        self._streams: dict[tuple[str, int], Stream] = {}
        self._transformed = None if oracle is None else TransformComparison(facts, self.found, self._lanes, oracle)
        self._compared = self._transformed or Comparison(facts, self.found, self._lanes)
        if facts.journals:
            # A reader may have received records from a partition whose log shows none.
            for topic, partitions in facts.downstream.items():
                for partition in partitions:
                    self._stream(topic, partition)
        self._offsets_ahead()

    @property
    def layouts(self) -> dict[tuple[str, int], Layout]:
        """What readers can see; complete once the logs have ended, empty unless ``BrokerFacts.journals``."""
        return {location: stream.layout for location, stream in self._streams.items() if stream.layout is not None}

    def _offsets_ahead(self) -> None:
        for partition, committed in self._facts.committed.items():
            log = self._facts.logs.get(partition)
            if log is not None and committed is not None and committed > log.last_stable:
                evidence = f"committed, but the input is readable only up to {log.last_stable} (log end {log.end})"
                self.found.add(Name.OFFSET_AHEAD, (self._facts.input, partition, committed), evidence)

    def _stream(self, topic: str, partition: int) -> Stream:
        found = self._streams.get((topic, partition))
        if found is None:
            raw = RawLog(topic, partition, self.found, self.endings, strict=self._facts.strict)
            log = self._facts.downstream.get(topic, {}).get(partition)
            layout = Layout(log.first if log else 0) if self._facts.journals else None
            found = self._streams[topic, partition] = Stream(raw, self._wrote, layout, log.first if log else 0)
        return found

    def _wrote(self, source_partition: int, attempt: Attempt) -> None:
        if self.offsets.readable:
            self._positions[source_partition].wrote(attempt)

    def batches(self, topic: str, partition: int, batches: Iterable[RawBatch]) -> None:
        """Take raw batches of an output or dead-letter topic, before the records in them."""
        self._stream(topic, partition).batches(batches)

    def input(self, records: Iterable[Row]) -> None:
        self._compared.take_inputs(records)

    def output(self, records: Iterable[Row], topic: str | None = None) -> None:
        """Take visible records of the output, or of ``topic``, another output."""
        self._take(topic or self._facts.output, records)

    def dead_letters(self, records: Iterable[Row]) -> None:
        self._take(self._facts.dead_letter, records)

    def _take(self, topic: str, records: Iterable[Row]) -> None:
        for partition, rows in groupby(records, _partition):
            self._downstream[topic] += self._compared.take_rows(self._stream(topic, partition), rows)
        for position in self._positions.values():
            position.settle()

    def input_ended(self) -> None:
        self._compared.input_ended()

    def downstream_ended(self) -> None:
        self._compared.downstream_ended()

    def _transactions_ended(self) -> None:
        """Run the checks that need complete logs: open transactions and torn ranges."""
        for attempt in chain(*(stream.ended() for stream in self._streams.values()), self.offsets.open()):
            self._open(attempt)
        gone = self._gone
        for partition, position in self._positions.items():
            position.ended([] if gone else sorted(self._compared.lost[partition]))
        self.endings.report()

    @property
    def _gone(self) -> list[str]:
        """The reasons why downstream records may be gone without being lost; complete once the logs have ended."""
        compacted = sorted(location for location, stream in self._streams.items() if stream.compacted)
        advice = "so records are missing; set the topic's cleanup.policy to delete"
        return [*self._facts.doubts, *(f"{topic}[{p}] was compacted, {advice}" for topic, p in compacted)]

    def _open(self, attempt: Attempt) -> None:
        self.endings.counts["open_transactions"] += 1
        if self._facts.settled:
            evidence = (
                f"{quantity(attempt.records, 'record')} up to offset {attempt.last}, and no end marker after them"
            )
            self.found.add(Name.HANGING, attempt.location, evidence, attempt.key)

    def _stuck(self) -> None:
        """Report transactions that still hold back a last stable offset after the run has settled."""
        reported = {
            (finding.topic, finding.partition) for finding in self.found.first() if finding.name is Name.HANGING
        }
        logs = {**self._facts.downstream, self._facts.input: self._facts.logs}
        for topic, partitions in logs.items():
            for partition, log in partitions.items():
                if log.last_stable < log.end and (topic, partition) not in reported:
                    evidence = f"a transaction never ended: readers stop here, but the log ends at {log.end}"
                    self.found.add(Name.HANGING, (topic, partition, log.last_stable), evidence)

    def _lost_commits(self) -> None:
        """Report records that are missing although their commit was acknowledged."""
        reported = set()
        for partition, lost in () if self._gone else self._compared.lost.items():
            for offset in lost:
                held = self._acknowledged.holding(partition, offset)
                if held is not None and (partition, held) not in reported:
                    reported.add((partition, held))
                    evidence = f"a writer's journal records the commit of [{held[0]}, {held[1]}) as done"
                    self.found.add(Name.LOST_COMMIT, (self._facts.input, partition, offset), evidence)
        for partition, position in self._positions.items():
            until, committed = self._acknowledged.until(partition), self._facts.committed.get(partition)
            # No offset at all: it may have expired, unless the group's log is whole and shows none that was deleted.
            expired = committed is None and position.last is None
            behind = self._facts.position(partition) < until
            if behind and self.offsets.readable and not position.by_hand and not expired:
                stands = "none" if committed is None else committed
                evidence = f"a writer's journal records the commit of {until} as done, but {stands} is committed"
                offset = self._facts.logs[partition].first if committed is None else committed
                self.found.add(Name.LOST_COMMIT, (self._facts.input, partition, offset), evidence)

    def finish(self) -> None:
        """Run the checks that need complete logs; call once, before checking readers' journals and demands."""
        self._transactions_ended()
        if self._facts.settled:
            self._stuck()
        self._lost_commits()
        self.offsets.compare(self._facts.committed)
        for partition in self._compared.unplaced.keys() - self._deleted:
            self.found.take(self._compared.unplaced[partition])

    @property
    def _deleted(self) -> set[int]:
        """Partitions whose committed offset was deleted, or may have been: compaction removes the deletion, too."""
        return {
            partition
            for partition, position in self._positions.items()
            if position.logged is None or (position.logged == -1 and position.last is None)
        }

    @property
    def _outputs(self) -> int:
        return sum(self._downstream[topic] for topic in self._facts.outputs)

    @property
    def counts(self) -> dict[str, int]:
        """The counts that a campaign compares with its demands."""
        names = ("committed_transactions", "aborted_transactions", "aborted_records", "fences", "open_transactions")
        counts = {"inputs": self._compared.inputs, "outputs": self._outputs}
        counts["dead_letters"] = self._downstream[self._facts.dead_letter]
        if self._transformed is not None:
            counts |= self._transformed.counts
        if self._facts.profiles is not None:
            counts |= self._facts.profiles.counts
        return counts | {name: self.endings.counts[name] for name in names}

    def _doubts(self) -> list[str]:
        topic, compared = self._facts.input, self._compared
        doubts = []
        if not compared.inputs and not compared.backlog:
            doubts.append(f"{topic} has no visible records, so there is nothing to prove; write some")
        if compared.backlog:
            unprocessed = quantity(compared.backlog, "visible input")
            doubts.append(f"{unprocessed} not yet processed; run the pipeline until its lag is 0")
        if compared.unverifiable:
            doubts.append(
                f"the sources of {quantity(compared.unverifiable, 'output')} are below the input's log start "
                "(retention) and can't be compared; verify earlier, or raise the input's retention"
            )
        if compared.replaced:
            doubts.append(
                f"the sources of {quantity(compared.replaced, 'output')} are not in {topic}, which was compacted, and "
                "can't be compared; verify earlier, or set the topic's cleanup.policy to delete"
            )
        if compared.elsewhere:
            outputs = quantity(compared.elsewhere, "output")
            doubts.append(
                f"{outputs} {MISPLACED}, as if a topic had had fewer; if none was expanded, the order of keys is broken"
            )
        for partition in sorted(compared.unplaced.keys() & self._deleted):
            outputs = quantity(compared.unplaced[partition].totals[Name.OFFSET_BEHIND], "output")
            known = self._positions[partition].logged is None
            unless = "" if known else ", unless it never had one (older commits were compacted)"
            doubts.append(
                f"the committed offset of {topic}[{partition}] was deleted or has expired{unless}, so {outputs} can't "
                "be compared with it; run the pipeline with --on-missing-position restore, then verify again"
            )
        for partition, log in sorted(self._facts.logs.items()):
            position = self._facts.committed.get(partition)
            if position is not None and position < log.first:
                doubts.append(
                    f"{topic}[{partition}] begins at {log.first}, above the committed offset {position}: the records "
                    "between are lost; reset the group's offset to continue, and raise the input's retention"
                )
            if log.last_stable < log.end:
                doubts.append(
                    f"{topic}[{partition}]: an open transaction holds back offsets {log.last_stable} to {log.end - 1}; "
                    "wait for its end, or find its producer with `group-describe`"
                )
        return doubts

    def report(self, notes: Iterable[str] = (), unseen: Iterable[str] = ()) -> Report:
        """Return the report; ``unseen`` are the checks that should have been made and could not be."""
        compared, totals = self._compared, {str(name): total for name, total in self.found.totals.items()}
        findings = self.found.first()
        doubts = self._doubts()
        if self._transformed is not None:
            doubts += self._transformed.doubts
        gone = self._gone
        if gone and Name.LOST in totals:
            lost = totals.pop(Name.LOST)
            findings = [finding for finding in findings if finding.name is not Name.LOST]
            doubts.append(f"{quantity(lost, 'input')} without output, which the following may explain")
        return Report(
            inputs=compared.inputs,
            outputs=self._outputs,
            dead_letters=self._downstream[self._facts.dead_letter],
            backlog=compared.backlog,
            unverifiable=compared.unverifiable,
            totals=totals,
            findings=findings,
            doubts=[*doubts, *gone, *unseen],
            notes=[*self.offsets.notes, *notes, *compared.notes],
            counts=self.counts,
            recovery_s=[
                None if first is None else (first - healed) / 1000
                for healed, first in sorted(self.endings.first_commit_ms.items())
            ],
        )
