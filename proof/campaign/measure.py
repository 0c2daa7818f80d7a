"""What the journals tell about a fault: how long until commits went on, how long readers were held back; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from proof.campaign.journals import is_commit
from protocol.journal import Entry, Phase, Step


@dataclass(frozen=True, slots=True)
class Kill:
    """A writer that is gone: when, and its process number."""

    at: float
    pid: int


def first_commit(entries: Iterable[Entry], after: float, partitions: Collection[int] | None = None) -> float | None:
    """When the first transaction was committed after that moment, in one of these input partitions or in any."""
    times = (
        entry.at
        for entry in entries
        if entry.at > after and is_commit(entry) and (partitions is None or entry.fields["partition"] in partitions)
    )
    return min(times, default=None)


def recoveries(entries: Sequence[Entry], kills: Sequence[Kill]) -> list[float]:
    """Seconds from each kill to the first commit after it; kills with another one in between are left out."""
    commits = sorted(entry.at for entry in entries if is_commit(entry))
    return [found - kill.at for kill, found in _answered(kills, commits)]


def stalls(entries: Sequence[Entry], kills: Sequence[Kill]) -> list[float]:
    """
    Seconds for which a kill held readers back: to the first record of its open ranges that a reader was given.

    Kills without an open transaction, and those with another kill in between, are left out.
    """
    found = []
    moments = sorted(kill.at for kill in kills)
    reads = [entry for entry in entries if entry.step is Step.READ]
    for kill in kills:
        ranges = open_ranges(entries, kill)
        seen = [_first_read(reads, kill.at, partition, start) for partition, start in ranges.items()]
        held = max((at for at in seen if at is not None), default=None)
        if held is not None and not any(kill.at < at < held for at in moments):
            found.append(held - kill.at)
    return found


def open_ranges(entries: Iterable[Entry], kill: Kill) -> dict[int, int]:
    """The input partitions, with the range's start, in which the killed process had begun and not ended."""
    begun: dict[int, int] = {}
    for entry in entries:
        if entry.pid != kill.pid or entry.at > kill.at:
            continue
        if entry.step is Step.BEGIN and entry.phase is Phase.DONE:
            begun[entry.fields["partition"]] = entry.fields["start"]
        elif entry.step in {Step.COMMIT, Step.ABORT} and entry.phase is Phase.DONE:
            begun.pop(entry.fields["partition"], None)
    return begun


def _first_read(reads: Iterable[Entry], after: float, partition: int, start: int) -> float | None:
    for entry in reads:
        if entry.at <= after:
            continue
        for _offset, source_partition, source_offset, count in entry.fields["runs"]:
            if source_partition == partition and source_offset + count > start:
                return entry.at
    return None


def _answered(kills: Sequence[Kill], commits: Sequence[float]) -> list[tuple[Kill, float]]:
    pairs = []
    ordered = sorted(kills, key=lambda kill: kill.at)
    for this, following in zip(ordered, [*ordered[1:], None], strict=True):
        found = next((at for at in commits if at > this.at), None)
        if found is not None and (following is None or found < following.at):
            pairs.append((this, found))
    return pairs
