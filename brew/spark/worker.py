"""
pyspark's worker, from within a task: whether the task got all of its rows, and what each task costs.

A task may fail in Java while its Python function runs: a row can't be computed, shuffle files are lost, a job is
cancelled, an executor dies. Spark then closes the connection, and the reader of Arrow's stream takes that for the end
of the rows. Committing what was received would commit only a part. The bytes after the rows show the difference: Spark
writes an end mark there, and a broken connection leaves nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import socket
import struct
import sys
from io import BufferedReader

import pyspark
from pyspark import TaskContext
from pyspark.serializers import SpecialLengths

from brew.errors import Abortable, Fatal

_END = struct.pack("!i", SpecialLengths.END_OF_STREAM)
_WORKER, _MAIN, _INPUT = "pyspark.worker", "main", "infile"


def tune_worker() -> None:
    """
    Speed up a task; called first in its function, it saves 40 ms, and the rows come 40 ms earlier.

    Spark writes rows after a short message. Its side of the connection holds them back until that message is
    acknowledged (Nagle), and the kernel on our side would delay the acknowledgment.
    """
    _exclude_modules_from_collection()
    _keep_freed_memory()
    with contextlib.suppress(AttributeError, OSError, Fatal):  # not on Linux, not over TCP, not in a task
        connection = socket.socket(fileno=os.dup(_input().fileno()))
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@functools.cache
def _exclude_modules_from_collection() -> None:
    """Exclude loaded modules from garbage collection, which pyspark runs after each task; once per worker."""
    gc.collect()
    gc.freeze()


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGE_BYTES = 128 * 1024 * 1024, 32 * 1024 * 1024
"""glibc's names and largest values (mallopt): memory kept after it is freed, and the size from which it is mapped."""


@functools.cache
def _keep_freed_memory() -> None:
    """
    Let malloc reuse the memory of one record batch for the next; once per worker.

    By default glibc maps each block of 128 KiB and more by itself, and its pages are faulted in again: a third of the
    CPU time of building and sending record batches.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def check_all_rows_came() -> None:
    """
    Check that a task's input ended normally; call it in the task's thread before anything is committed for the rows.

    Raises:
        Abortable: there were more rows; Spark has ended this task, and repeats it or fails the job.
        Fatal: this pyspark keeps its input elsewhere, so it is impossible to tell.
    """
    if TaskContext.get() is None:
        return  # not in a task: the rows come from the caller
    ahead = _input().peek(len(_END))
    # The mark may arrive in pieces, but its first byte identifies it: nothing else is written there.
    if not ahead or not _END.startswith(ahead[: len(_END)]):
        raise Abortable("read: Spark ended this task before it had sent all of its rows; nothing of them is committed")


def _input() -> BufferedReader:
    frame = sys._getframe()  # noqa: SLF001 - pyspark does not expose its input
    while frame is not None:
        if frame.f_code.co_name == _MAIN and frame.f_globals.get("__name__") == _WORKER:
            found = frame.f_locals.get(_INPUT)
            if isinstance(found, BufferedReader):
                return found
        frame = frame.f_back  # type: ignore[assignment]
    raise Fatal(
        f"read: pyspark {pyspark.__version__} keeps a task's input elsewhere than 4.2, so a task can't tell whether it "
        "got all of its rows; use the version that is pinned"
    )
