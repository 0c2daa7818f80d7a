"""
The journal of one process: each step before and after it happens, for the checker to compare with the logs.

One JSON object per line, each written with one `write` call, so a SIGKILL loses at most the line being written. A
writer's lines have ``step`` (see `Step`), ``phase`` (see `Phase`) and the range; a reader's lines have the received
records, as runs.
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

from brew.errors import UsageError, encodable

SUFFIX = ".jsonl"


class Step(enum.StrEnum):
    """A step of a writer; `OUTCOME` ends an attempt at one range."""

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
    """Each step has an intent line, then a done or failed line; after a kill only the intent is there."""

    INTENT = "intent"
    DONE = "done"
    FAILED = "failed"


class Entry(NamedTuple):
    """One line: wall-clock time in seconds, the program that wrote it, and its fields."""

    at: float
    who: str
    pid: int
    step: Step
    phase: Phase
    fields: dict[str, Any]


class Run(NamedTuple):
    """
    ``length`` consecutive records: offsets and source offsets both rise by one.

    ``source_partition`` and ``source_offset`` are -1 for a record without readable source headers.
    """

    offset: int
    source_partition: int
    source_offset: int
    length: int


def check_folder(folder: str, setting: str) -> None:
    """
    Create the folder of a journal.

    Raises:
        UsageError: this process can't write there.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        why = "" if os.access(folder, os.W_OK | os.X_OK) else "permission denied"
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
    if why:
        raise UsageError(f"{setting} is {folder!r}, which can't be written: {why}; name a directory")


class Journal:
    """Appends to this process's file in ``folder``; must not be used across a fork."""

    def __init__(self, folder: Path, who: str) -> None:
        self._who, self._pid = who, os.getpid()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{who}-{socket.gethostname()}-{self._pid}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, step: Step, phase: Phase = Phase.DONE, **fields: Any) -> None:
        """Write one line to the operating system; a lone surrogate in a text, as of a file's name, is replaced."""
        fields = {name: encodable(value) if isinstance(value, str) else value for name, value in fields.items()}
        line = {"at": time.time(), "who": self._who, "pid": self._pid, "step": step, "phase": phase, **fields}
        os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        os.close(self._file)


def entries(folder: Path) -> Iterator[Entry]:
    """Yield all complete lines of all journals in ``folder``, file by file; a line cut off by a kill is skipped."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                fields = orjson.loads(line)
                header = (fields.pop("at"), fields.pop("who"), fields.pop("pid"))
                yield Entry(*header, Step(fields.pop("step")), Phase(fields.pop("phase")), fields)


def runs(records: Iterable[tuple[int, int, int]]) -> list[Run]:
    """Fold (offset, source partition, source offset) tuples, in reading order, into runs."""
    runs_: list[Run] = []
    for offset, partition, source in records:
        if runs_:
            last = runs_[-1]
            follows = (last.offset + last.length, last.source_partition, last.source_offset + last.length)
            if source >= 0 and (offset, partition, source) == follows:
                runs_[-1] = last._replace(length=last.length + 1)
                continue
        runs_.append(Run(offset, partition, source, 1))
    return runs_


def require_journals(folder: Path, setting: str) -> None:
    """
    Check that a directory, which ``setting`` named, has journals.

    Raises:
        UsageError: it has none, so that a comparison with it would find nothing.
    """
    if not any(folder.glob(f"*{SUFFIX}")):
        raise UsageError(
            f"{setting} is {str(folder)!r}, which has no journal (*{SUFFIX} file) to compare with; "
            "name the directory that --journal of the runs and readers named, or leave the option out"
        )


def journal_entries(folder: Path, setting: str) -> Iterator[Entry]:
    """
    Yield the entries of a directory of journals, which ``setting`` named.

    Raises:
        UsageError: a complete line is not an entry: another program's file, or a damaged one.
    """
    try:
        yield from entries(folder)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{setting} is {str(folder)!r}: a line of its *{SUFFIX} files is not a journal entry ({error}); name a "
            "directory that holds only journals, or move the damaged file away"
        ) from error
