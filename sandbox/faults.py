"""The commands that break a running cluster on purpose, and mend it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.kafka import clients, cluster_admin
from sandbox.kafka import Cluster
from sandbox.network import CLIENTS
from sandbox.secure import Security
from sandbox.stores import Act, directory_option, each_command, exclusive

_ASK_S = 20.0
_KEYSTORE = "listener.name.secure.ssl.keystore.location"


@click.command()
@click.option("--expired", is_flag=True, help="Break it: they ended an hour ago, until the next `certify`.")
@directory_option
def certify(directory: Path, *, expired: bool) -> None:
    """
    Give brokers of a secure cluster new certificates while they run; new connections by password see them.

    \b
    Examples:
      python -m sandbox certify
      python -m sandbox certify --expired     clients are refused from now on
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    with exclusive(directory):
        cluster = Cluster.open(directory)
        if cluster is None or not cluster.layout.secure:
            raise Refused(f"no secure cluster in {directory}; `python -m sandbox up --secure` starts one")
        security = Security.of(cluster.layout)
        path = security.certify(cluster.layout, expired=expired)
        client, deadline = clients.admin(cluster.connection), Deadline(_ASK_S)
        for node in cluster.running():
            cluster_admin.set_of_broker(client, node.number, _KEYSTORE, str(path) if expired else None, deadline)
    click.echo("the brokers' certificates have expired" if expired else "the brokers have new certificates")


_broker = click.argument("number", type=click.IntRange(1))
_brokers = click.argument("numbers", type=click.IntRange(1), nargs=-1, required=True)


def _cluster(directory: Path, numbers: Sequence[int]) -> Cluster:
    """
    The cluster of ``directory``.

    Raises:
        Refused: there is none, or it has no broker of one of these numbers.
    """
    cluster = Cluster.open(directory)
    if cluster is None or not set(numbers) <= {node.number for node in cluster.layout.nodes}:
        raise Refused(f"no broker {list(numbers)} in {directory}; `python -m sandbox status` tells what there is")
    return cluster


def _on_broker(act: Callable[[Cluster, int], None]) -> Act:
    def apply(directory: Path, numbers: Sequence[int]) -> Iterator[str]:
        cluster = _cluster(directory, numbers)
        for number in numbers:
            act(cluster, number)
            yield f"broker {number}"

    return apply


_LOST_POWER = "SIGKILL brokers, as when their machines lose power."
_STOPPED = "SIGSTOP brokers: connections stay open, nothing answers."
kill = each_command("kill", _LOST_POWER, "kill 1 2 3", _brokers, _on_broker(Cluster.kill), "is killed")
pause = each_command("pause", _STOPPED, "pause 2", _brokers, _on_broker(Cluster.pause), "is paused")
resume = each_command(
    *("resume", "SIGCONT to paused brokers.", "resume 2", _brokers, _on_broker(Cluster.resume), "goes on")
)


@click.command()
@_brokers
@directory_option
def restart(numbers: Sequence[int], directory: Path) -> None:
    """
    Start brokers again with their data, all together; what runs is ended in good order before.

    \b
    Example:
      python -m sandbox restart 1 2 3
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    with exclusive(directory):
        _cluster(directory, numbers).restart(*numbers)
    click.echo(f"brokers {', '.join(map(str, numbers))} are up")


@click.command()
@_broker
@click.option(
    "--from",
    "others",
    multiple=True,
    metavar="N|clients",
    help="Another broker's number, or `clients`; repeatable  [default: all of them]",
)
@directory_option
def cut(number: int, others: Sequence[str], directory: Path) -> None:
    """
    Let nothing pass between a broker and others: connections stay open and starve.

    Needs a cluster that was started with `up --network namespaces`.

    \b
    Examples:
      python -m sandbox cut 1 --from 2 --from 3      brokers 2 and 3 do not hear of 1 any more
      python -m sandbox cut 1 --from clients
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    wrong = [other for other in others if other != CLIENTS and not other.isdigit()]
    if wrong:
        raise UsageError(f"--from {wrong[0]!r}: give a broker's number, or {CLIENTS!r}")
    with exclusive(directory):
        named: list[int | str] = [other if other == CLIENTS else int(other) for other in others]
        cluster = _cluster(directory, [number, *(other for other in named if isinstance(other, int))])
        everybody: list[int | str] = [*(n.number for n in cluster.layout.nodes if n.number != number), CLIENTS]
        cluster.cut(number, named or everybody)
    click.echo(f"broker {number} is cut from {', '.join(map(str, named or everybody))}")


@click.command()
@_broker
@directory_option
def fill(number: int, directory: Path) -> None:
    """
    Fill a broker's disk; needs `up --data-size-mb`, which limits the last broker's.

    \b
    Example:
      python -m sandbox fill 3
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    with exclusive(directory):
        used = _cluster(directory, [number]).fill(number)
    click.echo(f"broker {number}'s disk is full at {used} bytes")


@click.command()
@directory_option
def heal(directory: Path) -> None:
    """
    Take all cuts away and give full disks their room again; brokers that ended need `restart`.

    \b
    Example:
      python -m sandbox heal
    """  # noqa: D301 - \b is click's mark for "keep these lines"
    with exclusive(directory):
        cuts = _cluster(directory, []).heal()
    click.echo(f"healed: {cuts} routes given back")


COMMANDS = (kill, pause, resume, restart, cut, fill, heal)
