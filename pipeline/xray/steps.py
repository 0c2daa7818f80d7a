"""A run's journal as attempts and steps to tell, with the crashes that it shows by what is missing; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from protocol.journal import Entry, Phase, Step

_TOLD = {Step.FENCE, Step.BEGIN, Step.FLUSH, Step.SEND_OFFSETS, Step.COMMIT, Step.ABORT}
_CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """
    One attempt at the range `[start, until)` of an input partition.

    ``wrote_ms`` is when its flush was through; without a flush, its last sign of life.
    """

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
class Told:
    """A step for people; ``crash`` marks the last sign of life of an attempt."""

    at_ms: int
    pid: int
    name: str
    partition: int
    start: int
    until: int
    crash: bool = False


def read(lines: Iterable[Entry]) -> tuple[list[Attempt], list[Told]]:
    """
    Attempts as they began, and what to tell of them, by time.

    An attempt that its process neither closed nor outlived has crashed after its last line, or is still at work: the
    journal can't tell these two apart.
    """
    current: dict[tuple[int, str, int], Attempt] = {}
    done: list[Attempt] = []
    told: list[Told] = []
    for line in lines:
        place = line.fields
        if line.step is Step.READ or not {"topic", "partition", "start", "until"} <= place.keys():
            continue
        key, at_ms = (line.pid, str(place["topic"]), int(place["partition"])), int(line.at * 1000)
        before = current.get(key)
        if line.step is Step.FENCE and line.phase is Phase.INTENT:
            if before is not None:
                done.append(before)
            before = None
        attempt = before or Attempt(*key[1:], place["start"], place["until"], line.pid, at_ms)
        current[key] = _next(attempt, line, at_ms)
        name = _name(line)
        if name is not None:
            told.append(_tell(attempt, name, at_ms, crash=name == _CRASHED))
        if line.step is Step.OUTCOME:
            done.append(current.pop(key))
    for attempt in current.values():
        done.append(attempt)
        told.append(_tell(attempt, f"no sign of life after {attempt.last}", attempt.last_ms, crash=True))
    return done, sorted(told, key=lambda one: one.at_ms)


def _next(attempt: Attempt, line: Entry, at_ms: int) -> Attempt:
    found = replace(attempt, last_ms=at_ms, last=f"{line.step} ({line.phase})")
    if attempt.flushed:
        return found
    return replace(found, wrote_ms=at_ms, flushed=(line.step, line.phase) == (Step.FLUSH, Phase.DONE))


def _name(line: Entry) -> str | None:
    if line.step is Step.OUTCOME:
        return str(line.fields.get("status", Step.OUTCOME))
    if line.phase is Phase.FAILED:
        return f"{line.step} failed"
    return str(line.step) if line.phase is Phase.DONE and line.step in _TOLD else None


def _tell(attempt: Attempt, name: str, at_ms: int, *, crash: bool) -> Told:
    return Told(at_ms, attempt.pid, name, attempt.partition, attempt.start, attempt.until, crash)
