"""Commands that make topics, orders and customers."""

from __future__ import annotations

import dataclasses
import sys

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from brew import names
from brew.cli import bootstrap_option
from brew.deadline import Deadline
from proof import seed as seeder
from proof import topics as making
from proof.commands import (
    connected,
    dead_letter_option,
    input_option,
    json_option,
    output_option,
    say_json,
    topic_option,
)
from proof.seed import Seeding
from proof.topics import Customers
from proof.topics import seed_customers as carry_out

_WAIT_S = 60.0


@click.command()
@bootstrap_option
@click.option("--partitions", type=click.IntRange(1, 10_000), default=4, show_default=True, help="For topics made now.")
@input_option
@output_option
@dead_letter_option
@topic_option("--customers", names.CUSTOMERS_TOPIC, "Customer profiles, compacted.")
@topic_option("--claims", names.CLAIMS_TOPIC, "The coordination log.")
@json_option
def topics(bootstrap: str, partitions: int, as_json: bool, **named: str) -> None:
    """
    Make the five topics that are missing; what is there stays as it is.

    \b
    Examples:
      python -m proof topics --partitions 8
      python -m proof topics --bootstrap broker:9092 --input my.orders --json
    """  # noqa: D301 - click's own mark
    made = making.create_topics(
        connected(bootstrap), making.PipelineTopics(partitions=partitions, **named), Deadline(_WAIT_S)
    )
    if as_json:
        say_json([dataclasses.asdict(topic) for topic in made])
        return
    for topic in made:
        click.echo(str(topic))


@click.command()
@bootstrap_option
@topic_option("--topic", names.INPUT_TOPIC, "Where the orders go.")
@click.option("--count", type=click.IntRange(0, 100_000_000), required=True, help="How many orders readers will see.")
@click.option("--start", type=click.IntRange(0), help="Number of the first order  [default: one not used in the topic]")
@click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds give equal orders.")
@click.option("--bad-every", type=click.IntRange(0), default=0, help="Make every Nth order unreadable.")
@click.option("--transactional", is_flag=True, envvar="SEED_TRANSACTIONAL", help="Write in transactions, some aborted.")
@click.option(
    "--abort-every", type=click.IntRange(0), default=3, show_default=True, help="Abort every Nth transaction."
)
@click.option("--transaction-size", type=click.IntRange(0), default=0, help="Orders in each  [default: 100, or fewer]")
@click.option(
    "--transaction-timeout-s",
    type=click.FloatRange(1, 900),
    default=60.0,
    show_default=True,
    help="How long the brokers let a transaction stay open.",
)
@click.option("--markers-only-partition", type=click.IntRange(0), help="A partition for aborted transactions only.")
@click.option("--leave-open", is_flag=True, help="At the end open one more transaction, and leave it so.")
@json_option
def seed(bootstrap: str, start: int | None, transaction_timeout_s: float, as_json: bool, **fields: object) -> None:
    """
    Write orders with unique keys, spread over all partitions and tiers.

    \b
    Examples:
      python -m proof seed --count 30
      python -m proof seed --count 1000000 --start 5000000 --seed 7
      python -m proof seed --count 300 --transactional --markers-only-partition 2
      python -m proof seed --count 20 --bad-every 5
    """  # noqa: D301 - click's own mark
    Seeding(start=start or 0, **fields)  # type: ignore[arg-type]
    connection = connected(bootstrap)
    topic = str(fields["topic"])
    first = seeder.next_number(connection, topic, Deadline(_WAIT_S)) if start is None else start
    plan = Seeding(start=first, **fields)  # type: ignore[arg-type]
    with progress() as bar:
        task = bar.add_task(topic, total=plan.count)
        done = seeder.seed(
            connection,
            plan,
            deadline=Deadline(_WAIT_S),
            advance=lambda count: bar.advance(task, count),
            transaction_timeout_s=transaction_timeout_s,
        )
    if as_json:
        say_json(dataclasses.asdict(done))
        return
    click.echo(str(done))


def progress() -> Progress:
    """A bar on a terminal, nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())


@click.command()
@bootstrap_option
@click.option("--transactional-id", required=True, metavar="ID", help="Whose open transaction to abort.")
def resolve(bootstrap: str, transactional_id: str) -> None:
    """
    Abort the transaction that a dead producer left open, by fencing its id.

    A producer of that id that is still alive can't go on afterwards.

    \b
    Example:
      python -m proof resolve --transactional-id seed:brew.orders.v1:open
    """  # noqa: D301 - click's own mark
    seeder.resolve(connected(bootstrap), transactional_id, Deadline(_WAIT_S))
    click.echo(f"no transaction of {transactional_id!r} is open any more")


_CUSTOMERS_WAIT_S = 60.0
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
            connection,
            plan,
            partitions,
            deadline=Deadline(_CUSTOMERS_WAIT_S),
            advance=lambda count: bar.advance(task, count),
        )
    if as_json:
        say_json(dataclasses.asdict(done))
        return
    click.echo(str(done))
