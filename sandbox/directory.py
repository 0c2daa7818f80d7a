"""What all commands on one sandbox directory share: the option, and the lock."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

DIRECTORY = ".sandbox"

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=DIRECTORY,
    show_default=True,
    help="Where the servers keep state, logs and data.",
)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Let two commands on one directory go one after the other."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
