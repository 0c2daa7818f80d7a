"""Real servers on this machine, without containers, and commands that break them: `python -m sandbox --help`."""

from __future__ import annotations

import brew.first_imports  # noqa: F401 - before the slow ones

# isort: split

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from brew.cli import CONTEXT, LazyGroup, as_called, flag, plain_option, repeatable, run, typed_option
from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.jvm.dependencies import KAFKAS
from brew.kafka import clients, cluster_admin
from brew.names import ExitCode
from sandbox import isolation, secure
from sandbox.isolation import CLIENTS, Network
from sandbox.jvm import TOOLS, Jvm, setup, setup_yarn
from sandbox.kafka import Cluster, Settings, make_archive
from sandbox.layout import Layout
from sandbox.secure import Security
from sandbox.spark import spark
from sandbox.stores import Server, directory_option, each_command, exclusive, settings_of, stores

_ASK_S = 20.0
_KEYSTORE = "listener.name.secure.ssl.keystore.location"
FIRST_PORT = 9092


@click.group("sandbox", cls=LazyGroup, context_settings=CONTEXT)
def cli() -> None:
    """
    Run real servers on this machine, without containers.

    Examples:
      python -m sandbox up                     one Kafka broker on localhost:9092
      python -m sandbox up --brokers 3         three, replication 3, min ISR 2
      python -m sandbox up --secure            TLS, users, ACLs; prints how to use it (docs/SECURITY.md)
      python -m sandbox status --json
      python -m sandbox logs --follow
      python -m sandbox tool kafka-topics --bootstrap-server localhost:9092 --list
      python -m sandbox kill 2                 break it: kill pause resume restart cut fill heal
      python -m sandbox down --wipe            stop and remove all data
      python -m sandbox stores up              PostgreSQL and Redis
      python -m sandbox spark up               a Spark master and three workers
    """


@cli.command()
@typed_option("--brokers", click.IntRange(1, 9), 1, "Number of nodes, each broker and controller.")
@plain_option(
    "--port",
    "Port of the first broker, 2 higher for each next one; 0: free ports.  [default: the cluster's own, else "
    f"{FIRST_PORT}]",
    type=click.IntRange(0, 65_000),
)
@plain_option(
    "--kafka",
    f"Kafka version; `setup --kafka` fetches others.  [default: the cluster's own, else {next(iter(KAFKAS))}]",
    type=click.Choice(list(KAFKAS)),
)
@typed_option("--heap-mb", click.IntRange(128), 1024, "Heap of each broker in MiB.")
@flag("--quick", "Start in half the time; slower under load, so not for measurements.")
@typed_option(
    "--network place",
    click.Choice(["loopback", "namespaces"]),
    "loopback",
    "namespaces: each broker in its own network, so that `cut` can isolate it; needs root.",
)
@plain_option("--data-size-mb", "Size limit of the last broker's disk in MiB; needs root.", type=click.IntRange(16))
@flag("--secure is_secure", "Enable TLS, users with passwords or certificates, and ACLs.")
@repeatable("--property properties", "Broker setting; repeatable.", "NAME=VALUE")
@directory_option
def up(
    brokers: int, port: int | None, kafka: str | None, directory: Path, *, is_secure: bool, place: str, **option: Any
) -> None:
    """
    Start Kafka with the data it had; does nothing if it is running.

    Examples:
      python -m sandbox up
      python -m sandbox up --brokers 3 --port 0     free ports; `status` shows them
      python -m sandbox up --secure --dir other
      python -m sandbox up --kafka 3.9.2 --dir other
    """
    properties = settings_of(option["properties"])
    with exclusive(directory):
        cluster = Cluster.open(directory)
        same = (
            cluster is not None and kafka in {None, cluster.layout.kafka} and (cluster.layout.secure or not is_secure)
        )
        if cluster is not None and same and len(cluster.running()) == len(cluster.layout.nodes) == brokers:
            cluster.finish_start()
            click.echo(f"Kafka is already up at {cluster.bootstrap}")
            _print_usage(cluster.layout)
            return
        first = FIRST_PORT if port is None and cluster is None else port
        ports = [first + 2 * n for n in range(brokers)] if first else None
        settings = Settings(option["heap_mb"], option["quick"], ends_with_parent=False, properties=properties)
        isolated, size_mb = _own_networks(place), _limit(option["data_size_mb"])
        settings = replace(settings, namespaces=isolated, data_size_mb=size_mb, secure=is_secure, kafka=kafka)
        cluster = Cluster.start(directory, brokers=brokers, ports=ports, settings=settings)
    click.echo(f"Kafka is up at {cluster.bootstrap} ({directory}/kafka-*/server.log)")
    _print_usage(cluster.layout)


@cli.command()
@flag("--wipe", "Also remove the data.")
@directory_option
def down(directory: Path, *, wipe: bool) -> None:
    """
    Stop Kafka; does nothing if it is not running.

    Examples:
      python -m sandbox down            the data stays
      python -m sandbox down --wipe
    """
    if not directory.exists():
        click.echo("nothing is up")
        return
    running = 0
    with exclusive(directory):
        if (cluster := Cluster.open(directory)) is not None:
            running = len(cluster.running())
            cluster.close(wipe=wipe)
        Network(directory).remove()  # in case a killed command left one
        if wipe:
            isolation.release_disks(directory)
    click.echo(f"Kafka is down ({running} stopped)" if running else "nothing is up")


@cli.command()
@flag("--json as_json", "Print one JSON document instead of text.")
@directory_option
def status(directory: Path, *, as_json: bool) -> None:
    """
    Show each broker's state; exit code 3 unless all are up.

    Examples:
      python -m sandbox status
      python -m sandbox status --json
    """
    layout = Layout.read(directory.resolve())
    nodes = [] if layout is None else [layout.document(node) for node in layout.nodes]
    is_up = bool(nodes) and all(node["running"] for node in nodes)
    if as_json:
        kafka, usage = (layout.kafka, secure.document(layout)) if layout else (None, None)
        bootstrap = layout.bootstrap if layout else None
        click.echo(json.dumps({"up": is_up, "bootstrap": bootstrap, "brokers": nodes, "kafka": kafka, "secure": usage}))
    elif layout is None:
        click.echo(f"nothing was ever started in {directory}")
    else:
        table = Table("broker", "address", "state", "process", "log", box=None)
        for node in nodes:
            state = "up" if node["running"] else "down"
            table.add_row(*map(str, (node["broker"], node["address"], state, node["process"] or "", node["log"])))
        Console().print(table)
    click.get_current_context().exit(ExitCode.DONE if is_up else ExitCode.REFUSED)


@cli.command()
@typed_option("--broker", int, 1, "Broker whose log is printed.")
@flag("--follow -f", "Print new lines until Ctrl-C.")
@typed_option("--lines -n", click.IntRange(1), 50, "Number of lines to print.")
@directory_option
def logs(broker: int, lines: int, directory: Path, *, follow: bool) -> None:
    """
    Print the last lines of a broker's log.

    Examples:
      python -m sandbox logs --lines 20
      python -m sandbox logs --broker 2 --follow
    """
    layout = Layout.read(directory.resolve())
    if layout is None or broker not in {node.number for node in layout.nodes}:
        raise Refused(f"no broker {broker} in {directory}; `python -m sandbox status` shows the brokers")
    _exec(["tail", "-n", str(lines), *(["-F"] if follow else []), str(layout.log(layout.node(broker)))])


@cli.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("name")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tool(name: str, arguments: Sequence[str]) -> None:
    """
    Run one of Kafka's own command line tools.

    Examples:
      python -m sandbox tool kafka-consumer-groups --bootstrap-server localhost:9092 --describe --group brew-enricher
      python -m sandbox tool kafka-dump-log --files .sandbox/kafka-1/data/brew.orders.v1-0/00000000000000000000.log
    """
    if name in {"-h", "--help"}:
        click.echo(as_called(f"Kafka's own tools: {' '.join(TOOLS)}\nusage: python -m sandbox tool NAME ARGUMENTS..."))
        return
    _exec(Jvm().tool(name, arguments))


@cli.command()
def archive() -> None:
    """
    Create the class-data archive that halves the brokers' start time (`make setup` does this).

    Example:
      python -m sandbox archive
    """
    with tempfile.TemporaryDirectory(prefix="brew-archive-") as directory:
        written = make_archive(Path(directory))
    click.echo(f"{written} written")


def _print_usage(layout: Layout) -> None:
    if layout.secure:
        click.echo("\n".join(secure.usage_text(layout)))


def _own_networks(place: str) -> bool:
    if place == "loopback":
        return False
    if not isolation.may_isolate():
        click.echo("not running as root: all brokers use the loopback device, and `cut` is refused", err=True)
        return False
    for gone in isolation.sweep():
        click.echo(f"removed the network left over from {gone}", err=True)
    return True


def _limit(size_mb: int | None) -> int:
    if size_mb is not None and not isolation.may_mount():
        click.echo("not running as root: no broker's disk is limited, and `fill` is refused", err=True)
        return 0
    return size_mb or 0


def _exec(command: Sequence[str]) -> None:
    """Replace this process, so that signals and the exit code are those of the program."""
    sys.stdout.flush()
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - a list, no shell
    except OSError as error:
        raise Refused(f"{command[0]} could not be run: {error}") from error


@cli.command()
@flag("--expired", "Break it: issue certificates that expired an hour ago, until the next `certify`.")
@directory_option
def certify(directory: Path, *, expired: bool) -> None:
    """
    Replace the brokers' certificates in a running secure cluster; returns once new connections by password see them.

    Examples:
      python -m sandbox certify
      python -m sandbox certify --expired     clients are refused from now on
    """
    with exclusive(directory):
        if (cluster := Cluster.open(directory)) is None or not cluster.layout.secure:
            raise Refused(f"no secure cluster in {directory}; `python -m sandbox up --secure` starts one")
        security = Security.of(cluster.layout)
        path = security.certify(cluster.layout, expired=expired)
        client, deadline = clients.admin(cluster.connection), Deadline(_ASK_S)
        for node in cluster.running():
            cluster_admin.set_of_broker(client, node.number, _KEYSTORE, str(path) if expired else None, deadline)
        for node in cluster.running():
            secure.await_certificate(node, path, deadline)
    click.echo("the brokers' certificates have expired" if expired else "the brokers have new certificates")


_broker = click.argument("number", type=click.IntRange(1))
_brokers = click.argument("numbers", type=click.IntRange(1), nargs=-1, required=True)


def _cluster(directory: Path, numbers: Sequence[int]) -> Cluster:
    """Return the cluster of ``directory``; refused if there is none, or it lacks a broker with one of these numbers."""
    cluster = Cluster.open(directory)
    if cluster is None or not set(numbers) <= {node.number for node in cluster.layout.nodes}:
        raise Refused(f"no broker {list(numbers)} in {directory}; `python -m sandbox status` shows the brokers")
    return cluster


def _each_broker(directory: Path, numbers: Sequence[int]) -> Iterator[Server]:
    cluster = _cluster(directory, numbers)
    return ((f"broker {number}", (cluster, number)) for number in numbers)


_LOST_POWER = "Send SIGKILL to brokers, as if their machines lost power."
_STOPPED = "Send SIGSTOP to brokers: connections stay open, nothing responds."
for _name, _summary, _example, _act, _done in (
    ("kill", _LOST_POWER, "kill 1 2 3", Cluster.kill, "is killed"),
    ("pause", _STOPPED, "pause 2", Cluster.pause, "is paused"),
    ("resume", "Send SIGCONT to paused brokers.", "resume 2", Cluster.resume, "is resumed"),
):
    cli.add_command(each_command(_name, _summary, _example, _brokers, _each_broker, _act, _done))


@cli.command()
@_brokers
@directory_option
def restart(numbers: Sequence[int], directory: Path) -> None:
    """
    Restart brokers with their data, all together; running ones are shut down cleanly first.

    Example:
      python -m sandbox restart 1 2 3
    """
    with exclusive(directory):
        _cluster(directory, numbers).restart(*numbers)
    click.echo(f"up: {', '.join(f'broker {number}' for number in numbers)}")


@cli.command()
@_broker
@repeatable(
    "--from others", "Broker to cut it off from, or `clients`; repeatable.  [default: all of them]", "N|clients"
)
@directory_option
def cut(number: int, others: Sequence[str], directory: Path) -> None:
    """
    Block all traffic between a broker and others; connections stay open.

    Needs a cluster that was started with `up --network namespaces`.

    Examples:
      python -m sandbox cut 1 --from 2 --from 3      brokers 2 and 3 can't reach broker 1
      python -m sandbox cut 1 --from clients
    """
    if wrong := [other for other in others if other != CLIENTS and not other.isdecimal()]:
        raise UsageError(f"--from {wrong[0]!r}: give a broker's number, or {CLIENTS!r}")
    with exclusive(directory):
        named: list[int | str] = [other if other == CLIENTS else int(other) for other in others]
        cluster = _cluster(directory, [number, *(other for other in named if isinstance(other, int))])
        apart = named or [*(node.number for node in cluster.layout.nodes if node.number != number), CLIENTS]
        cluster.cut(number, apart)
    click.echo(f"broker {number} is cut from {', '.join(map(str, apart))}")


@cli.command()
@_broker
@directory_option
def fill(number: int, directory: Path) -> None:
    """
    Fill a broker's disk; needs `up --data-size-mb`, which limits the last broker's disk.

    Example:
      python -m sandbox fill 3
    """
    with exclusive(directory):
        used = _cluster(directory, [number]).fill(number)
    click.echo(f"broker {number}'s disk is full at {used} bytes")


@cli.command()
@directory_option
def heal(directory: Path) -> None:
    """
    Remove all cuts and free the space on full disks; brokers that stopped need `restart`.

    Example:
      python -m sandbox heal
    """
    with exclusive(directory):
        cuts = _cluster(directory, []).heal()
    click.echo(f"healed: {cuts} routes restored")


for command in (stores, spark, setup):
    cli.add_command(command)

cli.add_command(setup_yarn, "setup-yarn")


def main() -> None:
    run(cli, "sandbox")


if __name__ == "__main__":
    main()
