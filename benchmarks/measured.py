"""
Run a command, wait for all its descendants, and report the resources they used: `measured.py REPORT COMMAND...`.

On Linux this process adopts orphans, so that the kernel's sum (`RUSAGE_CHILDREN`) includes the shortest-lived worker.
The tree is killed at the end of standard input, so it does not outlive the program that started us.
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

_PR_SET_CHILD_SUBREAPER, _ORPHANS_S, _POLL_S = 36, 5.0, 0.01


def adopt_orphans() -> bool:
    """Become the parent of every orphaned descendant; return False if the system does not support it."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def kill_descendants() -> int:
    """Send SIGKILL to all descendants until none is left; return how many were killed."""
    killed: set[int] = set()
    for _ in range(100):
        if not (below := psutil.Process().children(recursive=True)):
            break
        for process in below:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
            killed.add(process.pid)
        psutil.wait_procs(below, timeout=0.05)
    return len(killed)


def _kill_at_end_of_input() -> None:
    while os.read(0, 1024):  # not sys.stdin, whose lock would abort the interpreter on exit
        pass
    kill_descendants()
    os._exit(3)


def _reap_until_alone() -> bool:
    """Reap children as they end, for some seconds; return True if none is left."""
    end = time.monotonic() + _ORPHANS_S
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
    code = subprocess.Popen(command, stdin=subprocess.DEVNULL).wait()
    usage = {"exit_code": code, "wall_s": time.monotonic() - began, "orphans_adopted": adopted, "killed_after_end": 0}
    if not _reap_until_alone():
        usage["killed_after_end"] = kill_descendants()
        _reap_until_alone()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    usage["cpu_s"] = used.ru_utime + used.ru_stime
    fresh = report.with_suffix(".new")
    fresh.write_text(json.dumps(usage))
    fresh.replace(report)


if __name__ == "__main__":
    main()
