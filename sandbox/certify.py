"""`python -m sandbox certify`: new certificates for running brokers, or ones whose time is over."""

from __future__ import annotations

from pathlib import Path

import click

from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka import access, clients
from sandbox.directory import alone, directory_option
from sandbox.kafka import Cluster
from sandbox.secure import Security

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
    with alone(directory):
        cluster = Cluster.open(directory)
        if cluster is None or not cluster.layout.secure:
            raise Refused(f"no secure cluster in {directory}; `python -m sandbox up --secure` starts one")
        security = Security.of(cluster.layout)
        path = security.certify(cluster.layout, expired=expired)
        client, deadline = clients.admin(cluster.connection), Deadline(_ASK_S)
        for node in cluster.running():
            access.set_of_broker(client, node.number, _KEYSTORE, str(path) if expired else None, deadline)
    click.echo("the brokers' certificates have expired" if expired else "the brokers have new certificates")
