"""Real servers on this machine without containers: `python -m sandbox --help`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from brew.cli import CONTEXT, LazyGroup, as_called, run
from brew.errors import Refused, UsageError
from brew.jvm.dependencies import KAFKAS
from brew.names import ExitCode
from sandbox import disk, network, secure
from sandbox.faults import COMMANDS, certify
from sandbox.jvm import TOOLS, Jvm, setup, setup_yarn
from sandbox.kafka import Cluster, make_archive
from sandbox.launch import Settings
from sandbox.layout import Layout
from sandbox.network import Network
from sandbox.spark import spark
from sandbox.stores import directory_option, exclusive, stores

FIRST_PORT = 9092


@click.group("sandbox", cls=LazyGroup, context_settings=CONTEXT)
def cli() -> None:
    """
    Real servers on this machine, without containers.

    \b
    Examples:
      python -m sandbox up                     one Kafka broker on localhost:9092
      python -m sandbox up --brokers 3         three, replication 3, min ISR 2
      python -m sandbox up --secure            TLS, users, rights; prints how to use it (docs/SECURITY.md)
      python -m sandbox status --json
      python -m sandbox logs --follow
      python -m sandbox tool kafka-topics --bootstrap-server localhost:9092 --list
      python -m sandbox kill 2                 break it: kill pause resume restart cut fill heal
      python -m sandbox down --wipe            stop, and forget all data
      python -m sandbox stores up              PostgreSQL and Redis
      python -m sandbox spark up               a Spark master and three workers
    """  # noqa: D301 - \b is click's mark for "keep these lines"


@cli.command()
@click.option(
    "--brokers", type=click.IntRange(1, 9), default=1, show_default=True, help="Nodes, each broker and controller."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_000),
    default=FIRST_PORT,
    show_default=True,
    help="The first broker's port, each next one's is 2 higher; 0 takes free ones.",
)
@click.option(
    "--kafka",
    type=click.Choice(list(KAFKAS)),
    help=f"Version; `setup --kafka` fetches others.  [default: the cluster's own, else {next(iter(KAFKAS))}]",
)
@click.option("--heap-mb", type=click.IntRange(128), default=1024, show_default=True, help="Heap of each broker.")
@click.option("--quick", is_flag=True, help="Start in half the time; slower under load, so not for measurements.")
@click.option(
    "--network",
    "place",
    type=click.Choice(["loopback", "namespaces"]),
    default="loopback",
    show_default=True,
    help="namespaces: each broker in a network of its own, so that it can be cut off; needs root.",
)
@click.option("--data-size-mb", type=click.IntRange(16), help="End of the last broker's disk; needs root.")
@click.option("--secure", "is_secure", is_flag=True, help="TLS, users with passwords or certificates, and rights.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A broker setting, repeatable.")
@directory_option
def up(
    brokers: int,
    port: int,
    heap_mb: int,
    place: str,
    data_size_mb: int | None,
    properties: Sequence[str],
    kafka: str | None,
    directory: Path,
    *,
    quick: bool,
    is_secure: bool,
) -> None:
    """
    Start Kafka, with the data it had; harmless when it is up.

    \b
    Examples:
      python -m sandbox up
      python -m sandbox up --brokers 3 --port 0     free ports; `status` tells them
      python -m sandbox up --secure --dir other
      python -m sandbox up --kafka 3.9.2 --dir other
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    wrong = [text for text in properties if "=" not in text]
    if wrong:
        raise UsageError(f"--property {wrong[0]!r}: a setting is written NAME=VALUE")
    more = dict(text.split("=", 1) for text in properties)
    with exclusive(directory):
        cluster = Cluster.open(directory)
        up_already = cluster is not None and len(cluster.running()) == len(cluster.layout.nodes) == brokers
        fits = (
            cluster is not None and kafka in {None, cluster.layout.kafka} and (cluster.layout.secure or not is_secure)
        )
        if cluster is not None and up_already and fits:
            click.echo(f"Kafka is already up at {cluster.bootstrap}")
            _print_usage(cluster.layout)
            return
        ports = [port + 2 * n for n in range(brokers)] if port else None
        settings = Settings(
            heap_mb=heap_mb,
            quick=quick,
            leashed=False,
            properties=more,
            namespaces=_own_networks(place),
            data_size_mb=_limit(data_size_mb),
            secure=is_secure,
            kafka=kafka,
        )
        cluster = Cluster.start(directory, brokers=brokers, ports=ports, settings=settings)
    click.echo(f"Kafka is up at {cluster.bootstrap} ({directory}/kafka-*/server.log)")
    _print_usage(cluster.layout)


@cli.command()
@click.option("--wipe", is_flag=True, help="Remove the data too.")
@directory_option
def down(directory: Path, *, wipe: bool) -> None:
    """
    Stop Kafka; harmless when nothing is up.

    \b
    Examples:
      python -m sandbox down            the data stays
      python -m sandbox down --wipe
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    if not directory.exists():
        click.echo("nothing is up")
        return
    with exclusive(directory):
        cluster = Cluster.open(directory)
        running = 0 if cluster is None else len(cluster.running())
        if cluster is not None:
            cluster.close(wipe=wipe)
        Network(directory).remove()  # what a killed command may have left
        if wipe:
            disk.release(directory)
    click.echo(f"Kafka is down ({running} stopped)" if running else "nothing is up")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@directory_option
def status(directory: Path, *, as_json: bool) -> None:
    """
    Tell what runs where; exit code 3 when something does not.

    \b
    Examples:
      python -m sandbox status
      python -m sandbox status --json
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    layout = Layout.read(directory.resolve())
    nodes = [] if layout is None else [layout.document(node) for node in layout.nodes]
    is_up = bool(nodes) and all(node["running"] for node in nodes)
    if as_json:
        document = {"up": is_up, "bootstrap": layout.bootstrap if layout else None, "brokers": nodes}
        document |= {"kafka": layout.kafka if layout else None}
        click.echo(json.dumps(document | {"secure": secure.document(layout) if layout else None}))
    elif layout is None:
        click.echo(f"nothing was ever started in {directory}")
    else:
        table = Table("broker", "address", "state", "process", "log", box=None)
        for node in nodes:
            state = "up" if node["running"] else "down"
            table.add_row(
                str(node["broker"]), str(node["address"]), state, str(node["process"] or ""), str(node["log"])
            )
        Console().print(table)
    raise SystemExit(ExitCode.DONE if is_up else ExitCode.REFUSED)


@cli.command()
@click.option("--broker", type=int, default=1, show_default=True, help="Whose log.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option(
    "--lines", "-n", type=click.IntRange(1), default=50, show_default=True, help="How many of the last lines."
)
@directory_option
def logs(broker: int, lines: int, directory: Path, *, follow: bool) -> None:
    """
    Print the last lines of a broker's log.

    \b
    Examples:
      python -m sandbox logs --lines 20
      python -m sandbox logs --broker 2 --follow
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    layout = Layout.read(directory.resolve())
    if layout is None or broker not in {node.number for node in layout.nodes}:
        raise Refused(f"there is no broker {broker} in {directory}; `python -m sandbox status` tells what there is")
    log = str(layout.log(layout.node(broker)))
    _become(["tail", "-n", str(lines), *(["-F"] if follow else []), log])


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("name")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tool(name: str, arguments: Sequence[str]) -> None:
    """
    Run one of Kafka's own command line tools.

    \b
    Examples:
      python -m sandbox tool kafka-consumer-groups --bootstrap-server localhost:9092 --describe --group brew-enricher
      python -m sandbox tool kafka-dump-log --files .sandbox/kafka-1/data/brew.orders.v1-0/00000000000000000000.log
    """  # noqa: D301
    if name in {"-h", "--help"}:
        click.echo(as_called(f"Kafka's own tools: {' '.join(TOOLS)}\nusage: python -m sandbox tool NAME ARGUMENTS..."))
        return
    _become(Jvm().tool(name, arguments))


@cli.command()
def archive() -> None:
    """
    Make the file that halves the brokers' start (make setup does).

    \b
    Example:
      python -m sandbox archive
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    with tempfile.TemporaryDirectory(prefix="brew-archive-") as directory:
        written = make_archive(Path(directory))
    click.echo(f"{written} written")


def _print_usage(layout: Layout) -> None:
    for line in secure.usage_text(layout) if layout.secure else ():
        click.echo(line)


def _own_networks(place: str) -> bool:
    if place == "loopback":
        return False
    if not network.allowed():
        click.echo("no root here: all brokers on the loopback device, `cut` will be refused", err=True)
        return False
    for gone in network.sweep():
        click.echo(f"removed the network that was left of {gone}", err=True)
    return True


def _limit(size_mb: int | None) -> int:
    if size_mb is not None and not disk.allowed():
        click.echo("no root here: no broker's disk is limited, `fill` will be refused", err=True)
        return 0
    return size_mb or 0


def _become(command: Sequence[str]) -> None:
    """Replace this process, so that signals and the exit code are the program's own."""
    sys.stdout.flush()
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - a list, no shell
    except OSError as error:
        raise Refused(f"{command[0]} could not be run: {error}") from error


for command in (*COMMANDS, certify, stores, spark, setup):
    cli.add_command(command)
cli.add_command(setup_yarn, "setup-yarn")


def main() -> None:
    run(cli, "sandbox")


if __name__ == "__main__":
    main()
