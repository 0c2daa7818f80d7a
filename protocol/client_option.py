"""
The one option by which every program is told who it is to the brokers, and the connection that comes of it.

Where the brokers say no, the program that has the option ends with who lacks what, and what to do.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from protocol import names
from protocol.client_config import ClientConfig, load
from protocol.connection import CLIENT_CONFIG, Connection
from protocol.denied import WRITTEN, advice
from protocol.errors import BrewError, Denied, UsageError
from protocol.records import MARKS_TOPIC, REPLAY_GROUP

_F = TypeVar("_F", bound=Callable[..., Any])
_META = "brew.client-config"


def _loaded(context: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:
        context.meta[_META] = load(value)


_option = click.option(
    "--client-config",
    envvar=CLIENT_CONFIG,
    type=click.Path(path_type=Path),
    callback=_loaded,
    expose_value=False,
    metavar="FILE",
    help="User, password, certificates: librdkafka's names, name=value (docs/SECURITY.md).",
)
# What commands write that is not a pipeline's output or dead letters.
_WRITES = {
    "call": ("{dead_letter}",),
    "replay": ("{input}", "{dead_letter}" + MARKS_TOPIC),
    "totals": ("{output}", "{group}.deltas", "{group}.changelog"),
}
# Commands that never move a position.
_LOOKS = {"lag", "explain", "show", "doctor", "xray", "ui", "top", "list", "inspect"}
# A command's parameters that name topics, and a group.
_TOPICS = ("input", "output", "dead_letter", "topic", "topics", "claims", "profiles_topic")


def client_config_option(command: _F) -> _F:
    """Stands beside every `--bootstrap`; `connection` finds what it loaded."""

    @functools.wraps(command)
    def guarded(*args: Any, **given: Any) -> Any:
        try:
            return command(*args, **given)
        except (UsageError, Denied):
            raise
        except BrewError as error:
            context = click.get_current_context(silent=True)
            given_names = _asks_for(context) if context else {}
            looks_only = context is not None and _looks_only(context)
            told = advice(str(error), connection("").user, given_names, client_config().source, looks_only=looks_only)
            if told is None:
                raise
            raise Denied(f"{error}; {told}") from error

    return _option(cast(_F, guarded))


def _asks_for(context: click.Context) -> dict[str, str]:
    """The names that a command works with, by role; some it makes out of those that it is given."""
    found = _names(context.params)
    fields = {role: found.get(role, "") for role in ("input", "output", "dead_letter", "group")}
    command = context.info_name or ""
    for number, name in enumerate(_WRITES.get(command, ())):
        found[f"{WRITTEN}{number}"] = name.format_map(fields)
    return found | ({"group": f"{fields['group']}{REPLAY_GROUP}"} if command == "replay" else {})


def _looks_only(context: click.Context) -> bool:
    """Whether the command never moves a group's position."""
    return "proof" in (context.find_root().info_name or "") or context.info_name in _LOOKS


def _names(given: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for role in _TOPICS:
        value = given.get(role)
        for number, name in enumerate(value if isinstance(value, tuple) else [value]):
            if isinstance(name, str):
                found[f"{role}{number or ''}"] = name
    return found | ({"group": given["group"]} if isinstance(given.get("group"), str) else {})


def beside(option: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """``option`` and `--client-config` behind it, as one decorator."""

    def both(command: _F) -> _F:
        return option(client_config_option(command))

    return both


bootstrap_option = beside(
    click.option(
        "--bootstrap",
        default=names.BOOTSTRAP,
        show_default=True,
        envvar="BOOTSTRAP",
        metavar="HOST:PORT",
        help="Any broker of the cluster.",
    )
)


def client_config() -> ClientConfig:
    """What the running command was given; empty without a file, or outside of a command."""
    context = click.get_current_context(silent=True)
    found = None if context is None else context.meta.get(_META)
    return found if isinstance(found, ClientConfig) else ClientConfig()


def connection(bootstrap: str) -> Connection:
    """The connection of the running command: its `--bootstrap`, as whom its `--client-config` says."""
    config = client_config()
    return Connection(bootstrap, config.properties, config.secrets, config.source)


def forget_variables() -> None:
    """Take the secrets that came from the environment out of it, before JVMs and workers inherit them."""
    for name in client_config().variables:
        os.environ.pop(name, None)
