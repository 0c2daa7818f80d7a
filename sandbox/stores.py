"""PostgreSQL, Redis and a Schema Registry on this machine: commands to start, break, heal and stop them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from brew.cli import flag, repeatable, typed_option
from brew.errors import Refused, UsageError
from brew.names import ExitCode
from sandbox.process import locked
from sandbox.store import Postgres, Redis, Registry, Store

DIRECTORY = ".sandbox"

directory_option = typed_option(
    "--dir directory",
    click.Path(path_type=Path, file_okay=False),
    DIRECTORY,
    "Folder of the servers' state, logs and data.",
)


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Lock the directory, so that commands on it run one after another."""
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / "lock"):
        yield


def settings_of(properties: Sequence[str]) -> dict[str, str]:
    """Return the values of `--property`; `UsageError` if one is not of the form NAME=VALUE."""
    for text in properties:
        if "=" not in text:
            raise UsageError(f"--property {text!r}: give a setting as NAME=VALUE")
    return dict(text.split("=", 1) for text in properties)


STORES: dict[str, type[Store]] = {"postgres": Postgres, "redis": Redis, "registry": Registry}
USUAL = ("postgres", "redis")
_WIDE = 240  # columns without a terminal: a truncated URL can't be copied

_Command = Callable[..., None]
Server = tuple[str, tuple[Any, ...]]
"""A server's name for the output, and the arguments with which it is acted on."""

_names = click.argument("names", nargs=-1, type=click.Choice(list(STORES)))
_named = click.argument("names", nargs=-1, required=True, type=click.Choice(list(STORES)))


@click.group()
def stores() -> None:
    """
    Run PostgreSQL and Redis, in which the patterns of `python -m downstream` keep their effects.

    `make setup-stores` installs Debian's packages. `registry` is a Schema Registry in memory, for `brew.formats`; its
    first start fetches it (142 MB). Without names, `up` starts PostgreSQL and Redis; other commands apply to all
    servers that were started.

    Examples:
      python -m sandbox stores up                  both, on free ports, data kept
      python -m sandbox stores up postgres --port 5432
      python -m sandbox stores up registry --port 8081
      python -m sandbox stores status --json       with their URLs
      python -m sandbox stores kill postgres       break it: kill pause resume restart
      python -m sandbox stores down --wipe         stop and remove all data
    """


@stores.command()
@_names
@typed_option("--port", click.IntRange(0, 65_535), 0, "Port of the server; 0: a free one.")
@repeatable("--property properties", "Server setting; repeatable.", "NAME=VALUE")
@directory_option
def up(names: Sequence[str], port: int, properties: Sequence[str], directory: Path) -> None:
    """
    Start servers with the data they had; does nothing if they are running.

    Examples:
      python -m sandbox stores up
      python -m sandbox stores up postgres --port 5432 --property max_connections=50
    """
    more = settings_of(properties) or None
    if len(names) != 1 and (port or properties):
        raise UsageError("--port and --property apply to one server; name it")
    with exclusive(directory):
        for name in names or USUAL:
            store = STORES[name].start(directory, port=port or None, properties=more, ends_with_parent=False)
            click.echo(f"{name} is up at {store.url} ({store.log})")


@stores.command()
@_names
@flag("--wipe", "Also remove the data.")
@directory_option
def down(names: Sequence[str], directory: Path, *, wipe: bool) -> None:
    """
    Stop servers; does nothing if none is running.

    Examples:
      python -m sandbox stores down redis
      python -m sandbox stores down --wipe
    """
    if not directory.exists():
        click.echo("nothing is up")
        return
    with exclusive(directory):
        for name in names or [name for name, kind in STORES.items() if name in USUAL or kind.open(directory)]:
            store = STORES[name].open(directory)
            was = store is not None and store.running()
            if store is not None:
                store.close(wipe=wipe)
            click.echo(f"{name} is down" if was else f"{name} was not up")


@stores.command()
@flag("--json as_json", "Print one JSON document instead of text.")
@directory_option
def status(directory: Path, *, as_json: bool) -> None:
    """
    Show each server's state; exit code 3 unless all that were started are up.

    Example:
      python -m sandbox stores status --json
    """
    known = {store.name: store.document() for kind in STORES.values() if (store := kind.open(directory)) is not None}
    if as_json:
        click.echo(json.dumps(known))
    elif not known:
        click.echo(f"no store was ever started in {directory}")
    else:
        table = Table("store", "state", "process", box=None)
        table.add_column("url", no_wrap=True)  # to be copied
        table.add_column("log", overflow="fold")
        for name, about in known.items():
            state = "up" if about["running"] else "down"
            table.add_row(name, state, str(about["process"] or ""), str(about["url"]), str(about["log"]))
        Console(width=None if sys.stdout.isatty() else _WIDE).print(table)
    all_run = all(about["running"] for about in known.values())
    click.get_current_context().exit(ExitCode.DONE if known and all_run else ExitCode.REFUSED)


def each_command(
    name: str,
    summary: str,
    example: str,
    argument: Callable[[_Command], _Command],
    servers: Callable[[Path, Any], Iterable[Server]],
    act: Callable[..., object],
    done: str,
) -> click.Command:
    """Return a command that acts on each of the ``servers`` of a directory that its argument names, and reports it."""

    @click.command(name, help=f"{summary}\n\nExample:\n  python -m sandbox {example}")
    @argument
    @directory_option
    def command(directory: Path, **named: Any) -> None:
        with exclusive(directory):
            for server, arguments in servers(directory, next(iter(named.values()))):
                act(*arguments)
                click.echo(f"{server} {done}")

    return command


def _stores(directory: Path, names: Sequence[str]) -> Iterator[Server]:
    for name in names:
        if (store := STORES[name].open(directory)) is None:
            raise Refused(f"no {name} in {directory}; `python -m sandbox stores up {name}` starts one")
        yield name, (store,)


_LOST_POWER = "Send SIGKILL to servers and all their children, as if their machine lost power."
_STOPPED = "Send SIGSTOP to servers: connections stay open, nothing responds."
_AGAIN = "Restart servers with their data; running ones are shut down cleanly first."
for _name, _summary, _example, _act, _done in (
    ("kill", _LOST_POWER, "stores kill postgres", Store.kill, "is killed"),
    ("pause", _STOPPED, "stores pause redis", Store.pause, "is paused"),
    ("resume", "Send SIGCONT to paused servers.", "stores resume redis", Store.resume, "is resumed"),
    ("restart", _AGAIN, "stores restart postgres redis", lambda store: store.restart(ends_with_parent=False), "is up"),
):
    stores.add_command(each_command(_name, _summary, _example, _named, _stores, _act, _done))
