"""
pyspark's worker, as a task's function sees it: whether it got all of its rows, and what each task costs.

A task may fail in Java while its Python function is at work: a row that can't be computed, shuffle files that are lost,
a job that is cancelled, an executor that dies. Spark closes the connection then, and the reader of Arrow's stream takes
that for the end of the rows. Whoever commits what it got would commit a part. What comes behind the rows tells: Spark
writes a mark there, and behind a broken connection there is nothing.
"""

from __future__ import annotations

import contextlib
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
    Call it first in a task's function, which costs 40 ms less then, and its rows come 40 ms earlier.

    Spark writes rows behind a short message. Its side of the connection holds them back until that is acknowledged
    (Nagle), and the kernel on our side would wait with that (delayed acknowledgment).
    """
    _exclude_modules_from_collection()
    with contextlib.suppress(AttributeError, OSError, Fatal):  # not on Linux, not over TCP, not in a task
        connection = socket.socket(fileno=os.dup(_input().fileno()))
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


@functools.cache
def _exclude_modules_from_collection() -> None:
    """Exclude loaded modules from garbage collection, which pyspark runs after each task; once per worker."""
    gc.collect()
    gc.freeze()


def check_all_rows_came() -> None:
    """
    Call it in a task's thread when its rows have come to an end, before anything is committed for them.

    Raises:
        Abortable: there would have been more; Spark has ended this task, and runs it again or fails the job.
        Fatal: this pyspark has its input elsewhere, so nobody can tell.
    """
    if TaskContext.get() is None:
        return  # not in a task: the rows come from the caller
    ahead = _input().peek(len(_END))
    # The mark may come in pieces, and its first byte shows it: nothing else is written there.
    if not ahead or not _END.startswith(ahead[: len(_END)]):
        raise Abortable("read: Spark ended this task before it had sent all of its rows; nothing of them is committed")


def _input() -> BufferedReader:
    frame = sys._getframe()  # noqa: SLF001 - pyspark hands its input to nobody
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
