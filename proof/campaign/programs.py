"""Processes that a campaign starts, and what they parse."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import orjson
import psutil

from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded

ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.002
_LAST_LINES = 6
_ABORT_S = 3.0
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}


class ProgramFailedError(BrewError):
    """A program of the campaign itself failed; says nothing about the pipeline."""


class Program:
    """
    A running process; its output goes to files, and it ends with the campaign.

    One that has ended stays a zombie until `kill`: its number, which is also its group's, goes to no other process
    before that. On a machine that starts many processes numbers come again within minutes.
    """

    def __init__(
        self, command: Sequence[str], name: str, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                [*_kill_with_parent(), *command],
                cwd=ROOT,
                env={**os.environ, "PYTHONFAULTHANDLER": "1", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.ended_at: float | None = None
        self._code: int | None = None
        self._aborted = self._reaped = False
        self._family = {self._process.pid}

    @property
    def pid(self) -> int:
        return self._process.pid

    def family(self) -> set[int]:
        """Pids of it and of all that was found below it, now or when this was asked before."""
        with contextlib.suppress(psutil.Error):
            self._family |= {child.pid for child in psutil.Process(self.pid).children(recursive=True)}
        return self._family

    def code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None and not self._reaped:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._ended(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)
        return self._code

    def _ended(self, code: int) -> None:
        if self._code is None:
            self._code, self.ended_at = code, time.time()

    @property
    def crash(self) -> str | None:
        """The signal of a crash of its own (SIGSEGV and the like, which the campaign never sends); None without one."""
        code = self.code() or 0
        if -code not in _FAULTS or (self._aborted and -code == signal.SIGABRT):
            return None
        return f"{self.name} ended with {signal.Signals(-code).name}: {self.last_words()}"

    def wait(self, deadline: Deadline) -> int:
        """
        Its exit code.

        Raises:
            DeadlineExceeded: it runs on.
        """
        while (code := self.code()) is None:
            deadline.check(f"the end of {self.name}")
            time.sleep(_POLL_S)
        return code

    def done(self, deadline: Deadline) -> str:
        """
        What it printed, once it has ended well.

        Raises:
            ProgramFailedError: it ended badly.
        """
        if (code := self.wait(deadline)) != 0:
            raise ProgramFailedError(f"{self.name} ended with {code}: {self.last_words()}; look at {self._err}")
        return self.printed()

    def printed(self) -> str:
        return self._out.read_text(errors="replace")

    def said(self) -> str:
        """Its output on both streams."""
        return self.printed() + self._err.read_text(errors="replace")

    def last_words(self) -> str:
        lines = self._err.read_text(errors="replace").splitlines() or self.printed().splitlines()
        return " / ".join(lines[-_LAST_LINES:])

    def signal(self, number: signal.Signals) -> None:
        """To the whole group: a program may have children. Does nothing after `kill`."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def abort(self) -> None:
        """SIGABRT: Python writes down where each of its threads stands, and ends."""
        self._aborted = True
        self.signal(signal.SIGABRT)
        self.signal(signal.SIGCONT)
        with contextlib.suppress(DeadlineExceeded):
            self.wait(Deadline(_ABORT_S))
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole group, and its number is given back."""
        self.signal(signal.SIGKILL)
        if not self._reaped:
            self._ended(self._process.wait())
            self._reaped = True

    def process_kill(self) -> None:
        """SIGKILL to itself alone; its group is ended with the cell."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait(Deadline(_ABORT_S))


class Programs:
    """All programs of a cell; leaving the block kills what still runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        """On top of ours, for all that are started from now on."""
        self._started: list[Program] = []

    def start(self, name: str, *command: str) -> Program:
        program = Program(command, name, self.folder, self.environment)
        self._started.append(program)
        return program

    def running(self) -> list[Program]:
        return [program for program in self._started if program.code() is None]

    def python(self, name: str, *words: str) -> Program:
        """Start `python -m words...`."""
        return self.start(name, sys.executable, "-m", *words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all of them, with what they started."""
        for program in self._started:
            program.kill()


def _kill_with_parent() -> list[str]:
    """Words in front of a command, so that the kernel ends it when the campaign is killed."""
    return ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


def repeated(option: str, values: Mapping[str, object]) -> list[str]:
    """An option that is given once for each NAME=VALUE."""
    return [word for name, value in values.items() for word in (option, f"{name}={value}")]


_SIZE = 16
_SUFFIX = ".parsed"


def digest(document: bytes) -> bytes:
    """A 16-byte hash of a document."""
    return hashlib.blake2b(document, digest_size=_SIZE).digest()


@contextlib.contextmanager
def watching(programs: Programs, folder: Path) -> Iterator[None]:
    """A block: every Python process that is started in it writes down what it parses, and so do its children."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"from {__name__} import watch\nwatch({str(folder)!r})\n")
    before = programs.environment
    programs.environment = {**before, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    try:
        yield
    finally:
        programs.environment = before


def parsed(folder: Path) -> set[bytes]:
    """The digests of all documents that were parsed, in whichever process."""
    written = [file.read_bytes() for file in folder.glob(f"*{_SUFFIX}")]
    return {digests[start : start + _SIZE] for digests in written for start in range(0, len(digests), _SIZE)}


def watch(folder: str) -> None:
    """
    From now on each document is written down before a parser gets it; called as Python starts.

    One write for each, past all buffers: what a killed process parsed is known, too.
    """

    @functools.cache
    def file(pid: int) -> int:  # a process may fork
        return os.open(Path(folder) / f"{pid}{_SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def watched(loads: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(document: Any, **options: Any) -> Any:
            text = document.encode("utf-8", "surrogatepass") if isinstance(document, str) else bytes(document)
            os.write(file(os.getpid()), digest(text))
            return loads(document, **options)

        return recorded

    orjson.loads, json.loads = watched(orjson.loads), watched(json.loads)
