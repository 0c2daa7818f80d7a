"""PostgreSQL on this machine: Debian's server in a directory of ours."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import psycopg

from protocol.deadline import Deadline
from protocol.errors import Refused
from sandbox.ports import HOST
from sandbox.store import Store, is_root, missing

ROLE = "brew"
_DEBIAN = Path("/usr/lib/postgresql")
_ANSWER_S = 2
# fsync stays on: what was committed survives power loss, and what we measure is what a user gets.
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "log_min_messages": "warning",
    "dynamic_shared_memory_type": "mmap",  # beside its data: a killed one leaves nothing in /dev/shm
}


class Postgres(Store):
    """
    One server with the role and the database `brew`, no password, on the loopback device only.

    The server refuses to run as root; started by root it runs as `postgres`, or `nobody` where that is missing.
    """

    name: ClassVar[str] = "postgres"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT  # "fast": sessions are ended, not waited for

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@{HOST}:{self.state.port}/{ROLE}"

    def command(self) -> Sequence[str]:
        settings = {**_SETTINGS, **self.state.properties}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [*_as_user(), str(_program("postgres")), "-D", str(self.data), "-p", str(self.state.port), *options]

    def prepare(self, deadline: Deadline) -> None:
        if (self.data / "PG_VERSION").exists():
            return
        initdb = _program("initdb")
        shutil.rmtree(self.data, ignore_errors=True)  # of a start that was cut short
        self.data.mkdir(mode=0o700)
        if is_root():
            account = _account()
            _require_way(self.data, account)
            os.chown(self.data, account.pw_uid, account.pw_gid)
        program = [*_as_user(), str(initdb), "-D", str(self.data), "-U", ROLE]
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        done = subprocess.run(
            [*program, *options],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=max(0.001, deadline.remaining_s()),
            check=False,
        )
        if done.returncode != 0:
            raise Refused(f"initdb in {self.data} failed: {done.stderr.strip() or done.stdout.strip()}")

    def answers(self) -> bool:
        try:
            with psycopg.connect(self._admin_url, connect_timeout=_ANSWER_S):
                return True
        except psycopg.OperationalError:
            return False

    def ready(self) -> None:
        with psycopg.connect(self._admin_url, connect_timeout=_ANSWER_S, autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [ROLE]).fetchone() is None:
                connection.execute(f"CREATE DATABASE {ROLE}")

    @property
    def _admin_url(self) -> str:
        return f"postgresql://{ROLE}@{HOST}:{self.state.port}/postgres"


def _program(name: str) -> Path:
    """One of the server's programs: Debian keeps them off PATH, newest version first."""
    versions = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]), reverse=True)
    if versions:
        return versions[0]
    if found := shutil.which(name):
        return Path(found)
    raise missing("PostgreSQL")


def _account() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise Refused("PostgreSQL refuses to run as root, and there is neither a user `postgres` nor `nobody`; add one")


def _as_user() -> list[str]:
    if not is_root():
        return []
    account = _account()
    if (setpriv := shutil.which("setpriv")) is None:
        raise Refused("PostgreSQL refuses to run as root, and `setpriv` (util-linux) is missing; install it")
    return [setpriv, f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups", "--"]


def _require_way(data: Path, account: pwd.struct_passwd) -> None:
    """Raise `Refused` when the server's user can't get to its data: folders made by `mktemp` are closed to others."""
    for folder in data.parents:
        found = folder.stat()
        if not (found.st_mode & 0o001 or (found.st_uid == account.pw_uid and found.st_mode & 0o100)):
            raise Refused(
                f"PostgreSQL runs as {account.pw_name!r}, who can't enter {folder}; "
                f"`chmod o+x {folder}`, or choose another folder with --dir"
            )
