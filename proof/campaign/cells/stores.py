"""Common parts of cells with a database: servers, downstream programs, and sums of what they wrote."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil
import psycopg

from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, Refused
from brew.kafka import cluster_admin, offsets
from brew.names import READ_UNCOMMITTED
from proof.campaign.cluster import SandboxFolder
from proof.campaign.programs import Program, repeated
from proof.campaign.stage import CellEnvironment, StalledError

_COMMAND_S = 90.0
POSTGRES, REDIS, SCHEMA = "postgres", "redis", "cell"
_POLL_S, _CONNECT_S, _ASK_S, _END_S = 0.02, 5, 30.0, 60.0
_ROOM, DIES = 1.5, 0.4


class Servers(SandboxFolder):
    """Servers in a folder of their own; for a missing one, the sandbox's error names the command that installs it."""

    def __init__(self) -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="brew-stores-")), "stores")
        self.folder.chmod(0o711)  # PostgreSQL does not run as root

    def up(self, name: str, **settings: str) -> str:
        """Start a server with the data it has; return its URL."""
        self.run("up", name, *repeated("--property", settings))
        return self.url(name)

    def url(self, name: str) -> str:
        return str(self.status()[name]["url"])

    def backup(self, name: str) -> Path:
        """Stop the server, copy its data, restart it; return the copy."""
        copy = self.folder / f"{name}-backup"
        self.run("down", name)
        _copy(self.folder / name, copy)
        self.run("up", name)
        return copy

    def restore(self, name: str, copy: Path) -> None:
        self.run("down", name)
        shutil.rmtree(self.folder / name)
        _copy(copy, self.folder / name)
        self.run("up", name)


def _copy(source: Path, target: Path) -> None:
    """Copy a directory with owners and permissions, which PostgreSQL checks."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True, timeout=_COMMAND_S)  # noqa: S607 - coreutils


@dataclass(frozen=True)
class Consumer:
    """
    One downstream pattern on the cell's output, in its own group; leaves nothing on the brokers. ``words``: its command
    line without broker, topic and group; ``made``: topics that it creates; ``bug``: of `tests.kills.broken`. Unless its
    members ``join`` the group, each reads all partitions, so that nobody waits for a dead member's session.
    """

    stage: CellEnvironment
    words: tuple[str, ...]
    made: tuple[str, ...] = ()
    bug: str = ""
    join: bool = False

    @property
    def pattern(self) -> str:
        return self.words[0]

    @property
    def group(self) -> str:
        return f"{self.stage.names.stem}.{self.pattern}"

    def start(self, *options: str, name: str = "", join: bool = False) -> Program:
        """Start a member that drains the topic, unless ``options`` say otherwise."""
        program = ("tests.kills.broken", self.bug) if self.bug else ("downstream",)
        everything = ("--partitions", ",".join(map(str, range(self.stage.cell.partitions))))
        words = (*self._line(), *(() if self.join or join else everything), *options)
        return self.stage.other(name or self.pattern, *program, *words)

    def drain(self, *options: str) -> Program:
        """Run a member to the end of the log; raise `StalledError` if it does not get there."""
        return ended(self.stage, self.start(*options))

    def work_off(self, count: int) -> Program:
        """Run more orders through the pipeline, and a member to the end of its output."""
        produce_orders(self.stage, count)
        return self.drain()

    def drain_and_check(self, *options: str) -> dict[str, Any]:
        """Run a member to the end of the log, and add what the program's own check finds; return its report."""
        self.drain(*options)
        report = self.checked()
        add_check_findings(self.stage, report)
        return report

    def checked(self, option: str = "--check") -> dict[str, Any]:
        """Return the JSON report of its own check; it must exit with 0 or 1."""
        program = self.stage.other(f"{self.pattern}-check", "downstream", *self._line(), option, "--json")
        return program.report(Deadline(_END_S))

    def position(self) -> int:
        """Return the sum of the group's committed offsets in Kafka, which grows with every commit."""
        whose = (self.stage.cluster.connection, self.group, self.stage.names.output)
        committed = offsets.committed_by(*whose, range(self.stage.cell.partitions), READ_UNCOMMITTED, Deadline(_ASK_S))
        return sum(position.offset for position in committed.values() if position is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrewError):
            if self.made:
                cluster_admin.delete_topics(self.stage.cluster.admin, list(self.made), Deadline(_ASK_S))
            cluster_admin.delete_group(self.stage.cluster.connection, self.group, Deadline(_ASK_S))

    def _line(self) -> list[str]:
        where = ["--bootstrap", self.stage.cluster.bootstrap, "--topic", self.stage.names.output]
        return [self.pattern, *where, "--group", self.group, *self.words[1:]]


def produce_orders(stage: CellEnvironment, count: int) -> None:
    """Run ``count`` more orders through the pipeline, with aborted transactions between them."""
    stage.orders(count, "--transactional")
    stage.drain()


def ended(stage: CellEnvironment, program: Program, code: int = 0) -> Program:
    """Wait until the program has ended with ``code``; return it, or raise `StalledError`."""
    try:
        stage.ended(program, code, stage.deadline.part(_END_S))
    except DeadlineExceeded as error:
        raise StalledError(f"{program.name} did not end: {program.last_output()}") from error
    return program


def stopped(stage: CellEnvironment, program: Program) -> bool:
    """Wait until the program has stopped itself as instructed; return False if it has ended instead."""
    process = psutil.Process(program.pid)  # or its zombie

    def there() -> bool:
        return program.code() is not None or process.status() == psutil.STATUS_STOPPED

    stage.until(there, f"{program.name} at its crash point", _END_S)
    return program.code() is None


def moved(stage: CellEnvironment, position: Callable[[], int], since: float, before: int) -> None:
    """Wait until the position has left ``before``, and record the seconds it took."""
    stage.until(lambda: position() > before, "the first commit after the fault", _END_S)
    stage.recovery_s.append(time.time() - since)


def dying(stage: CellEnvironment, moment: str, how: str = "kill", probability: float = DIES) -> list[str]:
    """Return the options of a member that dies, or stops, at a moment of one of its batches."""
    seed = str(stage.random.randrange(2**31))
    return ["--crash-point", moment, "--crash-how", how, "--crash-prob", str(probability), "--crash-seed", seed]


def kill_repeatedly(
    consumer: Consumer, moments: Sequence[str], position: Callable[[], int], *, per_kill: int, probability: float = DIES
) -> None:
    """Let members die at ``moments``, each after some ``per_kill`` orders, until enough have; the next one recovers."""
    stage = consumer.stage
    died_at: float | None = None
    produce_orders(stage, int(_ROOM * per_kill * stage.kills) + per_kill)
    last = False
    while not last:
        last = stage.fired["kills"] >= stage.kills
        options = [] if last else dying(stage, stage.random.choice(moments), probability=probability)
        before, program = position(), consumer.start(*options)
        moved_at = _first_move(stage, program, position, before)
        if died_at is not None and moved_at is not None:
            stage.recovery_s.append(moved_at - died_at)
        died_at = None
        if last:
            ended(stage, program)
        elif program.code() == -signal.SIGKILL:
            died_at = program.ended_at
            stage.fire("kills")
        elif program.code() == 0:
            produce_orders(stage, int(_ROOM * per_kill * (stage.kills - stage.fired["kills"])))
        else:
            raise StalledError(f"instead of crashing, {program.ending}")


def _first_move(stage: CellEnvironment, program: Program, position: Callable[[], int], before: int) -> float | None:
    """Wait for a program's end; return the time at which the position first left ``before``, or None."""
    moved_at = None
    while program.code() is None:
        stage.deadline.check(f"the end of {program.name}")
        if moved_at is None and position() > before:
            moved_at = time.time()
        time.sleep(_POLL_S)
    return program.ended_at if moved_at is None and position() > before else moved_at


def add_check_findings(stage: CellEnvironment, report: dict[str, Any]) -> None:
    for name, count in report["findings"].items():
        example = next((text for text in report["examples"] if text.startswith(name)), "no example")
        stage.find(name, f"{count}, the first: {example.removeprefix(f'{name}: ')}")


class Sums(NamedTuple):
    """Number of orders, and the cents and cups in them."""

    orders: int
    cents: int
    cups: int


def output_sums(stage: CellEnvironment) -> Sums:
    """Return the sums of the output as a `read_committed` reader sees it."""
    orders = cents = cups = 0
    for _partition, _offset, _key, value, *_ in stage.records(stage.names.output):
        order = json.loads(value or b"")
        orders, cents, cups = orders + 1, cents + order["total_cents"], cups + order["quantity"]
    stage.counts |= {"orders": orders, "cents": cents}
    return Sums(orders, cents, cups)


def totals(stage: CellEnvironment, topic: str) -> tuple[int, Decimal]:
    """Return orders and cents of all tiers together, from the latest records in the topic of results."""
    rows = stage.records(topic)
    latest = {key: json.loads(value) for _, _, key, value, *_ in rows if value is not None}
    tiers = [total for key, total in latest.items() if (key or b"").startswith(b"tier/")]
    return sum(int(t["orders"]) for t in tiers), sum((Decimal(t["sum_cents"]) for t in tiers), Decimal(0))


def query_row(url: str, query: str) -> tuple[Any, ...]:
    """Return one row of the database; raise `Refused` if it can't be queried."""
    try:
        with psycopg.connect(url, options=f"-c search_path={SCHEMA}", connect_timeout=_CONNECT_S) as session:
            row = session.execute(query.encode()).fetchone()
    except psycopg.Error as error:
        raise Refused(f"the database can't be asked: {' '.join(str(error).split())}") from error
    assert row is not None
    return row


def compare(stage: CellEnvironment, name: str, what: str, actual: object, wanted: object) -> None:
    if actual != wanted:
        stage.find(name, f"{what}: {actual} instead of {wanted}")


def compare_ledger(ledger: Consumer, url: str) -> None:
    """Compare rows and balances in the database with the output, to the cent."""
    stage, wanted = ledger.stage, output_sums(ledger.stage)
    rows, cents = query_row(url, "SELECT count(*), coalesce(sum(cents), 0) FROM ledger_entries")
    name = "ledger-missing" if rows < wanted.orders else "ledger-duplicate"
    compare(stage, name, "rows of the ledger", rows, wanted.orders)
    compare(stage, "ledger-drift", "cents in the ledger's rows", cents, wanted.cents)
    booked = query_row(url, "SELECT coalesce(sum(orders), 0), coalesce(sum(cents), 0) FROM ledger_balances")
    compare(stage, "ledger-drift", "orders and cents in the balances", booked, (wanted.orders, wanted.cents))
    stage.notes.append(f"{rows} rows of {wanted.orders} outputs, {booked[1]} of {wanted.cents} cents")


def compare_receiver(receiver: Consumer, url: str) -> None:
    stage, wanted = receiver.stage, output_sums(receiver.stage)
    effects, messages = query_row(url, "SELECT count(*), count(DISTINCT message_id) FROM receiver_effects")
    compare(stage, "receiver-lost", "messages with an effect", messages, wanted.orders)
    compare(stage, "receiver-duplicate", "effects", effects, messages)
    points = query_row(url, "SELECT coalesce(sum(points), 0) FROM receiver_points")[0]
    compare(stage, "receiver-duplicate" if points > wanted.cups else "receiver-lost", "points", points, wanted.cups)
    stage.notes.append(f"{effects} effects of {wanted.orders} outputs, {points} of {wanted.cups} points")
