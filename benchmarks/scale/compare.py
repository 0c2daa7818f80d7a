"""Measured runs and the same runs simulated, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.table import Table

from protocol.errors import Refused
from scale.numbers import Numbers
from scale.scenario import Scenario
from scale.simulate import simulate

FILE = Path(__file__).with_name("check.json")


@dataclass(frozen=True, slots=True)
class Measured:
    """
    Real runs over ``partitions`` beside one broker on a machine of ``cores``: rates, memory of the program.

    ``start_s``: of each run, from process start to the first grant; it does not count. ``cpu_us``: of a
    record, in program and broker, without the start and the broker's compilers. ``speeds``: one thread's, around each.
    """

    partitions: int
    orders: int
    record_bytes: int
    cores: int
    start_s: float
    records_per_s: tuple[float, ...]
    speeds: tuple[float, ...]
    cpu_us: float
    peak_mib: float
    load: float

    @property
    def middle(self) -> float:
        return median(self.records_per_s)

    def scenario(self) -> Scenario:
        """The same run, to be simulated."""
        return Scenario(
            partitions=self.partitions,
            executors=1,
            slots_per_executor=1,
            cores=self.cores,
            brokers=1,
            record_bytes=self.record_bytes,
            backlog=max(1, self.orders // self.partitions),
            network_ms=0.0,
            replication_ms=0.0,
            one_machine=True,
            without_spark=True,
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """What was measured, and what the simulator says of it; ``speed``: one thread's, with the single numbers."""

    measured: Measured
    speed: float
    simulated_per_s: float
    simulated_cpu_us: float = 0.0

    @property
    def off(self) -> float:
        """The simulated rate over the measured one, less 1."""
        return self.simulated_per_s / self.measured.middle - 1


def compare(measured: Sequence[Measured], numbers: Numbers) -> list[Compared]:
    found = []
    for one in measured:
        report = simulate(one.scenario(), numbers)
        found.append(Compared(one, numbers.speed, report.records_per_s, 1e6 * report.cpu_s / report.records_out))
    return found


def keep(measured: Sequence[Measured], path: Path) -> None:
    path.write_text(json.dumps([asdict(one) for one in measured], indent=2) + "\n")


def kept(path: Path = FILE) -> list[Measured]:
    """
    What `keep` wrote.

    Raises:
        Refused: there is nothing, or it is something else.
    """
    try:
        return [
            Measured(**{name: tuple(value) if isinstance(value, list) else value for name, value in one.items()})
            for one in json.loads(path.read_text())
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Refused(
            f"{path.name}: no measured runs ({type(error).__name__}); measure them with `make bench-scale`"
        ) from error


def verdict(found: Sequence[Compared], tolerance: float) -> tuple[Table, int]:
    """A table, and the exit code: 0 when every simulated rate is near enough, else 1."""
    if not found:
        raise Refused("nothing was compared; name partitions, as in --partitions 4,64")
    table = Table(title=f"Simulated against measured, direct reader without Spark (at most {tolerance:.0%} off)")
    for name in (
        "partitions",
        "orders",
        "measured, records/s",
        "simulated, records/s",
        "off by",
        "CPU us, measured / simulated",
        "one thread's speed",
        "load",
        "",
    ):
        table.add_column(name, justify="right")
    wrong = False
    for one in found:
        good = abs(one.off) <= tolerance
        wrong = wrong or not good
        real = one.measured
        low, high = min(real.records_per_s), max(real.records_per_s)
        table.add_row(
            f"{real.partitions}",
            f"{real.orders:,}",
            f"{real.middle:,.0f} ({low:,.0f}-{high:,.0f})",
            f"{one.simulated_per_s:,.0f}",
            f"{one.off:+.1%}",
            f"{real.cpu_us:.1f} / {one.simulated_cpu_us:.1f}",
            f"{median(real.speeds) / one.speed:.2f}",
            f"{real.load:.1f}",
            "ok" if good else f"more than {tolerance:.0%} off",
        )
    return table, int(wrong)
