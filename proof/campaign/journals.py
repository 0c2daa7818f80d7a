"""Follow the journals of a cell while they are written, and read them again when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson

from protocol.journal import SUFFIX, Entry, Phase, Step, entries


class Journals:
    """
    The lines of a folder: `look` takes what has come since, and iterating reads all of them from disk, file by file.

    ``entries`` are the lines since `forget` was last called, ``commits`` counts the acknowledged ones of all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[Entry] = []
        self.commits = 0
        self._read: dict[Path, int] = {}

    def __iter__(self) -> Iterator[Entry]:
        return entries(self.folder)

    def look(self) -> list[Entry]:
        """The whole lines that are new, each file in its order."""
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
            fresh += [_entry(orjson.loads(line)) for line in whole.splitlines()]
        self.entries += fresh
        self.commits += sum(map(is_commit, fresh))
        return fresh

    def forget(self) -> None:
        """Keep none of the lines so far: an hour of mixtures writes half a gigabyte of them."""
        self.look()
        self.entries.clear()


def is_commit(entry: Entry) -> bool:
    """A writer was told that its transaction is committed."""
    return entry.step is Step.COMMIT and entry.phase is Phase.DONE


def _entry(found: dict[str, object]) -> Entry:
    at, who, pid = found.pop("at"), found.pop("who"), found.pop("pid")
    return Entry(at, who, pid, Step(str(found.pop("step"))), Phase(str(found.pop("phase"))), found)  # type: ignore[arg-type]
