"""The freezer, on a process whose parent dies meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from harness.waiting import until

from proof.campaign.freezer import Freezer, frozen

_CHILD = "import sys; print('ready'); sys.stdin.readline(); print('alive')"
# The child has a process group of its own in its parent's session, as PySpark's daemon of workers has.
_PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-u", "-c", {_CHILD!r}],
                         stdin=int(sys.argv[1]), stdout=int(sys.argv[2]), process_group=0)
print(child.pid, flush=True)
sys.stdin.read()
"""


class Family:
    """A parent that dies when told, and its child, which answers a line when it is alive."""

    def __init__(self) -> None:
        child_in, self._to_child = os.pipe()
        from_child, child_out = os.pipe()
        self._parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT, str(child_in), str(child_out)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[child_in, child_out],
        )
        os.close(child_in)
        os.close(child_out)
        self._from_child = os.fdopen(from_child)
        assert self._parent.stdout is not None
        self.child = psutil.Process(int(self._parent.stdout.readline()))
        assert self._from_child.readline() == "ready\n"

    def kill_parent(self) -> None:
        self._parent.kill()
        self._parent.wait(10)

    def answer(self) -> str:
        with suppress(BrokenPipeError):
            os.write(self._to_child, b"\n")
        return self._from_child.readline()

    def close(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.child.kill()
        self._parent.kill()
        self._parent.communicate(timeout=10)
        os.close(self._to_child)
        self._from_child.close()


@contextmanager
def family() -> Iterator[Family]:
    made = Family()
    try:
        yield made
    finally:
        made.close()


def test_a_process_that_sigstop_holds_is_ended_with_its_parent() -> None:
    """The reason for the freezer: POSIX ends an orphaned process group that has stopped members."""
    with family() as one:
        one.child.suspend()
        one.kill_parent()
        assert one.answer() == ""


def test_a_frozen_process_outlives_its_parent_and_goes_on_when_released() -> None:
    """Root may use the freezer; for anybody else it says that it can't be used."""
    with family() as one:
        one.child.suspend()
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                Freezer()
            return
        with frozen([one.child]) as freezer:
            one.kill_parent()
            freezer.release([one.child])
            assert one.answer() == "alive\n"


def test_what_is_still_frozen_goes_on_at_the_end_and_no_cgroup_is_left() -> None:
    if os.geteuid() != 0:
        return
    with family() as one:
        with frozen([one.child]):
            one.kill_parent()
        assert one.answer() == "alive\n"
    until(lambda: not [*Path("/sys/fs/cgroup").glob("*/brew-*")], "no cgroup of the freezer", 5)
