"""Commands that create topics and write orders and customers; `proof.seed` generates the orders."""

from __future__ import annotations

import dataclasses
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from brew import names
from brew.claims import messages
from brew.cli import bootstrap_option, flag, plain_option, typed_option
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import UsageError
from brew.kafka import topics as kafka_topics
from brew.kafka.clients import admin
from brew.kafka.cluster_admin import roomier_limit
from brew.kafka.topics import TopicSpec
from brew.names import quantity
from brew.orders import COMPACT, profile
from proof import seed as seeder
from proof.commands import connected, json_option, print_result, topic_option, topic_options
from proof.seed import Seeding, Writer

_ANY = -1  # partition by the key's murmur2 hash, as Java producers do
_KEPT_MS, _CHUNK = 24 * 3600 * 1000, 10_000
_NATURAL, _COUNT, _PARTITIONS = click.IntRange(0), click.IntRange(0, 100_000_000), click.IntRange(1, 10_000)
_TIMEOUT_S = click.FloatRange(1, 900)
_SHARES = {"gold": 5, "silver": 15, "bronze": 30, "standard": 50}
_WAIT_S = _WRITE_S = 60.0
Profile = tuple[bytes, bytes | None]
"""Customer id and value; None removes the customer."""


def _topic_text(made: dict[str, Any]) -> str:
    size = f"{quantity(made['partitions'], 'partition')}, {quantity(made['replicas'], 'replica')}"
    if made["created"]:
        return f"{made['topic']}: created with {size}"
    wanted = made["wanted_partitions"]
    unchanged = "" if made["partitions"] == wanted else f"; not changed to {quantity(wanted, 'partition')}"
    return f"{made['topic']}: exists with {size}{unchanged}"


def create_topics(
    connection: Connection, named: Mapping[str, str], partitions: int, deadline: Deadline
) -> list[dict[str, Any]]:
    """Create missing topics, ``named`` by role; outputs accept the largest input with the fields and headers we add."""
    client, source = admin(connection), named["input"]
    made = kafka_topics.create(client, [TopicSpec(source, partitions, {})], deadline)
    kafka_topics.describe_all(client, [source], deadline)
    room = roomier_limit(client, source, deadline)
    others = [
        TopicSpec(named["output"], partitions, room),
        TopicSpec(named["dead_letter"], partitions, room),
        TopicSpec(named["customers"], partitions, {"cleanup.policy": "compact"}),
        TopicSpec(named["claims"], messages.PARTITIONS, messages.CONFIG),
    ]
    made |= kafka_topics.create(client, others, deadline)
    there = kafka_topics.describe_all(client, list(made), deadline)
    asked = {name: messages.PARTITIONS if name == named["claims"] else partitions for name in made}
    return [
        {"topic": name, "created": created, "partitions": there[name].partitions, "replicas": there[name].replicas}
        | {"wanted_partitions": asked[name]}
        for name, created in made.items()
    ]


@dataclass(frozen=True, slots=True)
class Customers:
    """The profiles to write: ``count`` customers, `c-00001` and so on, then random ``updates`` and ``tombstones``."""

    topic: str
    count: int
    seed: int = 0
    updates: int = 0
    tombstones: int = 0

    def __post_init__(self) -> None:
        if min(self.count, self.updates, self.tombstones) < 0:
            raise UsageError("--customers, --updates and --tombstones can't be negative; give 0 or more")
        if self.tombstones > self.count:
            given = f"--tombstones is {self.tombstones} and --customers {self.count}"
            raise UsageError(f"{given}; give at most one per customer")
        if self.updates and not self.count:
            raise UsageError(f"--updates is {self.updates} and --customers 0; give at least one customer to update")

    @property
    def records(self) -> int:
        return self.count + self.updates + self.tombstones


def chunks(plan: Customers) -> Iterator[list[Profile]]:
    every = _profiles(plan)
    while chunk := list(islice(every, _CHUNK)):
        yield chunk


def _profiles(plan: Customers) -> Iterator[Profile]:
    rng = random.Random(plan.seed)  # noqa: S311 - example data
    tiers = [tier for tier, share in _SHARES.items() for _ in range(share)]

    customers = range(1, plan.count + 1)
    for number in chain(customers, (rng.randint(1, plan.count) for _ in range(plan.updates))):
        customer = f"c-{number:05d}"
        yield customer.encode(), profile(customer, rng.choice(tiers))
    for number in rng.sample(customers, plan.tombstones):
        yield b"c-%05d" % number, None


def write_customers(
    connection: Connection, plan: Customers, partitions: int, *, deadline: Deadline, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Write the planned profiles; a topic created here keeps replaced ones for a day, so that `verify` finds them."""
    client = admin(connection)
    config = {kafka_topics.CLEANUP_POLICY: COMPACT, "min.compaction.lag.ms": str(_KEPT_MS)}
    created = False
    if not kafka_topics.describe(client, [plan.topic], deadline):
        created = kafka_topics.create(client, [TopicSpec(plan.topic, partitions, config)], deadline)[plan.topic]
    there = kafka_topics.describe_all(client, [plan.topic], deadline)[plan.topic]
    with Writer(connection, plan.topic, None, _WRITE_S) as writer:
        began = time.monotonic()
        for chunk in chunks(plan):
            writer.write([(_ANY, profile) for profile in chunk])
            advance(len(chunk))
        writer.flush()
    seconds = time.monotonic() - began
    counts = {"customers": plan.count, "updates": plan.updates, "tombstones": plan.tombstones}
    return {"topic": plan.topic, "created": created, "partitions": there.partitions, **counts, "seconds": seconds}


@click.command()
@bootstrap_option
@typed_option("--partitions", _PARTITIONS, 4, "Number of partitions of each new topic; a new claims topic has 1.")
@topic_options
@topic_option("--customers", names.CUSTOMERS_TOPIC, "Compacted topic of customer profiles.")
@topic_option("--claims", names.CLAIMS_TOPIC, "Topic that records which driver owns which partition.")
@json_option
def topics(bootstrap: str, partitions: int, as_json: bool, **named: str) -> None:
    """
    Create the pipeline's five topics; existing ones are kept.

    Examples:
      python -m proof topics --partitions 8
      python -m proof topics --bootstrap broker:9092 --input my.orders --json
    """
    made = create_topics(connected(bootstrap), named, partitions, Deadline(_WAIT_S))
    print_result(made, "\n".join(map(_topic_text, made)), as_json=as_json)


@click.command()
@bootstrap_option
@topic_option("--topic", names.INPUT_TOPIC, "Topic to write the orders to.")
@plain_option("--count", "Number of orders to write, without aborted ones.", type=_COUNT, required=True)
@plain_option("--start", "Number of the first order  [default: one above the topic's orders]", type=_NATURAL)
@typed_option("--seed", int, 0, "Random seed; equal seeds give equal orders.")
@typed_option("--bad-every", _NATURAL, 0, "Make every Nth order invalid; 0 means none.", show_default=False)
@flag(
    *("--transactional", "Write in transactions; --abort-every sets how many are aborted."), envvar="SEED_TRANSACTIONAL"
)
@typed_option("--abort-every", _NATURAL, 3, "Abort every Nth transaction; 0 means none.")
@plain_option(
    "--transaction-size", "Orders per transaction  [default: a sixth of --count, 1 to 100]", type=_NATURAL, default=0
)
@typed_option("--transaction-timeout-s", _TIMEOUT_S, 60.0, "Seconds after which the brokers abort an open transaction.")
@plain_option(
    "--markers-only-partition", "Partition that gets aborted transactions only; needs --transactional.", type=_NATURAL
)
@flag("--leave-open", "Open one more transaction at the end and leave it open.")
@json_option
def seed(bootstrap: str, start: int | None, transaction_timeout_s: float, as_json: bool, **fields: object) -> None:
    """
    Write orders with unique keys, spread over all partitions and tiers.

    Examples:
      python -m proof seed --count 30
      python -m proof seed --count 1000000 --start 5000000 --seed 7
      python -m proof seed --count 300 --transactional --markers-only-partition 2
      python -m proof seed --count 20 --bad-every 5
    """
    plan = Seeding(start=start or 0, **fields)  # type: ignore[arg-type]
    connection = connected(bootstrap)
    if start is None:
        plan = dataclasses.replace(plan, start=seeder.next_number(connection, plan.topic, Deadline(_WAIT_S)))
    with progress(plan.topic, plan.count) as advance:
        done = seeder.seed(
            connection, plan, deadline=Deadline(_WAIT_S), advance=advance, transaction_timeout_s=transaction_timeout_s
        )
    print_result(dataclasses.asdict(done), str(done), as_json=as_json)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; yield a function that takes the number of newly finished items."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


@click.command()
@bootstrap_option
@plain_option("--transactional-id", "Transactional id whose open transaction to abort.", "ID", required=True)
def resolve(bootstrap: str, transactional_id: str) -> None:
    """
    Abort the transaction that a dead producer left open, by fencing its transactional id.

    If a producer with this id is still running, it is fenced, too, and can't continue.

    Example:
      python -m proof resolve --transactional-id seed:brew.orders.v1:open
    """
    seeder.resolve(connected(bootstrap), transactional_id, Deadline(_WAIT_S))
    click.echo(f"{transactional_id!r} has no open transaction now")


@click.command("seed-customers")
@bootstrap_option
@topic_option(
    "--topic", names.CUSTOMERS_TOPIC, "Topic to write the profiles to; if missing, it is created as compacted."
)
@typed_option("--customers count", _COUNT, 20_000, "Number of customers; one profile each.")
@typed_option("--seed", int, 0, "Random seed; equal seeds give equal profiles.")
@typed_option("--updates", _COUNT, 0, "Number of updates after the first write, each of a random profile.")
@typed_option("--tombstones", _COUNT, 0, "Number of customers to delete at the end.")
@typed_option("--partitions", _PARTITIONS, 4, "Number of partitions if the topic is created.")
@json_option
def seed_customers(bootstrap: str, partitions: int, as_json: bool, **fields: object) -> None:
    """
    Write profiles of the customers c-00001, c-00002 and so on, which the orders of `seed` refer to.

    Examples:
      python -m proof seed-customers
      python -m proof seed-customers --customers 1000000 --updates 5000 --tombstones 1000
      python -m proof seed-customers --topic my.customers --seed 7 --json
    """
    plan = Customers(**fields)  # type: ignore[arg-type]
    connection = connected(bootstrap)
    with progress(plan.topic, plan.records) as advance:
        done = write_customers(connection, plan, partitions, deadline=Deadline(_WAIT_S), advance=advance)
    size = f"{'created with ' if done['created'] else ''}{quantity(done['partitions'], 'partition')}"
    changes = f"{quantity(plan.updates, 'update')}, {quantity(plan.tombstones, 'deletion')}, {done['seconds']:.1f} s"
    print_result(done, f"{quantity(plan.count, 'customer')} on {plan.topic} ({size}), {changes}", as_json=as_json)
