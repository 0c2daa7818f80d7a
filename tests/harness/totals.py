"""The enriched orders of one test, the totals program in this process, and faults injected into it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from brew.deadline import Deadline
from brew.errors import Abortable, BrewError
from brew.kafka.kafka_python import AdminPartition, ask, kafka_python_admin
from brew.kafka.transaction import KafkaTransaction
from brew.names import CrashPoint
from downstream.__main__ import downstream
from downstream.totals.run import Run, RunResult
from downstream.totals.state_store import MemoryStore, Store
from downstream.totals.topics import TotalsSettings

from .pipeline import Stage
from .programs import call_program

PARTITIONS = 2
RATES = {"gold": "0.15", "silver": "0.1", "standard": "0.0"}
abandoned: list[KafkaTransaction] = []


class CrashedError(BaseException):
    """Leaves everything as a kill would."""


def die(kafka: KafkaTransaction) -> None:
    abandoned.append(kafka)
    kafka.close = lambda: None  # type: ignore[method-assign]
    raise CrashedError


def fail(_kafka: KafkaTransaction) -> None:
    raise Abortable("as the broker might say")


@dataclass
class CrashOnce:
    """An action at a point of one stage's transaction, once; by default, a crash."""

    point: CrashPoint
    topic: str
    what: Callable[[KafkaTransaction], object] = die
    happened: bool = False

    def at(self, point: CrashPoint, topic: str, kafka: KafkaTransaction) -> None:
        if (point, topic) == (self.point, self.topic) and not self.happened:
            self.happened = True
            if point is CrashPoint.COMMIT_IN_FLIGHT:
                with suppress(BrewError):
                    kafka.commit_without_waiting()
            self.what(kafka)


@dataclass
class TotalsStage:
    """The enriched orders of one test, the totals program in this process, and the expected results."""

    stage: Stage
    orders: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def settings(self) -> TotalsSettings:
        names = self.stage.names
        return TotalsSettings(
            self.stage.connection, names.group, names.output, names.topic("totals"), timeout_s=10, max_offsets=40
        )

    def write_orders(self, count: int) -> None:
        """Write orders of nine customers and three tiers, each customer's in both partitions."""
        first = len(self.orders)
        records = []
        for n in range(first, first + count):
            tier = list(RATES)[n % 3]
            self.orders.append((f"c-{n % 9}", tier, f"{n}.{n % 7}1"))
            customer, _, cents = self.orders[-1]
            price = f'"total_cents":{cents},"loyalty_discount":{RATES[tier]}'
            value = f'{{"customer_id":"{customer}","loyalty_tier":"{tier}",{price}}}'
            records.append((n // 2 % PARTITIONS, b"k%d" % n, value.encode()))
        self.stage.produce(self.stage.names.output, *records)

    def count(self, crash: CrashOnce | None = None, store: Store | None = None) -> RunResult:
        """Drain once; a store that is given is kept, as by a process that lives on."""

        def store_of(partition: int, _changelog: object) -> Store:
            return store if store is not None and partition == 0 else MemoryStore()

        return Run(self.settings, store_of, threading.Event(), crash=crash).run(follow=False)

    @contextmanager
    def following(self) -> Iterator[None]:
        """Count in a thread meanwhile."""
        stop = threading.Event()
        run = Run(self.settings, lambda _partition, _changelog: MemoryStore(), stop)
        with ThreadPoolExecutor(1) as pool:
            result = pool.submit(run.run, follow=True)
            try:
                yield
            finally:
                stop.set()
            result.result(30)

    def crashed(self, crash: CrashOnce) -> None:
        """Drain once and crash; the crash must occur."""
        with suppress(CrashedError):
            self.count(crash)
        assert crash.happened

    def forget_offset(self, partition: int) -> None:
        """Delete the group's offset in an input partition, as brokers do seven days after its last commit."""
        place, deadline, group = AdminPartition(self.settings.input, partition), Deadline(20), self.settings.group

        async def call(admin: Any) -> dict[Any, Any]:
            answers: dict[Any, Any] = await admin._async_delete_group_offsets(group, [place])
            return answers

        with kafka_python_admin(self.stage.connection, deadline) as admin:
            answers = ask(admin, deadline, "delete offsets", call, admin)
        assert [error.__name__ for error in answers.values()] == ["NoError"]

    def expected(self) -> dict[str, tuple[int, Fraction, Fraction]]:
        found: dict[str, tuple[int, Fraction, Fraction]] = {}
        for customer, tier, cents in self.orders:
            for key in (f"customer/{customer}", f"tier/{tier}"):
                orders, amount, discount = found.get(key, (0, Fraction(0), Fraction(0)))
                found[key] = orders + 1, amount + Fraction(cents), discount + Fraction(cents) * Fraction(RATES[tier])
        return found

    def results(self) -> dict[str, tuple[int, Fraction, Fraction]]:
        """Return the latest result of each key that is visible to a `read_committed` reader."""
        found = {}
        for record in self.stage.records(self.settings.output):
            totals = json.loads(record.value() or b"")
            amounts = Fraction(totals["sum_cents"]), Fraction(totals["discount_cents"])
            assert (record.key() or b"").decode() == f"{totals['kind']}/{totals['id']}"
            found[f"{totals['kind']}/{totals['id']}"] = (totals["orders"], *amounts)
        return found

    def recompute(self) -> tuple[int, dict[str, Any]]:
        """Run `downstream totals --recompute --json`; return exit code and report."""
        settings = self.settings
        words = ["--bootstrap", settings.connection.bootstrap, "--topic", settings.input, "--output", settings.output]
        words += ["--group", settings.group, "--recompute", "--store", "memory", "--json"]
        code, stdout, stderr = call_program(downstream, "downstream", "totals", *words)
        return code, json.loads(stdout) if stdout else {"said": stderr}

    def deviations(self) -> dict[str, Any]:
        """Return the deviations in results, in the program's own comparison, and in open transactions."""
        expected, found = self.expected(), self.results()
        code, report = self.recompute()
        summary = (code, report.get("equal"), report.get("orders"), report.get("pending_deltas"))
        topics = (self.settings.deltas, self.settings.changelog, self.settings.output)
        seen = {
            "results": {key: found.get(key) for key in found | expected if found.get(key) != expected.get(key)},
            "comparison": {} if summary == (0, True, len(self.orders), 0) else {"exit": code, **report},
            "open": [one for topic in topics for one in self.stage.open_transactions(topic)],
        }
        return {kind: what for kind, what in seen.items() if what}
