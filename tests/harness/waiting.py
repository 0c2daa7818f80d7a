"""Waits with a deadline: for conditions that must be polled, and for the ends of processes."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import psutil

from brew.cluster import ENDING
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka.transactions_admin import open_transactions_admin

POLL_S = 0.02

_Found = TypeVar("_Found")


def until(condition: Callable[[], _Found], what: str, seconds: float = 30.0) -> _Found:
    """
    Poll until the condition returns something, and return it: for what the broker or the system never announce.

    At most half of the time is spent in the condition; an AssertionError names ``what`` if it is not met in time.
    """
    deadline = Deadline(seconds)
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        assert not deadline.expired(), f"{what}: not within {seconds:g} s"
        time.sleep(max(POLL_S, min(time.monotonic() - began, deadline.remaining_s())))


def await_ends(processes: Iterable[int], deadline: Deadline) -> None:
    """Wait until these processes have ended, including children not yet reaped, or until the deadline."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(process)
            try:
                poller = select.poll()
                poller.register(handle, select.POLLIN)
                poller.poll(deadline.remaining_s() * 1000)
            finally:
                os.close(handle)


def has_ended(process: int) -> bool:
    """Return whether it is gone or a zombie; it may disappear between two polls."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    return True


def markers_written(connection: Connection, topic: str) -> None:
    """Wait until ``topic`` shows what is decided: a commit is answered before its markers are written (KIP-98)."""
    with open_transactions_admin(connection, Deadline(20)) as coordinators:

        def written() -> bool:
            ending = [one for one in coordinators.ongoing() if one.state in ENDING]
            return topic not in {name for one in ending for name, _ in one.places}

        until(written, f"the markers of what is decided in {topic}", 15)
