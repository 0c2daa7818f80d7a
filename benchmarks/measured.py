"""
Run one command, wait for all that it started, and write down what it used: `measured.py REPORT COMMAND...`.

On Linux this process adopts every orphan below it, so each descendant is waited for by its parent or by us, and the
kernel's own sum (`RUSAGE_CHILDREN`) misses no worker, however short it lived. Elsewhere orphans go uncounted.
The tree ends with the program that started us: the end of standard input kills it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_S = 5.0
_POLL_S = 0.01


def adopt_orphans() -> bool:
    """Make this process the parent of every descendant whose own parent ends; False where the system can't."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def kill_descendants() -> int:
    """SIGKILL to all below us, until none is left; returns how many were hit."""
    killed: set[int] = set()
    for _ in range(100):
        below = [p for p in psutil.Process().children(recursive=True) if p.pid not in killed]
        if not below:
            break
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            killed.add(process.pid)
    return len(killed)


def _kill_at_end_of_input() -> None:
    while os.read(0, 1024):  # not sys.stdin: its lock would abort the interpreter at its end
        pass
    kill_descendants()
    os._exit(3)


def _reap_until_alone(seconds: float) -> bool:
    """Collect children as they end; True when none is left."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            time.sleep(_POLL_S)
    return False


def main() -> None:
    report, command = Path(sys.argv[1]), sys.argv[2:]
    adopted = adopt_orphans()
    threading.Thread(target=_kill_at_end_of_input, daemon=True).start()
    began = time.monotonic()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    code = child.wait()
    wall = time.monotonic() - began
    left = 0
    if not _reap_until_alone(_ORPHANS_S):
        left = kill_descendants()
        _reap_until_alone(_ORPHANS_S)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    usage = {
        "exit_code": code,
        "wall_s": wall,
        "cpu_s": used.ru_utime + used.ru_stime,
        "orphans_adopted": adopted,
        "killed_after_end": left,
    }
    fresh = report.with_suffix(".new")
    fresh.write_text(json.dumps(usage))
    fresh.replace(report)


if __name__ == "__main__":
    main()
