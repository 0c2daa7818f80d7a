"""The journals of a cell's programs, and recovery and stall times computed from them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from brew.journal import SUFFIX, Entry, Phase, Step, entries


class Journals:
    """The journals of a folder: ``entries`` since `forget`, all of them if iterated, and the number of ``commits``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[Entry] = []
        self.commits = 0
        self._read: dict[Path, int] = {}

    def __iter__(self) -> Iterator[Entry]:
        return entries(self.folder)

    def look(self) -> list[Entry]:
        """Read the new complete lines, file by file; return all entries."""
        fresh: list[Entry] = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            begin = self._read.get(path, 0)
            if path.stat().st_size == begin:
                continue
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = begin + len(whole)
            fresh += [_entry(**orjson.loads(line)) for line in whole.splitlines()]
        self.entries += fresh
        self.commits += sum(map(is_commit, fresh))
        return self.entries

    def forget(self) -> None:
        """Drop the lines read so far: an hour of mixtures writes half a gigabyte of them."""
        self.look()
        self.entries.clear()


def is_commit(entry: Entry) -> bool:
    """Return whether a writer's commit was acknowledged."""
    return entry.step is Step.COMMIT and entry.phase is Phase.DONE


def is_fenced(entry: Entry) -> bool:
    """Return whether a writer was fenced by a newer one with its transactional id."""
    return entry.phase is Phase.FAILED and str(entry.fields.get("detail")).startswith("Fenced")


def _entry(at: float, who: str, pid: int, step: str, phase: str, **fields: Any) -> Entry:
    return Entry(at, who, pid, Step(step), Phase(phase), fields)


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of a writer: its time, and the writer's pid."""

    at: float
    pid: int


def first_commit(
    entries: Iterable[Entry], after: float, partitions: Collection[int] | None = None, without: Collection[int] = ()
) -> float | None:
    """Return when the first commit after ``after`` was, in ``partitions`` (None: any), but not by ``without``."""
    commits = (entry for entry in entries if entry.at > after and is_commit(entry) and entry.pid not in without)
    times = (entry.at for entry in commits if partitions is None or entry.fields["partition"] in partitions)
    return min(times, default=None)


def recoveries(entries: Iterable[Entry], kills: Iterable[Kill]) -> list[float]:
    """Return the seconds from each kill to the next commit; kills with another one in between are left out."""
    moments = sorted(kill.at for kill in kills)
    times: list[float | None] = [None] * len(moments)
    for entry in filter(is_commit, entries):
        if (latest := bisect_left(moments, entry.at) - 1) >= 0:
            times[latest] = min(times[latest] or math.inf, entry.at - moments[latest])
    return [took for took in times if took is not None]


def stalls(entries: Iterable[Entry], kills: Collection[Kill]) -> list[float]:
    """Return how long each kill held readers of its open ranges back; kills before another one are left out."""
    moments = sorted(kill.at for kill in kills)
    held: dict[tuple[Kill, int, int], float] = {
        (kill, *place): math.inf for kill, places in _open(entries, kills).items() for place in places.items()
    }
    for entry in entries:
        if entry.step is not Step.READ or not held:
            continue
        for kill, partition, start in held:
            place = kill, partition, start
            received = ((source, offset + count) for _, source, offset, count in entry.fields.get("runs", ()))
            if kill.at < entry.at < held[place] and any(s == partition and end > start for s, end in received):
                held[place] = entry.at
    seconds = []
    for kill in kills:
        last = max((read for (by, *_), read in held.items() if by == kill and read < math.inf), default=None)
        if last is not None and not any(kill.at < moment < last for moment in moments):
            seconds.append(last - kill.at)
    return seconds


def open_ranges(entries: Iterable[Entry], kill: Kill) -> dict[int, int]:
    """Return the input partitions in which the killed process had an open transaction, with the range's start."""
    return _open(entries, [kill]).get(kill, {})


def _open(entries: Iterable[Entry], kills: Iterable[Kill]) -> dict[Kill, dict[int, int]]:
    begun: dict[Kill, dict[int, int]] = {kill: {} for kill in kills}
    by_pid: dict[int, list[Kill]] = {}  # within an hour, pids may be reused
    for kill in begun:
        by_pid.setdefault(kill.pid, []).append(kill)
    for entry in entries:
        for kill in by_pid.get(entry.pid, ()):
            if entry.at > kill.at:
                continue
            if entry.step is Step.BEGIN and entry.phase is Phase.DONE:
                begun[kill][entry.fields["partition"]] = entry.fields["start"]
            elif entry.step in {Step.COMMIT, Step.ABORT} and entry.phase is Phase.DONE:
                begun[kill].pop(entry.fields["partition"], None)
    return begun
