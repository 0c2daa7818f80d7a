"""`downstream totals` with its state in RocksDB: killed, wiped, tampered with, and stopped in good order."""

from __future__ import annotations

import json
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.pipeline import Ran, Stage, until
from rocksdict import Options, Rdict

from brew.errors import BrewError
from brew.kafka.topics import Topic
from brew.names import ExitCode
from downstream.totals.command import recompute
from downstream.totals.run import Run, RunResult
from downstream.totals.state_store import RocksStore
from downstream.totals.topics import TotalsSettings

PARTITIONS = 2
POINTS = ("after-flush", "after-commit")


class TotalsProgram:
    """Enriched orders of one test, and the program that counts them."""

    def __init__(self, stage: Stage, state_dir: Path) -> None:
        self.stage, self.state_dir, self.written = stage, state_dir, 0
        stage.create(1, output=PARTITIONS)

    def write_orders(self, count: int) -> None:
        discount = '"loyalty_tier":"gold","loyalty_discount":0.15'
        orders = [(n, f'{{"customer_id":"c-{n % 7}","total_cents":{n},{discount}}}') for n in range(count)]
        self.stage.produce(self.stage.names.output, *((n % PARTITIONS, b"k", value.encode()) for n, value in orders))
        self.written += count

    def command(self, *options: str) -> list[str]:
        names = self.stage.names
        source = ["--bootstrap", self.stage.broker.bootstrap, "--topic", names.output, "--group", names.group]
        state = ["--output", names.topic("totals"), "--state-dir", str(self.state_dir), "--max-offsets", "30"]
        return ["downstream", "totals", *source, *state, "--json", *options]

    def run(self, *options: str) -> Ran:
        with self.stage.python(*self.command(*options)) as program:
            return program.wait(60)

    @property
    def settings(self) -> TotalsSettings:
        names = self.stage.names
        return TotalsSettings(self.stage.connection, names.group, names.output, names.topic("totals"), max_offsets=30)

    @property
    def state(self) -> Path:
        return self.state_dir / self.settings.group

    def drain_in_process(self) -> RunResult:
        """What the program does, in this process: a start of Python costs more than all the rest."""

        def store_of(partition: int, changelog: Topic) -> RocksStore:
            return RocksStore(self.state / str(partition), changelog.topic_id)

        return Run(self.settings, store_of, threading.Event()).run(follow=False)

    def assert_equal(self, notes: Sequence[str] = ()) -> None:
        """State, changelog, results and recomputation agree, and the state was really looked at."""
        report = recompute(self.settings, self.state)
        assert (report.equal, report.orders, report.notes) == (True, self.written, list(notes)), report.text()


@pytest.fixture
def totals(stage: Stage, tmp_path: Path) -> TotalsProgram:
    made = TotalsProgram(stage, tmp_path / "state")
    made.write_orders(80)
    return made


def test_a_killed_totals_program_rebuilds_its_state_and_miscounts_nothing(totals: TotalsProgram) -> None:
    """SIGKILL before and after the changelog's commit (F33): a state that was not closed is wiped and restored."""
    for point in POINTS:
        ran = totals.run("--crash-point", point)
        assert ran.code == -signal.SIGKILL, ran.text
        assert f"crash at {point}" in ran.err
        totals.write_orders(20)
    result = totals.drain_in_process()
    assert result.restored > 0
    totals.assert_equal()


def test_a_lost_state_is_restored_and_a_good_one_is_not(totals: TotalsProgram) -> None:
    """After a clean end nothing is read again; without the directory all of it."""
    totals.drain_in_process()
    totals.write_orders(20)
    assert totals.drain_in_process().restored == 0
    totals.assert_equal()
    shutil.rmtree(totals.state_dir)
    totals.write_orders(20)
    assert totals.drain_in_process().restored > 0
    totals.assert_equal()


def test_a_state_that_was_tampered_with_is_found(totals: TotalsProgram) -> None:
    """`--recompute` exits with 1 and names the total, wanted and found."""
    totals.drain_in_process()
    path = next(path for path in sorted(totals.state_dir.glob("*/*/db")) if _totals_at(path))
    database = Rdict(str(path), Options(raw_mode=True))
    key = _totals_in(database)[0]
    database[key] = b"1000 1 1 0"
    database.close()
    ran = totals.run("--recompute")
    assert ran.code == ExitCode.VIOLATION, ran.text
    report = json.loads(ran.out)
    assert report["differences"] == 1
    assert report["first"][0]["where"] == f"state {path.parent}"
    assert (report["first"][0]["key"], report["first"][0]["found"]) == (key.decode(), "1000 1 1 0")


def test_sigterm_closes_the_state_in_good_order(totals: TotalsProgram) -> None:
    """It follows until then; the next start has nothing to restore."""
    with totals.stage.python(*totals.command("--follow")) as program:
        until(lambda: _results(totals) > 0, "results", 30)
        program.terminate()
        ran = program.wait(20)
    assert ran.code == 0, ran.text
    assert totals.drain_in_process().restored == 0
    totals.assert_equal()


def _results(totals: TotalsProgram) -> int:
    try:
        return len(totals.stage.records(totals.settings.output))
    except BrewError:  # the program is still to make the topic
        return 0


def _totals_at(path: Path) -> list[bytes]:
    database = Rdict(str(path), Options(raw_mode=True))
    try:
        return _totals_in(database)
    finally:
        database.close()


def _totals_in(database: Rdict) -> list[bytes]:
    return [key for key in database.keys() if isinstance(key, bytes) and key.startswith(b"customer/")]  # noqa: SIM118 - a Rdict
