"""A data directory with an end: a small file system in memory, which can be made full and given room again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from brew.errors import Refused

_COMMAND_S = 10
_TRIES = 50


def limit(directory: Path, size_mb: int) -> None:
    """Mount ``size_mb`` MiB at ``directory``; one that is mounted already gets that size, and keeps its data."""
    directory.mkdir(parents=True, exist_ok=True)
    if directory.resolve() in _mounted():
        _mount("-o", f"remount,size={size_mb}m", str(directory))
    else:
        _mount("-t", "tmpfs", "-o", f"size={size_mb}m,mode=0755", "brew-sandbox", str(directory))


def fill(directory: Path) -> int:
    """Take all free room away, so that the next write finds none; return the bytes in use."""
    if directory.resolve() not in _mounted():
        raise Refused(f"{directory} is no file system of its own; `up --data-size-mb 512` as root makes one")
    for _ in range(_TRIES):
        used = shutil.disk_usage(directory).used
        # Whoever writes meanwhile makes the size too small, which the kernel refuses.
        with contextlib.suppress(Refused):
            _mount("-o", f"remount,size={used}", str(directory))
            return used
    raise Refused(f"{directory} fills faster than it can be shrunk; pause its broker, and fill again")


def release(below: Path) -> None:
    """Unmount everything below a sandbox's directory; its data is gone with that."""
    root = below.resolve()
    for place in sorted(_mounted(), reverse=True):
        if root in place.parents:
            _run("umount", "--lazy", str(place))


def allowed() -> bool:
    """Whether this process may mount."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def _mounted() -> set[Path]:
    """Where file systems in memory are mounted, as the kernel tells; it writes blanks as octal numbers."""
    lines = Path("/proc/self/mounts").read_text().splitlines() if Path("/proc/self/mounts").exists() else []
    rows = [line.split(" ") for line in lines]
    return {Path(row[1].encode().decode("unicode_escape")) for row in rows if row[2] == "tmpfs"}


def _mount(*words: str) -> None:
    _run("mount", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    if done.returncode != 0:
        raise Refused(f"`{' '.join(words)}` failed: {done.stderr.strip()}; leave --data-size-mb out")
