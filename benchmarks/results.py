"""What a benchmark leaves behind: a table on the terminal, RESULTS.md, and the same numbers as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil
from contenders import CONTENDERS, JVM_DIR, PIPELINE
from ground import ROOT
from measure import Restart, Run
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """A measure: how to get it from a run, how to write it, and whether more is better."""

    name: str
    value: Callable[[Run], float]
    form: str


ROWS = (
    Row("records/s, first to last visible", lambda r: r.records_per_s, ",.0f"),
    Row("records/s, from process start", lambda r: r.overall_records_per_s, ",.0f"),
    Row("first visible record, s", lambda r: r.first_visible_s, ".1f"),
    Row("last visible record, s", lambda r: r.last_visible_s, ".1f"),
    Row("process start to exit, s", lambda r: r.wall_s, ".1f"),
    Row("CPU of the whole process tree, s", lambda r: r.cpu_s, ".1f"),
    Row("CPU of the broker, s", lambda r: r.broker_cpu_s, ".1f"),
    Row("CPU tree + broker per record, µs", lambda r: 1e6 * (r.cpu_s + r.broker_cpu_s) / r.records, ".1f"),
    Row("CPU of anything else on the machine, s", lambda r: r.foreign_cpu_s, ".1f"),
    Row("peak memory (sum of PSS), MiB", lambda r: r.memory_mib, ",.0f"),
    Row("... of it the driver, MiB", lambda r: r.memory_parts_mib["driver"], ",.0f"),
    Row("... of it the JVM, MiB", lambda r: r.memory_parts_mib["jvm"], ",.0f"),
    Row("... of it Python workers, MiB", lambda r: r.memory_parts_mib["workers"], ",.0f"),
    Row("different source positions in the output", lambda r: r.unique, ",.0f"),
    Row("duplicates", lambda r: r.duplicates, ",.0f"),
)


@dataclass(frozen=True, slots=True)
class Results:
    """Everything measured by one command."""

    command: str
    machine: dict[str, str]
    runs: Sequence[Run]
    restarts: Sequence[Restart]

    def counts(self) -> list[int]:
        return sorted({run.records for run in self.runs})

    def names(self, records: int) -> list[str]:
        """Contenders with runs over so many records, in the order of the list of contenders."""
        ran = {run.contender for run in self.runs if run.records == records}
        return [name for name in CONTENDERS if name in ran]

    def middle(self, name: str, records: int, row: Row) -> float:
        """The median of a measure over the rounds."""
        return median(row.value(r) for r in self.runs if r.contender == name and r.records == records)

    def lines(self, records: int) -> list[list[str]]:
        """A table: measure, each contender's median, and ours divided by each peer."""
        names = self.names(records)
        peers = [name for name in names if not CONTENDERS[name].ours]
        compared = peers if PIPELINE.name in names else []
        lines = [["measure", *names, *(f"ours / {name}" for name in compared)]]
        for row in ROWS:
            values = {name: self.middle(name, records, row) for name in names}
            ratios = [_ratio(values[PIPELINE.name], values[name]) for name in compared]
            lines.append([row.name, *(format(value, row.form) for value in values.values()), *ratios])
        return lines


def _ratio(ours: float, peer: float) -> str:
    return f"{ours / peer:.2f}" if peer else "-"


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": f"{_cores()} ({_cpu_model()})",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load before the start": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        "java": _java(),
        "pyspark": importlib.metadata.version("pyspark"),
        "confluent-kafka": importlib.metadata.version("confluent-kafka"),
        "kafka broker": _jar_version("kafka", "kafka_2.13"),
        "kafka-clients of the connector": _jar_version("spark", "kafka-clients"),
        "commit": _commit(),
    }


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    file = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", file.read_text()) if file.exists() else None
    return found[1].strip() if found else platform.machine()


def _java() -> str:
    told = _told("java", "-version")
    found = re.search(r'version "([^"]+)"', told)
    return found[1] if found else "unknown"


def _told(name: str, *arguments: str) -> str:
    """What a program of PATH says; nothing when it is not there or fails."""
    program = shutil.which(name)
    if program is None:
        return ""
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""


def _jar_version(folder: str, name: str) -> str:
    jars = sorted((JVM_DIR / folder).glob(f"{name}-[0-9]*.jar"))
    return jars[0].stem.removeprefix(f"{name}-") if jars else "unknown"


def _commit() -> str:
    return _told("git", "describe", "--always", "--dirty") or "none"


def table(results: Results, records: int) -> Table:
    """The numbers of one input size, for the terminal."""
    header, *rows = results.lines(records)
    shown = Table(title=f"{records:,} orders, {_rounds(results, records)}")
    for number, name in enumerate(header):
        shown.add_column(name, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*row)
    return shown


def _rounds(results: Results, records: int) -> str:
    rounds = len({run.round for run in results.runs if run.records == records})
    return f"median of {rounds} rounds" if rounds > 1 else "1 round"


def write(results: Results, path: Path) -> None:
    """RESULTS.md, and results.json beside it."""
    path.write_text(_markdown(results))
    twin = path.with_name(path.stem.lower() + ".json")
    document = {
        "command": results.command,
        "machine": results.machine,
        "runs": [asdict(run) for run in results.runs],
        "restarts": [asdict(found) for found in results.restarts],
    }
    twin.write_text(json.dumps(document, indent=2) + "\n")


def _markdown(results: Results) -> str:
    text = ["# Measured", "", "Written by the benchmark; measure again with", "", f"    {results.command}", ""]
    text += _table(["machine", ""], [[name, value] for name, value in results.machine.items()])
    for records in results.counts():
        header, *rows = results.lines(records)
        text += ["", f"## {records:,} orders, {_rounds(results, records)}", "", *_table(header, rows)]
    if results.restarts:
        header = [
            "orders",
            "visible at the kill",
            "waiting in open transactions",
            "first new record, s",
            "after it, verified",
        ]
        rows = [
            [
                f"{r.records:,}",
                f"{r.visible_at_kill:,}",
                f"{r.uncommitted_at_kill:,}",
                f"{r.first_record_s:.1f}",
                r.verified,
            ]
            for r in results.restarts
        ]
        text += ["", "## Restart after `kill -9` in the middle of a transaction", "", *_table(header, rows)]
    names = [name for name in CONTENDERS if any(run.contender == name for run in results.runs)]
    text += ["", "## Who runs", "", *(f"- `{name}`: {CONTENDERS[name].what}." for name in names)]
    return "\n".join([*text, "", *_HOW_TO_READ.splitlines(), ""])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


_HOW_TO_READ = (Path(__file__).with_name("how_to_read.md")).read_text()
