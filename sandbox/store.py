"""A server beside Kafka, on this machine and without containers: start, kill, pause, stop; PostgreSQL and Redis are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil

from protocol.deadline import Deadline
from protocol.errors import Refused
from sandbox.ports import free, require_free
from sandbox.process import Identity, Started

_START_S = 40.0
_STOP_S = 15.0
_POLL_S = 0.02
_LAST_LINES = 8


@dataclass(frozen=True, slots=True)
class State:
    """What the next command has to know of a server; without identity it isn't running."""

    port: int
    properties: Mapping[str, str] = field(default_factory=dict)
    identity: Identity | None = None


class Store:
    """
    One server in one directory; the state file there is the truth between commands.

    A subclass says how its data is prepared, what its command is, and when it answers.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, directory: Path, state: State) -> None:
        self.directory = directory
        self.state = state
        self._started: Started | None = None

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        leashed: bool = True,
    ) -> Self:
        """
        Start the server of ``directory`` with the data it has; one that runs is left alone.

        Without ``port`` a new server gets a free one and an old one its own; ``properties`` are the server's own
        settings. A leashed server ends with this program.

        Raises:
            Refused: it is not installed, its port is taken, or it did not start.
        """
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        found = cls.open(directory)
        kept = found.state if found else State(port or free(1)[0])
        if kept.identity is None or not kept.identity.alive():
            kept = replace(kept, port=port or kept.port, identity=None)
        if properties is not None:
            kept = replace(kept, properties=dict(properties))
        store = cls(directory, kept)
        if not store.running():
            store._launch(leashed=leashed)
        return store

    @classmethod
    def open(cls, directory: Path) -> Self | None:
        """The server that ``directory`` holds, running or not; None when there never was one."""
        directory = directory.resolve()
        file = directory / f"{cls.name}.json"
        if not file.exists():
            return None
        try:
            kept = json.loads(file.read_text())
            identity = Identity(**kept["identity"]) if kept["identity"] else None
            return cls(directory, State(kept["port"], kept["properties"], identity))
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{file} is not readable as a server's state ({error}); remove it if none runs") from error

    # What a subclass says.

    @property
    def url(self) -> str:
        """Where clients connect."""
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        """The server's own command line; it stays in the foreground."""
        raise NotImplementedError

    def prepare(self, deadline: Deadline) -> None:
        """Make the data directory, where it is new."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether a client gets an answer now."""
        raise NotImplementedError

    def ready(self) -> None:
        """What is done once a start has succeeded."""

    # What all servers do alike.

    @property
    def home(self) -> Path:
        return self.directory / self.name

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    def running(self) -> bool:
        return self.state.identity is not None and self.state.identity.alive()

    def stop(self) -> bool:
        """End the server in good order, data kept; False when it was not running."""
        identity, was = self.state.identity, self.running()
        if identity is not None and was:
            identity.send(signal.SIGCONT)
            identity.send(self.stop_signal)
            if not identity.wait(Deadline(_STOP_S)):
                self.kill()
        self._forget()
        return was

    def kill(self) -> None:
        """SIGKILL to the server and all its children, as when its machine loses power."""
        if self.state.identity is not None:
            # Stopped first: one that heals from a lost child starts new ones, which the look at its family would miss.
            self.state.identity.send(signal.SIGSTOP)
        family = self._family()
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(
            family, timeout=_STOP_S
        )  # until nobody has that number: PostgreSQL looks at it when it starts
        self._forget()

    def pause(self) -> None:
        """SIGSTOP to the server and its children: connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to a paused server."""
        self._signal(signal.SIGCONT)

    def restart(self, *, leashed: bool = True) -> None:
        """Start again, on port and data; what runs is ended in order before."""
        self.stop()
        self._launch(leashed=leashed)

    def close(self, *, wipe: bool = False) -> None:
        """End the server; with ``wipe`` remove its files too, and don't wait for good order before that."""
        if wipe:
            self.kill()
            shutil.rmtree(self.home, ignore_errors=True)
            (self.directory / f"{self.name}.json").unlink(missing_ok=True)
        else:
            self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(wipe=True)

    def _family(self) -> list[psutil.Process]:
        process = self.state.identity.process() if self.state.identity else None
        if process is None:
            return []
        try:
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def _signal(self, number: signal.Signals) -> None:
        family = self._family()
        if not family:
            raise Refused(f"{self.name} is not running")
        for process in family:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue

    def _launch(self, *, leashed: bool) -> None:
        require_free(self.state.port)
        deadline = Deadline(_START_S)
        self.home.mkdir(parents=True, exist_ok=True)
        self.prepare(deadline)
        self._started = Started(self.command(), self.log, leashed=leashed)
        self._write(replace(self.state, identity=self._started.identity))
        try:
            self._await_answer(deadline)
            self.ready()
        except BaseException:
            self.kill()
            raise

    def _await_answer(self, deadline: Deadline) -> None:
        while not self.answers():
            if not self.running():
                raise self._not_started("it ended while starting")
            if deadline.expired():
                raise self._not_started(f"no answer within {deadline.budget_s:g} s")
            time.sleep(_POLL_S)

    def _not_started(self, why: str) -> Refused:
        lines = self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        last = "\n".join(f"  {line}" for line in lines)
        return Refused(f"{self.name} on port {self.state.port} did not start: {why}; last lines of {self.log}:\n{last}")

    def _forget(self) -> None:
        if self._started is not None:
            self._started.ended()
            self._started = None
        if (self.directory / f"{self.name}.json").exists():
            self._write(replace(self.state, identity=None))

    def _write(self, state: State) -> None:
        self.state = state
        file = self.directory / f"{self.name}.json"
        kept = {"port": state.port, "properties": dict(state.properties)}
        kept["identity"] = asdict(state.identity) if state.identity else None
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(kept, indent=2) + "\n")
        fresh.replace(file)


def missing(what: str) -> Refused:
    """The server's program is nowhere to be found."""
    return Refused(f"{what} is not installed here; `make setup-stores` installs Debian's package, or put it on PATH")


def is_root() -> bool:
    return os.geteuid() == 0
