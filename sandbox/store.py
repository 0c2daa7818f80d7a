"""Servers other than Kafka: PostgreSQL, Redis and a Schema Registry."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil
import psycopg
import redis

from brew.deadline import Deadline
from brew.errors import Refused
from brew.jvm import dependencies
from brew.jvm.dependencies import Part
from sandbox.process import HOST, Identity, ServerProcess, await_start, free, read_state, require_free, write_state

# For making the data, and again for the start: no bound for a busy machine (idle: 2 s for PostgreSQL, 9 s for the
# registry), since a server that ends instead is noticed at once.
_START_S = 120.0
_STOP_S, _ANSWER_S = 15.0, 2


@dataclass(frozen=True, slots=True)
class State:
    """What the next command needs to know about a server; not running if it has no identity."""

    port: int
    properties: Mapping[str, str] = field(default_factory=dict)
    identity: Identity | None = None

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> State:
        return cls(kept["port"], kept["properties"], Identity.parse(kept["identity"]))


class Store:
    """One server in one directory, with a state file; subclasses have its data, command line and health check."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, directory: Path, state: State) -> None:
        self.directory, self.state = directory, state
        self.home = directory / self.name
        self.data, self.log = self.home / "data", self.home / "server.log"
        self._state_file = directory / f"{self.name}.json"
        self._started: ServerProcess | None = None

    @classmethod
    def start(
        cls,
        directory: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        ends_with_parent: bool = True,
    ) -> Self:
        """Start the server with its data, unless it runs, on ``port``, its own or a free one; `Refused` if it fails."""
        cls.fetch()
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        kept_store = cls.open(directory)
        kept = kept_store.state if kept_store else State(port or free(1)[0])
        if kept.identity is None or not kept.identity.alive():
            kept = replace(kept, port=port or kept.port, identity=None)
        if properties is not None:
            kept = replace(kept, properties=dict(properties))
        store = cls(directory, kept)
        if store.running():
            store._finish_start()
        else:
            store._launch(ends_with_parent=ends_with_parent)
        return store

    @classmethod
    def open(cls, directory: Path) -> Self | None:
        """Return the server in ``directory``, running or not, or None if there never was one."""
        directory = directory.resolve()
        state = read_state(directory / f"{cls.name}.json", State.of, "server", "remove it if none runs")
        return None if state is None else cls(directory, state)

    @classmethod
    def fetch(cls) -> None:
        """Install the program if the machine has none; a download has its own deadline."""

    @property
    def url(self) -> str:
        raise NotImplementedError

    def command(self) -> Sequence[str]:
        """Return the server's command line; it stays in the foreground."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Create the data directory, if it is new."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Return whether a client gets an answer now."""
        raise NotImplementedError

    def ready(self, deadline: Deadline) -> None:
        """Called after a successful start."""

    def running(self) -> bool:
        return self.state.identity is not None and self.state.identity.alive()

    def document(self) -> dict[str, object]:
        running = self.running()
        pid = self.state.identity.pid if self.state.identity and running else None
        return {"url": self.url, "running": running, "process": pid, "log": str(self.log)}

    def stop(self) -> bool:
        """Shut the server down cleanly, keeping its data; return False if it was not running."""
        identity, was = self.state.identity, self.running()
        if identity is not None and was:
            identity.send_all(signal.SIGCONT)  # a paused child does not end, and its parent waits for it
            identity.send(self.stop_signal)
            if not identity.wait(Deadline(_STOP_S)):
                self.kill()
        self._forget()
        return was

    def kill(self) -> None:
        """Send SIGKILL to the server and all its children, as if its machine lost power."""
        if (identity := self.state.identity) is not None:
            # Stopped first: a server that replaces lost children would start new ones, which the list would miss.
            identity.send(signal.SIGSTOP)
            # Wait until the pid is free: PostgreSQL checks it on start.
            psutil.wait_procs(identity.send_all(signal.SIGKILL), timeout=_STOP_S)
        self._forget()

    def pause(self) -> None:
        """Send SIGSTOP to the server and its children: connections stay open, nothing responds."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self, *, ends_with_parent: bool = True) -> None:
        """Start again, with the same port and data; a running server is shut down cleanly first."""
        self.stop()
        self._launch(ends_with_parent=ends_with_parent)

    def close(self, *, wipe: bool = False) -> None:
        """Stop the server; with ``wipe``, remove its files too, without waiting for a clean shutdown."""
        if wipe:
            self.kill()
            shutil.rmtree(self.home, ignore_errors=True)
            self._state_file.unlink(missing_ok=True)
        else:
            self.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(wipe=True)

    def _signal(self, number: signal.Signals) -> None:
        if self.state.identity is None or not self.state.identity.send_all(number):
            raise Refused(f"{self.name} is not running")

    def _launch(self, *, ends_with_parent: bool) -> None:
        require_free(self.state.port)
        self.home.mkdir(parents=True, exist_ok=True)
        self.prepare()
        self._started = ServerProcess(self.command(), self.log, ends_with_parent=ends_with_parent)
        self._write(replace(self.state, identity=self._started.identity))
        try:
            self._finish_start()
        except BaseException:
            self.kill()
            raise

    def _finish_start(self) -> None:
        """Wait until the server is ready; the command that launched it may have been killed before."""
        name, deadline = f"{self.name} on port {self.state.port}", Deadline(_START_S)
        await_start(name, self.answers, self.running, self.log, deadline)
        self.ready(deadline)

    def _forget(self) -> None:
        if self._started is not None:
            self._started.ended()
            self._started = None
        if self._state_file.exists():
            self._write(replace(self.state, identity=None))

    def _write(self, state: State) -> None:
        self.state = state
        write_state(self._state_file, {**asdict(state), "properties": dict(state.properties)})


ROLE = "brew"
_DEBIAN = Path("/usr/lib/postgresql")

# fsync stays on: committed data survives power loss, and measurements match what users get.
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "log_min_messages": "warning",
    "dynamic_shared_memory_type": "mmap",  # in its data directory: a killed server leaves nothing in /dev/shm
}


class Postgres(Store):
    """A role and a database `brew`, without password, on loopback; from root, it runs as `postgres` or `nobody`."""

    name: ClassVar[str] = "postgres"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": sessions are terminated, not waited for

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@{HOST}:{self.state.port}/{ROLE}"

    def command(self) -> Sequence[str]:
        settings = {**_SETTINGS, **self.state.properties}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*_as_user(), _program("postgres"), "-D", str(self.data), "-p", str(self.state.port), *options]

    def prepare(self) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        # initdb writes PG_VERSION first: made under its own name, an interrupted start would leave a broken server.
        initdb, fresh = _program("initdb"), self.home / "data.new"
        for left in (fresh, self.data):
            shutil.rmtree(left, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        if os.geteuid() == 0:
            account = _account()
            self.home.chmod(0o711)  # root's umask may let no one else in
            _require_way(fresh, account)
            os.chown(fresh, account.pw_uid, account.pw_gid)
        command = [*_as_user(), initdb, "-D", str(fresh), "-U", ROLE]
        command += ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        how: dict[str, Any] = {"cwd": "/", "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        try:
            done = subprocess.run(command, timeout=_START_S, check=False, **how)
        except subprocess.TimeoutExpired as error:
            late = f"initdb in {fresh} did not end within {_START_S:g} s"
            raise Refused(f"{late}; try again when the machine is less busy") from error
        if done.returncode != 0:
            raise Refused(f"initdb in {fresh} failed: {done.stderr.strip() or done.stdout.strip()}")
        fresh.rename(self.data)

    def answers(self) -> bool:
        try:
            psycopg.connect(self._admin_url, connect_timeout=_ANSWER_S).close()
        except psycopg.OperationalError:
            return False
        return True

    def ready(self, deadline: Deadline) -> None:
        patience_s = max(_ANSWER_S, int(deadline.remaining_s()))
        with psycopg.connect(self._admin_url, connect_timeout=patience_s, autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [ROLE]).fetchone() is None:
                connection.execute(f"CREATE DATABASE {ROLE}")

    @property
    def _admin_url(self) -> str:
        return f"postgresql://{ROLE}@{HOST}:{self.state.port}/postgres"


def _program(name: str, what: str = "PostgreSQL") -> str:
    """Return the path of a server program: Debian keeps PostgreSQL's off PATH; the newest version comes first."""
    versions = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]), reverse=True)
    if (program := versions[0] if versions else shutil.which(name)) is None:
        raise Refused(f"{what} is not installed here; `make setup-stores` installs Debian's package, or put it on PATH")
    return str(program)


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Refused("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`; add one")


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    account = _account()
    if (setpriv := shutil.which("setpriv")) is None:
        raise Refused("PostgreSQL refuses to run as root, and `setpriv` (util-linux) is missing; install it")
    return [setpriv, f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]


def _require_way(data: Path, account: pwd.struct_passwd) -> None:
    """Raise `Refused` if the server's user can't reach its data: folders made by `mktemp` are closed to others."""
    for folder in data.parents:
        status = folder.stat()
        if not (status.st_mode & 0o001 or (status.st_uid == account.pw_uid and status.st_mode & 0o100)):
            raise Refused(
                f"PostgreSQL runs as {account.pw_name!r}, who can't enter {folder}; "
                f"`chmod o+x {folder}`, or choose another folder with --dir"
            )


# Requirements of a claim: every write is on disk before it is acknowledged, and no key is evicted.
_REDIS_SETTINGS = {
    "bind": HOST,
    "protected-mode": "no",
    "daemonize": "no",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
}


class Redis(Store):
    """One server, without password, on the loopback device only."""

    name: ClassVar[str] = "redis"

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.state.port}/0"

    def command(self) -> Sequence[str]:
        program = _program("redis-server", "Redis")
        settings = {**_REDIS_SETTINGS, "port": str(self.state.port), **self.state.properties}
        # A value of several words (`replicaof HOST PORT`) is passed as several arguments, an empty value as one.
        words = [[f"--{name}", *(value.split() or [""])] for name, value in settings.items()]
        return [program, "--dir", str(self.data), *(word for group in words for word in group)]

    def prepare(self) -> None:
        self.data.mkdir(exist_ok=True)

    def answers(self) -> bool:
        client = redis.Redis.from_url(self.url, socket_timeout=_ANSWER_S, socket_connect_timeout=_ANSWER_S)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


_API = "/apis/ccompat/v7"
_RUNNER = "*-runner.jar"
_HEAP_MB = 384


class Registry(Store):
    """One registry without authentication, in memory; the first start downloads the application (142 MB)."""

    name: ClassVar[str] = "registry"

    @classmethod
    def fetch(cls) -> None:
        dependencies.fetch(Part.REGISTRY, dependencies.home())

    @property
    def url(self) -> str:
        """The registry's address, as `brew.formats` and Confluent's clients expect it."""
        return f"http://{HOST}:{self.state.port}{_API}"

    def command(self) -> Sequence[str]:
        runner = next(iter(self.data.glob(_RUNNER)))
        settings = {"quarkus.http.host": HOST, "quarkus.http.port": str(self.state.port), **self.state.properties}
        flags = [f"-Xmx{_HEAP_MB}m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        options = [f"-D{name}={value}" for name, value in settings.items()]
        return [dependencies.java(), *flags, *options, "-jar", str(runner)]

    def prepare(self) -> None:
        if any(self.data.glob(_RUNNER)):
            return
        shutil.rmtree(self.data, ignore_errors=True)  # from an interrupted start
        fresh = Path(f"{self.data}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        (archive,) = dependencies.jars(Part.REGISTRY, dependencies.home())
        try:
            shutil.unpack_archive(archive, fresh)  # its checksum was verified
            fresh.rename(self.data)
        except (OSError, shutil.ReadError) as error:
            raise Refused(f"{archive} can't be unpacked into {self.data}: {error}; free space there") from error

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=_ANSWER_S) as answer:  # noqa: S310 - our own server
                return bool(answer.status == 200)  # noqa: PLR2004 - OK
        except OSError:
            return False
