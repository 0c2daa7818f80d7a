"""The command that reads along and writes down what it was given."""

from __future__ import annotations

from pathlib import Path

import click

from proof.commands.options import connected
from proof.read import read as read_along
from protocol import names
from protocol.client_option import bootstrap_option
from protocol.names import checked_topic
from protocol.stopping import Stopped


@click.command("read")
@bootstrap_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    default=[names.OUTPUT_TOPIC],
    show_default=True,
    metavar="TOPIC",
    help="What to read; repeatable.",
)
@click.option(
    "--isolation",
    type=click.Choice([names.READ_COMMITTED, names.READ_UNCOMMITTED]),
    default=names.READ_COMMITTED,
    show_default=True,
    help="Which kind of reader to be.",
)
@click.option(
    "--journal", type=click.Path(path_type=Path, file_okay=False), required=True, help="Where to write it down."
)
@click.option("--follow", is_flag=True, help="Go on until SIGTERM; otherwise read what is there.")
def read(bootstrap: str, topics: tuple[str, ...], isolation: str, journal: Path, *, follow: bool) -> None:
    """
    Read topics, and write down which records came in which order, for `proof verify --journals`.

    \b
    Examples:
      python -m proof read --journal journals
      python -m proof read --journal journals --follow --topic my.enriched --topic my.dlq
    """  # noqa: D301 - click's own mark
    asked = [checked_topic(name, "--topic") for name in topics]
    try:
        count = read_along(connected(bootstrap), asked, isolation, journal, following=follow)
    except Stopped:
        if not follow:
            raise
        return
    click.echo(f"{count} records read from {', '.join(asked)}")
