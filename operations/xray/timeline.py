"""What the logs looked like at an earlier time, from their transactions' steps; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from brew.cluster import OffsetBatch
from brew.journal import Entry, Phase, Step
from operations.record_status import effective_commits
from operations.xray.model import Bounds, Run, Strip, Timeline

_EVENT_STEPS = {Step.FENCE, Step.BEGIN, Step.FLUSH, Step.SEND_OFFSETS, Step.COMMIT, Step.ABORT}
_CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at `[start, until)` of an input partition; ``wrote_ms``: its flush, or its last entry before one."""

    topic: str
    partition: int
    start: int
    until: int
    pid: int
    began_ms: int
    wrote_ms: int = 0
    flushed: bool = False
    last_ms: int = 0
    last: str = ""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A step for display; ``crash`` marks the last journal entry of an attempt."""

    at_ms: int
    pid: int
    name: str
    partition: int
    start: int
    until: int
    crash: bool = False


def read(lines: Iterable[Entry]) -> tuple[list[Attempt], list[TimelineEvent]]:
    """Return attempts in order and events by time; an attempt without an end has crashed, or is still running."""
    current: dict[tuple[int, str, int], Attempt] = {}
    done: list[Attempt] = []
    events: list[TimelineEvent] = []
    for line in lines:
        place = line.fields
        if line.step is Step.READ or not {"topic", "partition", "start", "until"} <= place.keys():
            continue
        key, at_ms = (line.pid, str(place["topic"]), int(place["partition"])), int(line.at * 1000)
        before = current.get(key)
        if before is not None and line.step is Step.FENCE and line.phase is Phase.INTENT:
            done.append(before)
            before = None
        attempt = before or Attempt(*key[1:], place["start"], place["until"], line.pid, at_ms)
        current[key] = _next(attempt, line, at_ms)
        if (name := _name(line)) is not None:
            events.append(_timeline_event(attempt, name, at_ms, crash=name == _CRASHED))
        if line.step is Step.OUTCOME:
            done.append(current.pop(key))
    events += [_timeline_event(a, f"no entry after {a.last}", a.last_ms, crash=True) for a in current.values()]
    return [*done, *current.values()], sorted(events, key=lambda event: event.at_ms)


def _next(attempt: Attempt, line: Entry, at_ms: int) -> Attempt:
    later = replace(attempt, last_ms=at_ms, last=f"{line.step} ({line.phase})")
    if attempt.flushed:
        return later
    return replace(later, wrote_ms=at_ms, flushed=(line.step, line.phase) == (Step.FLUSH, Phase.DONE))


def _name(line: Entry) -> str | None:
    if line.step is Step.OUTCOME:
        return str(line.fields.get("status", Step.OUTCOME))
    if line.phase is Phase.FAILED:
        return f"{line.step} failed"
    return str(line.step) if line.phase is Phase.DONE and line.step in _EVENT_STEPS else None


def _timeline_event(attempt: Attempt, name: str, at_ms: int, *, crash: bool) -> TimelineEvent:
    return TimelineEvent(at_ms, attempt.pid, name, attempt.partition, attempt.start, attempt.until, crash)


MOST_FRAMES = 120
Positions = Mapping[int, Sequence[tuple[int, int]]]
"""Input partition -> (ms, committed offset) in the order in which they took effect."""


def assign_write_times(runs: Sequence[Run], now_ms: int, attempts: Iterable[Attempt] = ()) -> None:
    """
    Set a write time for every run that is consistent with the log's order.

    A batch carries its producer's time, which may be the much older source record's; markers carry the broker's. So a
    batch is not older than the previous marker, nor newer than the next one; a journal's flush is the best source.
    """
    by_source: defaultdict[tuple[str, int], list[Attempt]] = defaultdict(list)
    for attempt in sorted(attempts, key=lambda attempt: attempt.began_ms):
        by_source[attempt.topic, attempt.partition].append(attempt)
    lowest = 0
    for run in runs:
        if run.kind.marker:
            run.written_ms = lowest = max(lowest, run.written_ms)
        else:
            flushed = _flushed(run, by_source)
            run.written_ms = max(lowest, run.written_ms if flushed is None else flushed)
    highest = now_ms
    for run in reversed(runs):
        if run.kind.marker:
            highest = run.written_ms
        else:
            run.written_ms = min(run.written_ms, highest, highest if run.ended_ms is None else run.ended_ms)


def _flushed(run: Run, by_source: Mapping[tuple[str, int], Sequence[Attempt]]) -> int | None:
    """Return when this run's attempt flushed it: the last attempt at its source that began before the run ended."""
    if run.first is None:
        return None
    for attempt in reversed(by_source.get((run.first.topic, run.first.partition), ())):
        inside = attempt.start <= run.first.offset < attempt.until
        if inside and (run.ended_ms is None or attempt.began_ms <= run.ended_ms):
            return attempt.wrote_ms
    return None


def timeline(
    strips: Sequence[Strip],
    positions: Positions,
    events: Sequence[TimelineEvent],
    input_topic: str,
    now_ms: int,
    most: int = MOST_FRAMES,
) -> Timeline:
    """Return at most ``most`` moments: all of them if there are no more, else every n-th, and each crash."""
    runs = [run for strip in strips for run in strip.runs]
    times = {now_ms, *(run.written_ms for run in runs), *(run.ended_ms for run in runs if run.ended_ms is not None)}
    times.update(at_ms for commits in positions.values() for at_ms, _ in commits)
    times.update(event.at_ms for event in events)
    times.discard(0)  # a record without a timestamp is there from the beginning
    moments = _thinned(sorted(times), {event.at_ms for event in events if event.crash}, most)
    empty = Timeline(moments, ())
    bounds = tuple(tuple(_bounds(strip, empty, positions if strip.topic == input_topic else {})) for strip in strips)
    return Timeline(moments, bounds)


def _thinned(times: Sequence[int], kept: set[int], most: int) -> tuple[int, ...]:
    if len(times) <= most:
        return tuple(times)
    step = (len(times) - 1) / (most - 1)
    chosen = {times[round(index * step)] for index in range(most)}
    return tuple(sorted(chosen | set(sorted(kept & set(times))[-most:])))


def _bounds(strip: Strip, line: Timeline, positions: Positions) -> Iterator[Bounds]:
    """Yield the bounds at each moment; the last ones are the brokers' own answer."""
    count = len(line.moments)
    ends, lowest_open = [strip.start] * count, [strip.until] * count
    for run in strip.runs:
        written, ended = line.written(run), line.ended(run)
        if written < count:
            ends[written] = max(ends[written], run.end)
        for index in range(written, min(ended, count)):
            lowest_open[index] = min(lowest_open[index], run.start)
    committed = list(positions.get(strip.partition, ()))
    end, group, upcoming = strip.start, None, 0
    for index, moment in enumerate(line.moments[:-1]):
        end = max(end, ends[index])
        while upcoming < len(committed) and committed[upcoming][0] <= moment:
            group = committed[upcoming][1]
            upcoming += 1
        yield Bounds(min(lowest_open[index], end), end, group)
    yield Bounds(strip.log.last_stable, strip.log.end, strip.group)


def committed_positions(batches: Iterable[OffsetBatch]) -> Positions:
    positions: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for batch, commits in effective_commits(batches):
        for commit in commits:
            if commit.until is not None:
                positions[commit.partition].append((batch.raw.max_timestamp, commit.until))
    return positions


@dataclass(frozen=True, slots=True)
class Xray:
    """``roles`` maps topics to roles such as `input`; ``unavailable`` are sentences on what could not be read."""

    strips: tuple[Strip, ...]
    line: Timeline
    roles: dict[str, str]
    group: str
    bootstrap: str
    taken_ms: int
    events: tuple[TimelineEvent, ...] = ()
    unavailable: tuple[str, ...] = ()

    def role(self, strip: Strip) -> str:
        return self.roles.get(strip.topic, strip.topic)

    def by_partition(self) -> dict[int, list[int]]:
        """Return partition -> indices of its strips, so that input and output are stacked."""
        strips_by: dict[int, list[int]] = {}
        for index, strip in enumerate(self.strips):
            strips_by.setdefault(strip.partition, []).append(index)
        return dict(sorted(strips_by.items()))
