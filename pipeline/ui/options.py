"""Options that page and terminal share, and the settings they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pipeline.operate.options import (
    bootstrap_option,
    connected,
    dead_letter_option,
    group_option,
    input_option,
    output_option,
)
from pipeline.settings import PipelineSettings
from pipeline.ui.settings import LiveSettings

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
