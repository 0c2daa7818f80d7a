"""The command that simulates: its options, and one run for each combination of their values."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import click

from pipeline.settings import Reader
from protocol.errors import UsageError
from scale.costs import costs
from scale.numbers import FILE, load
from scale.scenario import Scenario
from scale.show import SHOWN, document, show, tables
from scale.simulate import simulate

_DEFAULT = Scenario()
numbers_option = click.option(
    "--numbers",
    type=click.Path(dir_okay=False, path_type=Path),
    default=FILE,
    show_default="benchmarks/scale/numbers.json",
    help="Measured single numbers.",
)


def _many(_context: click.Context, parameter: click.Parameter, given: str) -> list[int]:
    words = given.replace("_", "").split(",")
    if not all(word.isdigit() for word in words):
        raise click.BadParameter(f"{given!r}: write a number, or several with commas", param=parameter)
    return [int(word) for word in words]


def several(name: str, default: int, text: str) -> Any:
    return click.option(name, default=str(default), show_default=True, callback=_many, help=text, metavar="N[,N...]")


@click.command("simulate")
@click.option(
    "--reader", type=click.Choice([one.value for one in Reader]), default=Reader.DIRECT.value, show_default=True
)
@several("--partitions", 64, "Of the input and of the output.")
@several("--executors", 4, "Machines of Spark's.")
@several("--cores", 4, "Processors of each executor.")
@several("--slots", 0, "Task slots of each executor; 0: as many as it has cores.")
@several("--brokers", 3, "Machines of Kafka's.")
@click.option("--broker-cores", type=int, default=8, show_default=True, help="Processors of each broker.")
@click.option("--replicas", type=int, default=3, show_default=True, help="Of the output; brokers at most.")
@several("--record-bytes", 160, "Key and value of one record.")
@several("--transaction-bytes", _DEFAULT.transaction_bytes, "Direct: input of one transaction, at most.")
@several("--max-records-per-transaction", 250_000, "Records of one transaction, at most.")
@click.option("--read-ahead-bytes", type=int, default=_DEFAULT.read_ahead_bytes, show_default=True)
@click.option("--lease", type=float, default=_DEFAULT.lease_s, show_default=True, help="Direct: seconds.")
@several("--turns", _DEFAULT.turns, "Direct: transactions of a process at a time; 0: all.")
@several("--producing", _DEFAULT.producing, "Direct: of these, those that read and produce; 0: all.")
@several("--lanes", 2, "Connector: cycles that overlap.")
@several("--groups", 1, "Consumer groups that share the partitions (runs with different inputs).")
@click.option("--rate", type=float, default=0, help="Records/s that arrive over all; 0: as fast as it goes.")
@click.option("--backlog", type=int, default=0, help="Records of each partition at the start; then drain and end.")
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Simulated, counted.")
@click.option("--warm-up", type=float, default=2.0, show_default=True, help="Simulated before that, seconds.")
@click.option("--network-ms", type=float, default=0.5, show_default=True, help="Round trip beyond the loopback.")
@click.option("--replication-ms", type=float, default=1.0, show_default=True, help="An append on all replicas.")
@several("--lose", 0, "Executors that end, at --lose-at.")
@click.option("--lose-at", type=float, default=5.0, show_default=True, help="Seconds, within what is counted.")
@click.option("--silent", is_flag=True, help="They hang or are cut off; nobody hears of it but by time-out.")
@click.option("--one-machine", is_flag=True, help="Brokers share the executors' processors, as on a laptop.")
@click.option("--without-spark", is_flag=True, help="As --master none: no Spark to start.")
@click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds give equal runs.")
@click.option("--show", "shown", type=click.Choice(["all", *SHOWN]), default="all", help="Which of the two tables.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of tables.")
@numbers_option
def simulate_command(numbers: Path, as_json: bool, shown: str, **given: Any) -> None:
    """
    Say how a run would go, and what it costs the brokers; N[,N...] gives a column for each.

    \b
    Examples:
      python -m benchmarks.scale simulate --partitions 1000 --executors 100 --cores 1 --brokers 6
      python -m benchmarks.scale simulate --partitions 1000 --executors 100 --brokers 6 --rate 1000000
      python -m benchmarks.scale simulate --partitions 1000 --transaction-bytes 1048576,4194304,16777216
      python -m benchmarks.scale simulate --partitions 64 --rate 100000 --lose 1 --silent
      python -m benchmarks.scale simulate --reader connector --partitions 64 --lanes 4 --json
    """  # noqa: D301 - click's own mark
    single = load(numbers)
    runs = []
    for name, scenario in scenarios(given):
        report = simulate(scenario, single)
        runs.append((name, scenario, report, costs(scenario, single, report)))
    if as_json:
        click.echo(json.dumps([document(*one) for _, *one in runs], indent=2))
        return
    show(table for name, table in zip(SHOWN, tables(runs), strict=True) if shown in {"all", name})


_FIELDS = {
    "slots": "slots_per_executor",
    "lease": "lease_s",
    "warm_up": "warm_up_s",
    "max_records_per_transaction": "max_records",
}


def scenarios(given: dict[str, Any]) -> list[tuple[str, Scenario]]:
    """
    All combinations of the options that have several values, each with what tells it from the others.

    Raises:
        UsageError: more than one option has several, or a value is out of its limits.
    """
    several = {name: value for name, value in given.items() if isinstance(value, list)}
    varied = [name for name, value in several.items() if len(value) > 1]
    if len(varied) > 2:  # noqa: RUF100
        options = ", ".join(f"--{name.replace('_', '-')}" for name in varied)
        raise UsageError(f"{options} have several values each: give that to two options at most")
    found = []
    for values in itertools.product(*several.values()):
        chosen = {**given, **dict(zip(several, values, strict=True))}
        chosen["reader"] = Reader(chosen["reader"])
        name = ", ".join(f"{chosen[one]:,} {one.replace('_', ' ')}" for one in varied) or "run"
        found.append((name, Scenario(**{_FIELDS.get(field, field): value for field, value in chosen.items()})))
    return found
