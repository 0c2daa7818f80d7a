"""`pipeline top`: the live view on the terminal."""

from __future__ import annotations

import threading
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from pipeline.operate.options import advised, json_option, say_json
from pipeline.ui.desk import Desk
from pipeline.ui.document import document
from pipeline.ui.keys import QUIT, keys
from pipeline.ui.options import live_options, settings_of
from pipeline.ui.rates import LOOKING
from pipeline.ui.terminal import screen
from pipeline.ui.view import View
from protocol.deadline import Deadline
from protocol.names import ExitCode

_TICK_S = 0.05
_ONCE_S = 12.0


@click.command("top")
@live_options
@click.option("--once", is_flag=True, help="Look long enough to tell rates and states, print, and end.")
@json_option
@advised()
def top(*, once: bool, as_json: bool, **option: Any) -> ExitCode:
    """
    Show on the terminal what the group does, as `pipeline ui` does in a browser, until q, SIGTERM or Ctrl-C.

    \b
    Examples:
      python -m pipeline top
      python -m pipeline top --status-url http://127.0.0.1:3000 --proof proof.json
      python -m pipeline top --once --json

    \b
    Exit codes: 0 shown once, or q, 3 refused or out of reach, 64 wrong usage, 143 ended by a signal.
    """  # noqa: D301 - click's own mark
    settings = settings_of(option)
    console = Console()
    with Desk(settings) as desk:
        if once or not (as_json or console.is_terminal):
            view = _settled(desk)
            say_json(document(view)) if as_json else console.print(screen(view, console.width, _tall(view)))
        elif as_json:
            while True:
                _pause(settings.interval_s)
                say_json(document(desk.view()), lines=True)
        else:
            _watch(desk, console, settings.interval_s)
    return ExitCode.DONE


def _watch(desk: Desk, console: Console, interval_s: float) -> None:
    """Until q is pressed, or a signal ends the program."""
    with keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(desk.view(), console.width, console.height), refresh=True)
            if QUIT in pressed(interval_s):
                return


def _settled(desk: Desk) -> View:
    """The first view in which every source has answered, or failed, and no state is still to be seen."""
    deadline = Deadline(_ONCE_S)
    while True:
        view = desk.view()
        waiting = [one for one in view.lamps.values() if not one.off and one.age_s is None and one.stale is None]
        looking = LOOKING in view.totals.states or (bool(view.rows) and view.totals.rate is None)
        failed = view.lamps["flow"].stale is not None  # no state and no rate comes any more
        if deadline.expired() or not (waiting or (looking and not failed)):
            return view
        _pause(_TICK_S)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _tall(view: View) -> int:
    """Room for all of it."""
    return len(view.rows) + 60
