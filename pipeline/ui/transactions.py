"""Transactions as the output's raw log tells of them; pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.ui.told import Flow
from pipeline.xray.model import Kind, Run, Strip
from protocol.names import TransactionalId
from protocol.observe.status import Status
from protocol.transactions import Coordinated

_KEPT = 4096
_OUTCOMES = {Kind.COMMIT_MARKER: "committed", Kind.ABORT_MARKER: "aborted"}
Writer = tuple[int, int]
"""Producer id and epoch."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """
    One transaction in one output partition.

    ``outcome`` is committed, aborted or open; ``source`` is the input partition, ``first`` to ``last`` its offsets;
    ``records`` are all that it wrote there, at least so many where not ``exact``, None where nothing of it was read.
    ``first`` is None where it begins before what was read. ``ended_ms`` is the broker's time of the marker.
    ``state`` and ``timeout_s`` are its coordinator's, told of what is open and the group's own.
    """

    partition: int
    outcome: str
    producer_id: int
    epoch: int
    records: int | None
    ended_ms: int | None
    marker: int | None
    transactional_id: str | None = None
    source: int | None = None
    first: int | None = None
    last: int | None = None
    seconds: float | None = None
    state: str | None = None
    timeout_s: float | None = None
    exact: bool = True


class Ages:
    """How long transactions took: as their own program said, else since their coordinator saw them begin."""

    def __init__(self) -> None:
        self._own: dict[Writer, Coordinated] = {}
        self._began_ms: OrderedDict[Writer, int] = OrderedDict()
        self._took_s: OrderedDict[tuple[str, int, int], float] = OrderedDict()

    def add(self, flow: Flow) -> None:
        open_now = [one.own for one in flow.looks if one.own is not None and one.own.open]
        self._own = {(own.producer_id, own.producer_epoch): own for own in open_now}
        self._began_ms |= {writer: own.began_ms for writer, own in self._own.items() if own.began_ms is not None}
        _forget(self._began_ms)

    def aged(self, one: Transaction, topic: str, now_ms: int) -> Transaction:
        """With its seconds; of one that is open what its coordinator says, too."""
        known = replace(one, seconds=self.seconds(one, topic, now_ms))
        own = self._own.get((one.producer_id, one.epoch)) if one.outcome == "open" else None
        return known if own is None else replace(known, state=own.state, timeout_s=own.timeout_ms / 1000)

    def say(self, status: Status) -> None:
        """A program knows no producer ids; its position is where the last one that committed ended."""
        for one in status.partitions:
            last = one.last_transaction
            if last is not None and last.seconds is not None and one.position is not None:
                self._took_s.setdefault((one.topic, one.partition, one.position), last.seconds)
        _forget(self._took_s)

    def seconds(self, one: Transaction, topic: str, now_ms: int) -> float | None:
        """To its marker, by the brokers' clocks, where no program said it; to now while it is open."""
        if one.outcome == "committed" and one.source is not None and one.last is not None:
            said = self._took_s.get((topic, one.source, one.last + 1))
            if said is not None:
                return said
        began_ms = self._began_ms.get((one.producer_id, one.epoch))
        until_ms = now_ms if one.outcome == "open" else one.ended_ms
        if began_ms is None or until_ms is None or until_ms < began_ms:
            return None
        return (until_ms - began_ms) / 1000


def _forget(known: OrderedDict[Any, Any]) -> None:
    """The oldest, so that what was seen once does not pile up."""
    while len(known) > _KEPT:
        known.popitem(last=False)


def transactions(strips: Mapping[int, Strip], group: str, topic: str) -> list[Transaction]:
    """All of the tails: open ones first, then by the time of their marker, the latest first."""
    found = [one for strip in strips.values() for one in _of(strip, group, topic)]
    return sorted(found, key=lambda one: (one.ended_ms is not None, -(one.ended_ms or 0), one.partition))


def _of(strip: Strip, group: str, topic: str) -> Iterator[Transaction]:
    wrote: dict[int | None, list[Run]] = {}
    for run in strip.runs:
        if not run.kind.marker and run.producer_id >= 0 and (run.marker is not None or run.kind is Kind.OPEN):
            key = run.marker if run.marker is not None else -run.producer_id - 1
            wrote.setdefault(key, []).append(run)
    for run in strip.runs:
        if run.kind.marker:
            own = wrote.get(run.start, [])
            records, exact = _counted(own or [run])
            ended = Transaction(
                strip.partition,
                _OUTCOMES[run.kind],
                run.producer_id,
                own[0].epoch if own else run.epoch,
                records,
                run.written_ms,
                run.start,
                exact=exact,
            )
            yield _named(ended, own or [run], group, topic)
    for runs in (some for some in wrote.values() if some[0].kind is Kind.OPEN):
        records, exact = _counted(runs)
        writer = (runs[0].producer_id, runs[0].epoch)
        yield _named(
            Transaction(strip.partition, "open", *writer, records, None, None, exact=exact), runs, group, topic
        )


def _counted(runs: Sequence[Run]) -> tuple[int | None, bool]:
    """All records of the transaction whose runs in the tail these are, and whether nothing else lies before them."""
    earlier = runs[0].earlier
    count = earlier.records + sum(one.records for one in runs if not one.kind.marker)
    return (count if count or earlier.whole else None), earlier.whole


def _named(one: Transaction, runs: Sequence[Run], group: str, topic: str) -> Transaction:
    """Whose it is follows from where its records came from."""
    firsts = [at for run in runs for at in (run.earlier.first, run.first) if at is not None and at.topic == topic]
    if not firsts:
        return one
    name = str(TransactionalId(group, topic, firsts[0].partition))
    last = next((run.last for run in reversed(runs) if run.last is not None and run.last.topic == topic), None)
    return replace(
        one,
        transactional_id=name,
        source=firsts[0].partition,
        first=firsts[0].offset if one.exact else None,
        last=None if last is None else last.offset,
    )
