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


class Shop:
    """Enriched orders of one test, and the program that counts them."""

    def __init__(self, stage: Stage, home: Path) -> None:
        self.stage, self.home, self.sold = stage, home, 0
        stage.create(1, output=PARTITIONS)

    def sell(self, count: int) -> None:
        price = '"loyalty_tier":"gold","loyalty_discount":0.15'
        orders = [(n, f'{{"customer_id":"c-{n % 7}","total_cents":{n},{price}}}') for n in range(count)]
        self.stage.produce(self.stage.names.output, *((n % PARTITIONS, b"k", value.encode()) for n, value in orders))
        self.sold += count

    def command(self, *options: str) -> list[str]:
        names = self.stage.names
        place = ["--bootstrap", self.stage.broker.bootstrap, "--topic", names.output, "--group", names.group]
        state = ["--output", names.topic("totals"), "--state-dir", str(self.home), "--max-offsets", "30"]
        return ["downstream", "totals", *place, *state, "--json", *options]

    def count(self, *options: str) -> Ran:
        with self.stage.python(*self.command(*options)) as program:
            return program.wait(60)

    @property
    def settings(self) -> TotalsSettings:
        names = self.stage.names
        return TotalsSettings(self.stage.connection, names.group, names.output, names.topic("totals"), max_offsets=30)

    @property
    def state(self) -> Path:
        return self.home / self.settings.group

    def counted(self) -> RunResult:
        """What the program does, in this process: a start of Python costs more than all the rest."""

        def store_of(partition: int, changelog: Topic) -> RocksStore:
            return RocksStore(self.state / str(partition), changelog.topic_id)

        return Run(self.settings, store_of, threading.Event()).run(follow=False)

    def assert_equal(self, notes: Sequence[str] = ()) -> None:
        """State, changelog, results and recomputation agree, and the state was really looked at."""
        report = recompute(self.settings, self.state)
        assert (report.equal, report.orders, report.notes) == (True, self.sold, list(notes)), report.text()


@pytest.fixture
def shop(stage: Stage, tmp_path: Path) -> Shop:
    made = Shop(stage, tmp_path / "state")
    made.sell(80)
    return made


def test_a_killed_totals_program_rebuilds_its_state_and_miscounts_nothing(shop: Shop) -> None:
    """SIGKILL before and after the changelog's commit (F33): a state that was not closed is wiped and restored."""
    for point in POINTS:
        ran = shop.count("--crash-point", point)
        assert ran.code == -signal.SIGKILL, ran.text
        assert f"crash at {point}" in ran.err
        shop.sell(20)
    told = shop.counted()
    assert told.restored > 0
    shop.assert_equal()


def test_a_lost_state_is_restored_and_a_good_one_is_not(shop: Shop) -> None:
    """After a clean end nothing is read again; without the directory all of it."""
    shop.counted()
    shop.sell(20)
    assert shop.counted().restored == 0
    shop.assert_equal()
    shutil.rmtree(shop.home)
    shop.sell(20)
    assert shop.counted().restored > 0
    shop.assert_equal()


def test_a_state_that_was_tampered_with_is_found(shop: Shop) -> None:
    """`--recompute` exits with 1 and names the total, wanted and found."""
    shop.counted()
    place = next(path for path in sorted(shop.home.glob("*/*/db")) if _totals(path))
    database = Rdict(str(place), Options(raw_mode=True))
    key = _totals_of(database)[0]
    database[key] = b"1000 1 1 0"
    database.close()
    ran = shop.count("--recompute")
    assert ran.code == ExitCode.VIOLATION, ran.text
    report = json.loads(ran.out)
    assert report["differences"] == 1
    assert report["first"][0]["where"] == f"state {place.parent}"
    assert (report["first"][0]["key"], report["first"][0]["found"]) == (key.decode(), "1000 1 1 0")


def test_sigterm_closes_the_state_in_good_order(shop: Shop) -> None:
    """It follows until then; the next start has nothing to restore."""
    with shop.stage.python(*shop.command("--follow")) as program:
        until(lambda: _results(shop) > 0, "results", 30)
        program.terminate()
        ran = program.wait(20)
    assert ran.code == 0, ran.text
    assert shop.counted().restored == 0
    shop.assert_equal()


def _results(shop: Shop) -> int:
    try:
        return len(shop.stage.records(shop.settings.output))
    except BrewError:  # the program is still to make the topic
        return 0


def _totals(place: Path) -> list[bytes]:
    database = Rdict(str(place), Options(raw_mode=True))
    try:
        return _totals_of(database)
    finally:
        database.close()


def _totals_of(database: Rdict) -> list[bytes]:
    return [key for key in database.keys() if isinstance(key, bytes) and key.startswith(b"customer/")]  # noqa: SIM118 - a Rdict
