"""`pipeline ui`: the live view in a browser."""

from __future__ import annotations

import errno
import socket
from typing import Any

import click

from pipeline.operate.options import advised, say_json
from pipeline.ui.desk import Desk
from pipeline.ui.options import live_options, settings_of
from pipeline.ui.server import Live, serve
from pipeline.ui.settings import LOOPBACK, loopback
from protocol.errors import Refused
from protocol.names import ExitCode

OWN_NAMES = [LOOPBACK, "localhost", "::1", "[::1]"]


@click.command("ui")
@live_options
@click.option("--host", default=LOOPBACK, show_default=True, help="Another one lets other machines read it.")
@click.option("--port", type=click.IntRange(0, 65_535), default=3001, show_default=True, help="0: any that is free.")
@click.option("--json", "as_json", is_flag=True, help="Say where it listens as a document; a refusal, too.")
@advised()
def ui(host: str, port: int, *, as_json: bool, **option: Any) -> ExitCode:
    """
    Show in a browser what the group does: flow and phases per partition, transactions, the logs' tails, the last
    proof, preflight. Reads only, asks the brokers once per interval however many look, ends with SIGTERM or Ctrl-C.

    \b
    Examples:
      python -m pipeline ui
      python -m pipeline ui --port 0 --status-url http://127.0.0.1:3000
      python -m pipeline ui --group my-group --input a --output b --proof proof.json

    \b
    Exit codes: 3 refused or out of reach, 64 wrong usage, 143 ended by a signal.
    """  # noqa: D301 - click's own mark
    settings = settings_of(option)
    if not loopback(host):
        click.echo(
            f"--host is {host}: whoever reaches this machine reads topics, groups and offsets, with no password "
            f"and no TLS; {LOOPBACK} and an ssh tunnel are safer",
            err=True,
        )
    with _listening(host, port) as listening:
        bound = int(listening.getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{bound}/"
        say_json({"url": url}, lines=True) if as_json else click.echo(f"live view at {url}")
        with Desk(settings) as desk:
            # Whoever opened it to others may call it by any name.
            serve(Live(desk.view, settings.interval_s), listening, OWN_NAMES if loopback(host) else ["*"])
    return ExitCode.DONE


def _listening(host: str, port: int) -> socket.socket:
    """
    A socket that is bound and listens.

    Raises:
        Refused: the port is taken, or this machine has no such address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        what = "the port is taken; choose another with --port, or 0 for any" if taken else "choose another --host"
        raise Refused(f"--host {host} --port {port}: {error.strerror or error}: {what}") from error
