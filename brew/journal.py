"""
The journal of one process: what it was about to do, and what came of it, for the checker to hold against the logs.

One JSON object a line, each written by one `write` call: a SIGKILL loses at most the line being written. Lines of a
writer carry ``step`` (see `Step`) and ``phase`` (see `Phase`) with the range; lines of a reader carry the records that
it was given, as runs.
"""

from __future__ import annotations

import enum
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

SUFFIX = ".jsonl"


class Step(enum.StrEnum):
    """What a writer does; `OUTCOME` closes an attempt at one range."""

    FENCE = "fence"
    LOCATE = "locate"
    BEGIN = "begin"
    FLUSH = "flush"
    SEND_OFFSETS = "send-offsets"
    COMMIT = "commit"
    ABORT = "abort"
    OUTCOME = "outcome"
    READ = "read"


class Phase(enum.StrEnum):
    """A step is announced, then it is done or has failed; a kill leaves the announcement alone."""

    INTENT = "intent"
    DONE = "done"
    FAILED = "failed"


class Entry(NamedTuple):
    """One line: wall-clock seconds, who wrote it, and its fields."""

    at: float
    who: str
    pid: int
    step: Step
    phase: Phase
    fields: dict[str, Any]


class Run(NamedTuple):
    """
    ``length`` records read one after another: offsets and source offsets both rise by one.

    ``source_partition`` and ``source_offset`` are -1 for a record without readable source headers.
    """

    offset: int
    source_partition: int
    source_offset: int
    length: int


class Journal:
    """Append to this process's file in ``folder``; opened by the process that writes, never carried over a fork."""

    def __init__(self, folder: Path, who: str) -> None:
        self._who, self._pid = who, os.getpid()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{who}-{socket.gethostname()}-{self._pid}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, step: Step, phase: Phase = Phase.DONE, **fields: Any) -> None:
        """Write one line and hand it to the kernel."""
        line = {"at": time.time(), "who": self._who, "pid": self._pid, "step": step, "phase": phase, **fields}
        os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        os.close(self._file)


def entries(folder: Path) -> Iterator[Entry]:
    """All whole lines of all journals in ``folder``, each file in its order; a line cut off by a kill is left out."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                found = orjson.loads(line)
                known = (found.pop("at"), found.pop("who"), found.pop("pid"))
                yield Entry(*known, Step(found.pop("step")), Phase(found.pop("phase")), found)


def runs(places: Iterable[tuple[int, int, int]]) -> list[Run]:
    """Fold (offset, source partition, source offset) in reading order into runs."""
    folded: list[Run] = []
    for offset, partition, source in places:
        if folded:
            last = folded[-1]
            follows = (last.offset + last.length, last.source_partition, last.source_offset + last.length)
            if source >= 0 and (offset, partition, source) == follows:
                folded[-1] = last._replace(length=last.length + 1)
                continue
        folded.append(Run(offset, partition, source, 1))
    return folded
