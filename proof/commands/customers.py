"""The command that fills the customers' topic."""

from __future__ import annotations

import dataclasses

import click

from proof.commands.options import connected, json_option, say_json, topic_option
from proof.commands.prepare import progress
from proof.customers import Customers
from proof.seed_customers import seed_customers as carry_out
from protocol import names
from protocol.client_option import bootstrap_option
from protocol.deadline import Deadline

_WAIT_S = 60.0
_MOST = 100_000_000


@click.command("seed-customers")
@bootstrap_option
@topic_option("--topic", names.CUSTOMERS_TOPIC, "Where the profiles go; made, compacted, when missing.")
@click.option(
    "--customers", "count", type=click.IntRange(0, _MOST), default=20_000, show_default=True, help="A profile for each."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds give equal profiles.")
@click.option("--updates", type=click.IntRange(0, _MOST), default=0, help="Afterwards so many profiles change.")
@click.option("--tombstones", type=click.IntRange(0, _MOST), default=0, help="At last so many customers are removed.")
@click.option("--partitions", type=click.IntRange(1, 10_000), default=4, show_default=True, help="Of a new topic.")
@json_option
def seed_customers(bootstrap: str, partitions: int, as_json: bool, **fields: object) -> None:
    """
    Write customers' profiles: c-00001 and so on, the customers of the orders that `seed` writes.

    \b
    Examples:
      python -m proof seed-customers
      python -m proof seed-customers --customers 1000000 --updates 5000 --tombstones 1000
      python -m proof seed-customers --topic my.customers --seed 7 --json
    """  # noqa: D301 - click's own mark
    plan = Customers(**fields)  # type: ignore[arg-type]
    connection = connected(bootstrap)
    with progress() as bar:
        task = bar.add_task(plan.topic, total=plan.records)
        done = carry_out(
            connection, plan, partitions, deadline=Deadline(_WAIT_S), advance=lambda some: bar.advance(task, some)
        )
    if as_json:
        say_json(dataclasses.asdict(done))
        return
    click.echo(str(done))
