"""
Hold processes still with the kernel's cgroup freezer, for faults in which their parents die meanwhile.

SIGSTOP can't do that: when a process group with stopped members loses its parent, the kernel ends it with SIGHUP and
SIGCONT (POSIX, "orphaned process groups"), so the stopped worker would never wake up as a zombie.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")
_PROCS = "cgroup.procs"


class Freezer:
    """A cgroup of frozen processes; needs root, or a delegated cgroup."""

    def __init__(self) -> None:
        root = _root()
        if root is None:
            raise PermissionError("no cgroup freezer may be used here")
        self._root, self._group = root, root / f"brew-{uuid.uuid4().hex[:12]}"
        self._group.mkdir()

    def freeze(self, stopped: Iterable[psutil.Process]) -> None:
        """Freeze processes; one that SIGSTOP had stopped is frozen instead."""
        held = [*stopped]
        for process in held:
            with contextlib.suppress(ProcessLookupError):
                (self._group / _PROCS).write_text(str(process.pid))
        self._set(frozen=True)
        for process in held:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def release(self, processes: Iterable[psutil.Process]) -> None:
        """Let some of them go on."""
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                (self._root / _PROCS).write_text(str(process.pid))

    def close(self) -> None:
        """Let all go on, and remove the cgroup."""
        self._set(frozen=False)
        for pid in (self._group / _PROCS).read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (self._root / _PROCS).write_text(pid)
        self._group.rmdir()

    def _set(self, *, frozen: bool) -> None:
        unified = self._group / "cgroup.freeze"
        if unified.exists():
            unified.write_text("1" if frozen else "0")
        else:
            (self._group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def _root() -> Path | None:
    for folder in (_CGROUPS / "freezer", _CGROUPS / "unified", _CGROUPS):
        if (folder / _PROCS).exists() and os.access(folder, os.W_OK):
            return folder
    return None


@contextlib.contextmanager
def frozen(stopped: Iterable[psutil.Process]) -> Iterator[Freezer]:
    """
    Freeze processes for a while.

    Raises:
        PermissionError: this user may not use the freezer.
    """
    freezer = Freezer()
    try:
        freezer.freeze(stopped)
        yield freezer
    finally:
        freezer.close()
