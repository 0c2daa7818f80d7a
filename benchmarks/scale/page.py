"""The page's tables made anew: each block that begins with a command of ours gets what the command prints now."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rich.table import Table

from scale.numbers import STEPS, Numbers

_BLOCK = re.compile(
    r"(```console\n\$ python -m benchmarks\.scale ((?:simulate|numbers|compared)[^\n]*)\n).*?(```)", re.DOTALL
)


_QUIET = 1.5
"""Load on the two cores that a measurement may begin with: brokers of its own take more than that."""


def commands(text: str) -> list[str]:
    """What stands behind `python -m benchmarks.scale` in the page's blocks, each once."""
    return list(dict.fromkeys(block[2] for block in _BLOCK.finditer(text)))


def refreshed(text: str, told: Mapping[str, str]) -> str:
    """``told``: what each of these commands prints."""
    return _BLOCK.sub(lambda block: f"{block[1]}{_trimmed(told[block[2]])}\n{block[3]}", text)


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def busy(numbers: Numbers) -> str:
    """What to say of numbers that were taken beside other work; nothing when the machine was quiet."""
    load = numbers.conditions.get("load before the start", "0")
    if float(load) <= _QUIET:
        return ""
    return f"taken on a machine that was busy with other work (load {load}): for the shape, not for ordering hardware"


def measured(numbers: Numbers) -> list[Table]:
    """All single numbers as tables."""
    steps = Table(title="A transaction of one record, one broker, loopback", title_justify="left")
    for name in ("step", "clock, ms", "Python, ms", "client threads, ms", "broker, ms", "round trips"):
        steps.add_column(name, justify="left" if name == "step" else "right")
    for step in STEPS:
        cost = numbers.steps[step]
        values = (cost.wall_ms, cost.python_ms, cost.native_ms, cost.broker_ms)
        steps.add_row(step, *(f"{value:.2f}" for value in values), f"{cost.trips:.0f}")
    rest = Table(title="Everything else", title_justify="left")
    rest.add_column("")
    rest.add_column("measured", justify="right")
    for name, value in _rest(numbers).items():
        rest.add_row(name, value)
    return [steps, rest]


def _rest(numbers: Numbers) -> dict[str, str]:
    lines = {
        "CPU of a record: Python, taking it": numbers.take,
        "... Python, enriching and queueing it": numbers.produce,
        "... client threads, fetching": numbers.fetch,
        "... client threads, sending": numbers.send,
        "... broker, fetches": numbers.broker_fetch,
        "... broker, appends": numbers.broker_append,
    }
    requests = ", ".join(f"{name} {count:.1f}" for name, count in numbers.requests.items())
    tail, transaction, logs = numbers.tail, numbers.transaction, numbers.logs
    around = {
        "a partition's reader, opened": numbers.tail_open,
        "... and closed": numbers.tail_close,
        "the driver's look at where partitions stand": numbers.survey,
        "... each of them adds": numbers.survey_partition,
    }
    return {
        **{name: f"{line.us:.2f} us + {line.us_per_kib:.2f} us/KiB" for name, line in lines.items()},
        **{
            name: (
                f"{cost.wall_ms:.2f} ms; CPU of Python {cost.python_ms:.2f}, client threads {cost.native_ms:.2f}, "
                f"broker {cost.broker_ms:.2f}"
            )
            for name, cost in around.items()
        },
        "a fetch that finds nothing: program, broker": (
            f"{numbers.idle.client_us:.0f} us, {numbers.idle.broker_us:.0f} us"
        ),
        "from one partition's turn to another's": f"{numbers.change_us:.0f} us",
        "group coordinator's threads, a transaction": f"{numbers.coordinator_us:.0f} us",
        "a broker's CPU for a connection, opened and closed": f"{numbers.connection_us:.0f} us",
        "each further broker adds to a transaction: client, brokers": (
            f"{numbers.native_us_per_broker:.0f} us, {numbers.broker_us_per_broker:.0f} us"
        ),
        "each further partition of the output adds: client, brokers": (
            f"{numbers.native_us_per_partition:.2f} us, {numbers.broker_us_per_partition:.2f} us"
        ),
        "orders that one thread enriches meanwhile": f"{numbers.speed:,.0f} a second",
        "one producer into one partition": f"{numbers.flush_mib_per_s:.0f} MiB/s",
        "connections of a tail, n brokers": f"{tail.at_one:.0f} + {tail.per_broker:.1f} (n - 1)",
        "connections of a transaction, n brokers": f"{transaction.at_one:.0f} + {transaction.per_broker:.1f} (n - 1)",
        "requests of a transaction": f"{sum(numbers.requests.values()):.1f}",
        "... of which": requests,
        "bytes of a transaction in __transaction_state": f"{logs.transaction_state:.0f}",
        "... in __consumer_offsets": f"{logs.consumer_offsets:.0f}",
        "... of its marker on the output": f"{logs.marker:.0f}",
        "bytes that a record grows by": f"{logs.record_overhead:.0f}",
        "a holder's process, MiB": f"{numbers.memory.process_mib:.0f}",
        "... each partition that it holds": (
            f"{numbers.memory.partition_mib:.2f} MiB, {numbers.memory.partition_threads:.1f} threads"
        ),
        "process start to the first grant": f"{numbers.start_s:.2f} s",
        "... Spark adds": f"{numbers.spark_start_s:.2f} s",
        "connector: a cycle without its transactions": f"{numbers.connector.cycle_s:.2f} s",
        "... CPU of a record, whole tree": f"{numbers.connector.cpu_us:.1f} us",
        "measured": f"{numbers.conditions.get('date', '?')}, {numbers.conditions.get('cores', '?')}",
        "load before": numbers.conditions.get("load before the start", "?"),
    }
