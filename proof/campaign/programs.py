"""Processes that a campaign starts, and a log of what they parse."""

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
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import orjson
import psutil

from brew import config_file
from brew.connection import CLIENT_CONFIG
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded
from brew.names import ExitCode

ROOT = Path(__file__).resolve().parents[2]
_POLL_S, _ABORT_S, _LAST_LINES = 0.002, 3.0, 6
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT}
_SIZE = 16
_SUFFIX = ".parsed"
_SETTINGS = (
    *("ALSO_OUTPUT", "CRASH_", "EFFECT_URL", "FOLLOW", "PROBE_", "PROFILES_", "SEED_", "SHARE", "STAND_BY", "STORE"),
    *("TIERS", "TRANSFORM"),
)
"""Beginnings of variables that are for runs of the user's own; a cell passes options."""


class ProgramFailedError(BrewError):
    """A program of the campaign itself failed; says nothing about the pipeline."""


class Program:
    """A process that ends with the campaign; a zombie until `kill`, so that neither its pid nor its group is reused."""

    def __init__(
        self, command: Sequence[str], name: str, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        kept = {n: v for n, v in os.environ.items() if not n.startswith((*_SETTINGS, CLIENT_CONFIG))}
        more = {"PYTHONFAULTHANDLER": "1", config_file.VARIABLE: os.devnull, **(environment or {})}
        # With it, the kernel kills the process when the campaign dies.
        prefix = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("ab") as out, self._err.open("ab") as err:
            self._process = subprocess.Popen(
                [*prefix, *command],
                cwd=ROOT,
                env=kept | more,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.ended_at: float | None = None
        self._code: int | None = None
        self._aborted = self._reaped = False
        self._all_pids = {self._process.pid}

    @property
    def pid(self) -> int:
        return self._process.pid

    def all_pids(self) -> set[int]:
        """Return the pids of the process and of all descendants found now or by earlier calls."""
        with contextlib.suppress(psutil.Error):
            self._all_pids |= {child.pid for child in psutil.Process(self.pid).children(recursive=True)}
        return self._all_pids

    def code(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        if self._code is None and not self._reaped:
            found = None
            with contextlib.suppress(ChildProcessError):  # `kill` of another thread took it, and notes the code at once
                found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._ended(found.si_status if found.si_code == os.CLD_EXITED else -found.si_status)
        return self._code

    def _ended(self, code: int) -> None:
        if self._code is None:
            self._code, self.ended_at = code, time.time()

    @property
    def crash(self) -> str | None:
        """The signal of a crash of its own (SIGSEGV and the like, which the campaign never sends), or None."""
        code = self.code() or 0
        if -code not in _FAULTS or (self._aborted and -code == signal.SIGABRT):
            return None
        return f"{self.name} ended with {signal.Signals(-code).name}: {self.last_output()}"

    def wait(self, deadline: Deadline) -> int:
        """Wait for the process; return its exit code, or raise `DeadlineExceeded` if it is still running."""
        while (code := self.code()) is None:
            deadline.check(f"the end of {self.name}")
            time.sleep(_POLL_S)
        return code

    def done(self, deadline: Deadline) -> str:
        """Wait until the process has succeeded; return its output, or raise `ProgramFailedError` if it failed."""
        if self.wait(deadline) != 0:
            raise ProgramFailedError(f"{self.ending}; see {self._err}")
        return self.printed()

    def report(self, deadline: Deadline, *also: ExitCode) -> dict[str, Any]:
        """Return the JSON printed; raise `ProgramFailedError` without it, or unless the code is 0, 1 or in ``also``."""
        code = self.wait(deadline)
        try:
            report: dict[str, Any] = json.loads(self.printed())
        except ValueError:
            report = {}
        if not report or code not in {ExitCode.DONE, ExitCode.VIOLATION, *also}:
            raise ProgramFailedError(f"{self.name} ended with {code} and gave no report: {self.last_output()}")
        return report

    @property
    def ending(self) -> str:
        """Its name, exit code and last words, for messages."""
        return f"{self.name} ended with {self.code()}: {self.last_output()}"

    def printed(self) -> str:
        return self._out.read_text(errors="replace")

    def said(self) -> str:
        return self.printed() + self._err.read_text(errors="replace")

    def last_output(self) -> str:
        lines = self._err.read_text(errors="replace").splitlines() or self.printed().splitlines()
        return " / ".join(lines[-_LAST_LINES:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group, children included. Does nothing after `kill`."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def abort(self) -> None:
        """Send SIGABRT: Python dumps the stack of each thread, and ends."""
        self._aborted = True
        self.signal(signal.SIGABRT)
        self.signal(signal.SIGCONT)
        with contextlib.suppress(DeadlineExceeded):
            self.wait(Deadline(_ABORT_S))
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the whole process group, and release its pid."""
        self.signal(signal.SIGKILL)
        if not self._reaped:
            self._ended(self._process.wait())
            self._reaped = True

    def process_kill(self) -> None:
        """Send SIGKILL to the process alone; its group is killed when the cell ends."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait(Deadline(_ABORT_S))


class Background(threading.Thread):
    """A daemon thread that runs for the duration of a block, whose end sets ``over``."""

    def __init__(self, name: str, join_s: float | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self.over, self._join_s = threading.Event(), join_s

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join(self._join_s)


class Programs:
    """All programs of a cell; exiting the block kills those that still run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment: dict[str, str] = {}
        """Added to the campaign's environment for all programs started from now on."""
        self._started: list[Program] = []

    def start(self, name: str, *command: str) -> Program:
        program = Program(command, name, self.folder, self.environment)
        self._started.append(program)
        return program

    def python(self, name: str, *words: str) -> Program:
        return self.start(name, sys.executable, "-m", *words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        for program in self._started:
            program.kill()


def repeated(option: str, values: Mapping[str, object]) -> list[str]:
    return [word for name, value in values.items() for word in (option, f"{name}={value}")]


def digest(document: bytes) -> bytes:
    return hashlib.blake2b(document, digest_size=_SIZE).digest()


@contextlib.contextmanager
def watching(programs: Programs, folder: Path) -> Iterator[None]:
    """Within the block, record the documents parsed by every Python process that is started, and by its children."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(f"from {__name__} import watch\nwatch({str(folder)!r})\n")
    before = programs.environment
    programs.environment = {**before, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    try:
        yield
    finally:
        programs.environment = before


def parsed(folder: Path) -> set[bytes]:
    """Return the digests of all documents parsed, in any process."""
    written = [file.read_bytes() for file in folder.glob(f"*{_SUFFIX}")]
    return {digests[start : start + _SIZE] for digests in written for start in range(0, len(digests), _SIZE)}


def watch(folder: str) -> None:
    """Record each document before a parser gets it, each in one unbuffered write; called when Python starts."""

    @functools.cache
    def file(pid: int) -> int:  # keyed by pid, because a process may fork
        return os.open(Path(folder) / f"{pid}{_SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def watched(loads: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(document: Any, **options: Any) -> Any:
            text = document.encode("utf-8", "surrogatepass") if isinstance(document, str) else bytes(document)
            os.write(file(os.getpid()), digest(text))
            return loads(document, **options)

        return recorded

    orjson.loads, json.loads = watched(orjson.loads), watched(json.loads)
