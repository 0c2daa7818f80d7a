"""What readers wrote down while things broke, against what the log holds in the end; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from proof.checking.layout import Layout
from proof.checking.writers import Acknowledged
from proof.findings import Findings, Name
from protocol.journal import Entry, Run, Step
from protocol.names import READ_COMMITTED

Place = tuple[str, int]
_Who = tuple[str, int]


@dataclass(slots=True)
class _Reader:
    """How far one process got: partition -> first and next offset; ``final`` says that it drained its topics."""

    next: dict[Place, int] = field(default_factory=dict)
    first: dict[Place, int] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    committed: bool = True
    final: bool = False


class Readers:
    """A fold over the journals' lines, each reader's in its order."""

    def __init__(self, layouts: Mapping[Place, Layout], found: Findings, acknowledged: Acknowledged) -> None:
        self._layouts, self._found, self._acknowledged = layouts, found, acknowledged
        self._readers: dict[_Who, _Reader] = {}

    def take(self, entry: Entry) -> None:
        """Lines of other steps, and of topics that are not checked, are passed over."""
        if entry.step is not Step.READ:
            return
        reader = self._readers.setdefault((entry.who, entry.pid), _Reader())
        fields = entry.fields
        reader.final = reader.final or bool(fields.get("final"))
        if "topic" not in fields:
            return
        reader.topics.add(fields["topic"])
        reader.committed = fields.get("isolation", READ_COMMITTED) == READ_COMMITTED
        place = fields["topic"], fields.get("partition", -1)
        layout = self._layouts.get(place)
        if layout is None:
            return
        for run in fields.get("runs", ()):
            self._read(f"{entry.who} {entry.pid}", reader, place, layout, Run(*run))

    def _read(self, who: str, reader: _Reader, place: Place, layout: Layout, run: Run) -> None:
        expected = reader.next.get(place)
        if expected is None:
            reader.first[place] = run.offset
        elif run.offset < expected:
            evidence = f"{who} had read up to {expected - 1} before"
            self._found.say(Name.NONMONOTONIC_POLL, (*place, run.offset), evidence)
        else:
            self._skipped(who, place, layout, expected, run.offset)
        reader.next[place] = max(expected or 0, run.offset + run.length)
        self._compare(who, reader, place, layout, run)

    def _skipped(self, who: str, place: Place, layout: Layout, start: int, until: int) -> None:
        for hole in layout.between(start, until):
            evidence = f"{who} went from {start - 1} to {until} and left out {hole.length} visible records"
            self._found.say(Name.POLL_SKIP, (*place, hole.offset), evidence)
            return

    def _compare(self, who: str, reader: _Reader, place: Place, layout: Layout, run: Run) -> None:
        """Record by record of one source; stretches that the log does not show are told once."""
        here, until = max(run.offset, layout.first), run.offset + run.length
        for seen in layout.between(here, until):
            if seen.offset > here:
                self._invisible(who, reader, place, layout, here)
            here = seen.offset + seen.length
            told = run.source_partition, run.source_offset + seen.offset - run.offset
            if run.source_offset >= 0 and told != (seen.source_partition, seen.source_offset):
                evidence = f"{who} read source {told[0]}:{told[1]}, the log holds "
                evidence += f"{seen.source_partition}:{seen.source_offset}"
                self._found.say(Name.INCONSISTENT, (*place, seen.offset), evidence)
        if here < until:
            self._invisible(who, reader, place, layout, here)

    def _invisible(self, who: str, reader: _Reader, place: Place, layout: Layout, offset: int) -> None:
        if layout.aborted(offset):
            if reader.committed:
                evidence = f"{who} read it at read_committed, and its transaction did not commit"
                self._found.say(Name.ABORTED_READ, (*place, offset), evidence)
        else:
            self._found.say(Name.INCONSISTENT, (*place, offset), f"{who} read it, and the log holds no record there")

    def ended(self) -> None:
        """A reader that drained the log has seen all that was acknowledged."""
        for (who, pid), reader in self._readers.items():
            if not (reader.final and reader.committed):
                continue
            for place, layout in self._layouts.items():
                if place[0] not in reader.topics:
                    continue
                begin = reader.first.get(place, layout.end)
                self._unseen(f"{who} {pid}", place, layout, layout.first, begin)
                self._unseen(f"{who} {pid}", place, layout, reader.next.get(place, layout.end), layout.end)

    def _unseen(self, who: str, place: Place, layout: Layout, start: int, until: int) -> None:
        for run in layout.between(start, until):
            if self._acknowledged.covers(run.source_partition, run.source_offset, run.length):
                evidence = f"{who} read to the end and did not get {run.length} committed records from here on"
                self._found.say(Name.UNSEEN, (*place, run.offset), evidence)
                return


def check_readers(
    entries: Iterable[Entry], layouts: Mapping[Place, Layout], found: Findings, acknowledged: Acknowledged
) -> None:
    readers = Readers(layouts, found, acknowledged)
    for entry in entries:
        readers.take(entry)
    readers.ended()
