"""A program as users run it: started, read line by line, awaited, killed with all its descendants."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import click
import psutil

from brew.cli import exit_code_of
from brew.deadline import Deadline

from .pages import ROOT
from .waiting import until

__all__ = ["ROOT", "Ran", "Running", "call_program", "terminate_all", "until"]


@dataclass(frozen=True, slots=True)
class Ran:
    """A program's exit code and output."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON lines of a pipeline's stdout."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    @property
    def notes(self) -> list[str]:
        return [event["text"] for event in self.events if event["event"] == "note"]

    @property
    def ranges(self) -> list[dict[str, Any]]:
        """The outcome of every range, in the order in which the cycles were reported."""
        return [one for event in self.events if event["event"] == "cycle" for one in event["ranges"]]

    def statuses(self) -> set[str]:
        return {one["status"] for one in self.ranges}


class Running:
    """A background program whose lines can be awaited; all its descendants are gone when the block ends."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        self._began = time.monotonic()
        self._err = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._err,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_line(self, wanted: Callable[[str], bool], *, seconds: float = 60.0, times: int = 1) -> str:
        """Return the wanted line (its ``times``-th occurrence); an AssertionError shows all lines otherwise."""
        deadline = Deadline(seconds)
        with self._news:
            while True:
                found = [line for line in self._lines if wanted(line)]
                if len(found) >= times:
                    return found[times - 1]
                if self._ended or deadline.expired():
                    why = "the program ended" if self._ended else f"{seconds:g} s are over"
                    raise AssertionError(f"{why}, and the line did not come:\n{self.output()}")
                self._news.wait(deadline.remaining_s())

    def await_cycle(self, *, seconds: float = 120.0, times: int = 1) -> str:
        """Wait for the first cycle's line: Spark is up and transactions are running."""
        return self.await_line(lambda line: '"event":"cycle"' in line, seconds=seconds, times=times)

    def has_printed(self, wanted: re.Pattern[str]) -> bool:
        """Return whether a line so far matches."""
        with self._news:
            return any(wanted.search(line) for line in self._lines)

    def output(self) -> str:
        """Return all output so far."""
        return "".join(self._lines) + self._errors()

    def _errors(self) -> str:
        """Return stderr so far, read by position, since a seek would move the program's own write position too."""
        output = os.pread(self._err.fileno(), os.fstat(self._err.fileno()).st_size, 0)
        return output.decode(errors="replace")

    def process_tree(self) -> list[psutil.Process]:
        """Return the process and all its descendants: the driver's JVM, executors, Python workers."""
        try:
            head = psutil.Process(self.pid)
            return [head, *head.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def processes_with(self, word: str) -> list[psutil.Process]:
        """Return the processes with that word in their command line; those that are just ending are left out."""
        found = []
        for member in self.process_tree():
            with contextlib.suppress(psutil.Error):
                if word in " ".join(member.cmdline()):
                    found.append(member)
        return found

    def kill_tree(self) -> None:
        """Send SIGKILL to every process of the tree, the root first, as in a power failure."""
        for member in self.process_tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()

    def signal_tree(self, number: signal.Signals) -> None:
        for member in self.process_tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)

    def terminate(self) -> None:
        """Send SIGTERM to the root process alone."""
        self._process.terminate()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float = 90.0) -> Ran:
        """Wait for the end; an AssertionError shows the lines if it does not end in time."""
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end within {seconds:g} s; it said:\n{self.output()}") from None
        took = self.seconds
        self._reader.join(10)
        return Ran(code, "".join(self._lines), self._errors(), took)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_tree()
        self._process.wait(10)
        self._reader.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._err.close()


def terminate_all(*programs: Running, seconds: float = 20.0) -> list[int]:
    """Send SIGTERM to each program; return their exit codes once all have ended."""
    for program in programs:
        program.terminate()
    return [program.wait(seconds).code for program in programs]


def call_program(program: click.Command, name: str, *words: str) -> tuple[int, str, str]:
    """Run a command inside this process; return its exit code, stdout and stderr."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = exit_code_of(program, name, list(words))
    return code, stdout.getvalue(), stderr.getvalue()
