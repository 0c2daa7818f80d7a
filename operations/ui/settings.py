"""Settings and options of the live view."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from brew.errors import UsageError
from brew.observability.settings import PORT
from brew.settings import PipelineSettings
from operations.options import (
    bootstrap_option,
    connected,
    dead_letter_option,
    group_option,
    input_option,
    output_option,
)

LOOPBACK = "127.0.0.1"
OWN_STATUS = f"http://{LOOPBACK}:{PORT}/status"
"""Where a run on this machine answers by default."""


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """
    What to look at, and how often.

    ``run`` names cluster, topics and group; ``statuses`` are addresses of running programs' `/status`; ``tail`` is how
    many offsets of each output partition are drawn; ``patience_s`` is what one question may take.
    """

    run: PipelineSettings
    statuses: tuple[str, ...] = ()
    proof: Path | None = None
    interval_s: float = 1.0
    patience_s: float = 5.0
    tail: int = 400

    def __post_init__(self) -> None:
        limits = [
            ("--interval", self.interval_s, 0.1, 3600),
            ("--patience", self.patience_s, 0.5, 120),
            ("--tail", self.tail, 1, 100_000),
        ]
        for setting, value, least, most in limits:
            if not least <= value <= most:
                raise UsageError(f"{setting} is {value:g}: it has to be between {least:g} and {most:g}")
        for one in self.statuses:
            checked_address(one)


def checked_address(url: str) -> str:
    """
    The address of a status document: `/status` where it names no path.

    Raises:
        UsageError: it is no http address, or holds a user or a password; the text repeats neither.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise UsageError(
            "--status-url holds a user or a password: command lines are seen by others; `/status` asks for none"
        )
    try:
        known = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise UsageError(f"--status-url is {url!r}: write http://host:port, as in http://127.0.0.1:3000")
    path = parts.path if parts.path not in {"", "/"} else "/status"
    return f"{parts.scheme}://{parts.netloc}{path}"


def loopback(host: str) -> bool:
    """True where only this machine's own programs reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_F = TypeVar("_F", bound=Callable[..., Any])


def live_options(command: _F) -> _F:
    """Put what both are told on a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: list[Callable[[Any], Any]] = [
    bootstrap_option,
    input_option,
    output_option,
    dead_letter_option,
    group_option,
    click.option(
        "--status-url",
        "statuses",
        multiple=True,
        metavar="URL",
        help="A program's /status, as http://127.0.0.1:3000; repeatable. Without one, this machine's port 3000.",
    ),
    click.option(
        "--proof",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="What `proof verify --json` or a campaign wrote; it may come later.",
    ),
    click.option(
        "--interval", type=float, default=1.0, show_default=True, help="Seconds between two looks, of all together."
    ),
    click.option("--patience", type=float, default=5.0, show_default=True, help="Seconds that one look may take."),
    click.option(
        "--tail", type=int, default=400, show_default=True, help="Of each output partition, the last so many offsets."
    ),
]


def settings_of(option: dict[str, Any]) -> LiveSettings:
    """
    What to look at, once a broker has answered.

    Raises:
        Unreachable: none did.
        UsageError: a value is out of its limits.
    """
    run = PipelineSettings(
        connected(option["bootstrap"]), option["topic"], option["output"], option["dead_letter"], option["group"]
    )
    return LiveSettings(
        run, option["statuses"], option["proof"], option["interval"], option["patience"], option["tail"]
    )
