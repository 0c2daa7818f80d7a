"""PostgreSQL and Redis for one cell, worked by the sandbox's commands; gone when the cell is over, however it ends."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from proof.campaign.cluster import guard
from proof.campaign.programs import ROOT
from protocol.errors import Refused

_COMMAND_S = 90.0
POSTGRES, REDIS = "postgres", "redis"


class Servers:
    """
    Servers in a folder of their own, entered as a block.

    Raises (every command): Refused, with what the sandbox said; where a server is not installed that is the command
    that installs it.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="brew-stores-"))
        self.folder.chmod(0o711)  # PostgreSQL runs as another user than root
        self._guard = guard(self.folder, self._command("down", "--wipe"))

    def up(self, name: str, **settings: str) -> str:
        """Start a server with the data it has; its URL."""
        words = [word for pair in settings.items() for word in ("--property", "=".join(pair).replace("_", "-"))]
        self._stores("up", name, *words)
        return self.url(name)

    def url(self, name: str) -> str:
        done = self._run("status", "--json")  # exits with 3 while a server is down, and tells all the same
        told: dict[str, Any] = json.loads(done.stdout)
        return str(told[name]["url"])

    def kill(self, name: str) -> None:
        """SIGKILL to the server and all its children."""
        self._stores("kill", name)

    def restart(self, name: str) -> None:
        self._stores("restart", name)

    def backup(self, name: str) -> Path:
        """Stop the server, copy its data, start it again; the copy."""
        copy = self.folder / f"{name}-backup"
        self._stores("down", name)
        _copy(self.folder / name, copy)
        self._stores("up", name)
        return copy

    def restore(self, name: str, copy: Path) -> None:
        """Put an older copy in place of what the server knows now."""
        self._stores("down", name)
        shutil.rmtree(self.folder / name)
        _copy(copy, self.folder / name)
        self._stores("up", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Refused, subprocess.TimeoutExpired):
            self._stores("down", "--wipe")
        shutil.rmtree(self.folder, ignore_errors=True)
        self._guard.communicate(b"ended\n")

    def _stores(self, *words: str) -> None:
        done = self._run(*words)
        if done.returncode != 0:
            raise Refused(f"`sandbox stores {' '.join(words)}` failed: {done.stderr.strip()}")

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = self._command(*words)
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_COMMAND_S, check=False)

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "sandbox", "stores", *words, "--dir", str(self.folder)]


def _copy(source: Path, target: Path) -> None:
    """With owners and rights, which PostgreSQL insists on."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True, timeout=_COMMAND_S)  # noqa: S607 - coreutils
