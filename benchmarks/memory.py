"""Memory of the machine, made quick before a run that counts."""

from __future__ import annotations

import mmap
import time

import psutil

_MOST = 4 * 2**30


def touch(most: int = _MOST) -> float:
    """
    Touch as many bytes of free memory, half of what is available at most, and free them: microseconds for a page.

    A virtual machine may hand free memory back to its host (free page reporting). Then each page that a process, or a
    log's first write, touches for the first time costs 20 microseconds instead of one, whatever is measured.
    """
    size: int = max(mmap.PAGESIZE, min(most, psutil.virtual_memory().available // 2))
    with mmap.mmap(-1, size) as memory:
        began = time.monotonic()
        for at in range(0, size, mmap.PAGESIZE):
            memory[at] = 1
        return 1e6 * (time.monotonic() - began) / -(-size // mmap.PAGESIZE)
