"""Tiers out of customers' profiles on a real broker: loaded first, followed afterwards, named on every output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from harness.pipeline import READ_UNCOMMITTED, READERS, DrainView, Stage, Status
from harness.programs import until
from harness.servers import make_topics

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import producer
from brew.kafka.topic_reader import FullTopicReader
from brew.offsets import SourcePosition
from brew.orders import DISCOUNTS, PROFILE_OFFSET, profile
from pipeline import profiles

NONE = ("--master", "none")


@dataclass(frozen=True)
class Customers:
    """One test's orders, and the profiles of those who gave them."""

    stage: Stage

    @property
    def topic(self) -> str:
        return self.stage.names.topic("customers")

    def make(self, policy: str = "compact", partitions: int = 2) -> None:
        config = {topics.CLEANUP_POLICY: policy}
        make_topics(self.stage.connection, self.topic, partitions=partitions, config=config)

    def prepare(self, tiers: Mapping[str, str | None], *orders: str, partitions: int = 2) -> None:
        """Make the input and the profiles' topic; write these profiles, then an order of each of these customers."""
        self.stage.create(1)
        self.make(partitions=partitions)
        self.write(tiers)
        if orders:
            self.order(*orders)

    def drain(self, *options: str) -> DrainView:
        return self.stage.drain_locally(*options, *self.options)

    def write(self, tiers: Mapping[str, str | None]) -> None:
        """Profiles by customer; None removes one."""
        records = [(-1, name.encode(), None if tier is None else profile(name, tier)) for name, tier in tiers.items()]
        self.stage.produce(self.topic, *records)

    def order(self, *names: str) -> None:
        """An order of each; all keys say gold."""
        orders = [
            (0, b"gold-%d" % number, b'{"customer_id":"%b"}' % name.encode()) for number, name in enumerate(names)
        ]
        self.stage.produce(self.stage.names.input, *orders)

    @property
    def options(self) -> tuple[str, ...]:
        return ("--tiers", "profiles", "--profiles-topic", self.topic)

    def outputs(self, isolation: str | None = None) -> list[tuple[str, str, bytes]]:
        """Customer, tier and header of each output, in the order of their sources."""
        records = self.stage.records(self.stage.names.output, *([isolation] if isolation else []))
        rows = []
        for record in records:
            source, order = SourcePosition.of(record.headers()), json.loads(record.value() or b"")
            assert source is not None
            assert order["loyalty_discount"] == DISCOUNTS[order["loyalty_tier"]]
            header = dict(record.headers() or ())[PROFILE_OFFSET] or b""
            rows.append((source.offset, order["customer_id"], order["loyalty_tier"], header))
        return [(name, tier, header) for _, name, tier, header in sorted(rows)]

    def verify(self, *more: str) -> tuple[int, Any]:
        return self.stage._proof("verify", *self.stage.options(), *self.options, *more)

    def proven(self, **counts: int) -> None:
        code, report = self.verify()
        assert (code, report["verdict"] if isinstance(report, dict) else report) == (0, "proven"), report
        assert {name: report["counts"][name] for name in counts} == counts


@pytest.fixture
def customers(stage: Stage) -> Customers:
    return Customers(stage)


@pytest.mark.parametrize("reader", READERS)
def test_tiers_come_from_profiles_and_every_output_names_its_own(customers: Customers, reader: str) -> None:
    """Updates, a removed customer, one that nobody knows; the keys' prefix, gold, has no say."""
    customers.prepare({"a": "silver", "b": "gold", "c": "gold"})
    customers.write({"a": "bronze", "c": None})
    customers.order("a", "b", "c", "nobody")
    ran = customers.stage.pipeline(*NONE, "--reader", reader, *customers.options, seconds=60)
    assert ran.code == 0, ran
    outputs = customers.outputs()
    assert [(name, tier) for name, tier, _ in outputs] == [
        ("a", "bronze"),
        ("b", "gold"),
        ("c", "standard"),
        ("nobody", "standard"),
    ]
    assert [header.startswith(b"none ") for *_, header in outputs] == [False, False, True, True]
    assert "2 customers of" in ran.text
    customers.proven(profiled=2, unprofiled=2)
    code, report = customers.stage.verify()
    assert (code, report["totals"]) == (1, {"corrupt-output": 4}), "the checker has to be told"


@pytest.mark.parametrize("reader", READERS)
def test_an_order_meets_every_profile_that_was_written_before_it(customers: Customers, reader: str) -> None:
    """While the run goes on: the table is read on before each transaction. A transaction's profile counts, too."""
    customers.prepare({"a": "silver"})
    with customers.stage.follow(*NONE, "--reader", reader, "--follow", *customers.options) as program:
        for number, tier in enumerate(["silver", "gold", None, "bronze"]):
            if number:
                customers.write({"a": tier})
            customers.order("a", "b")
            end = 2 * (number + 1)
            until(lambda end=end: customers.stage.committed().get(0) == end, "the orders are out", 30)
        program.terminate()
        assert program.wait(30).code == 0
    assert [tier for name, tier, _ in customers.outputs() if name == "a"] == ["silver", "gold", "standard", "bronze"]
    customers.proven(profiled=3, unprofiled=5)


def test_a_profiles_topic_that_grows_or_is_recreated_is_read_again_while_the_run_goes_on(customers: Customers) -> None:
    """Customers of a new partition were standard, and the new topic was read from behind the old one's end."""
    stage, client = customers.stage, customers.stage.admin
    customers.prepare({"a": "silver"}, "a", partitions=1)
    with stage.follow(*NONE, "--follow", *customers.options) as program:
        until(lambda: stage.committed().get(0) == 1, "the first order", 30)
        cluster_admin.add_partitions(client, customers.topic, 2, Deadline(20))
        until(lambda: topics.describe_one(client, customers.topic, Deadline(20)).partitions == 2, "the partition")
        stage.produce(customers.topic, (1, b"b", profile("b", "gold")))
        customers.order("b")
        until(lambda: stage.committed().get(0) == 2, "the order of the new partition's customer", 30)
        cluster_admin.delete_topics(client, [customers.topic], Deadline(20))
        until(lambda: customers.topic not in topics.describe(client, [customers.topic], Deadline(20)), "its end")
        customers.make()
        customers.write({"c": "bronze", "d": "gold", "e": "gold", "a": "bronze"})
        customers.order("a", "b", "c")
        until(lambda: stage.committed().get(0) == 5, "the orders behind the new topic", 60)
        program.terminate()
        assert program.wait(30).code == 0
    tiers = [(name, tier) for name, tier, _ in customers.outputs()]
    assert tiers == [("a", "silver"), ("b", "gold"), ("a", "bronze"), ("b", "standard"), ("c", "bronze")]


def test_a_profile_behind_an_open_transaction_holds_nobody_up(customers: Customers) -> None:
    """Profiles are read up to the last stable offset; what was aborted is none."""
    customers.prepare({"a": "silver"}, partitions=1)
    client = producer(
        customers.stage.connection, f"{customers.topic}-writer", timeout_s=60, message_max_bytes=1_000_000
    )
    client.init_transactions(20)
    client.begin_transaction()
    client.produce(customers.topic, profile("a", "gold"), b"a", 0)
    client.flush(20)
    customers.order("a")
    customers.drain()
    client.abort_transaction(20)
    customers.order("a")
    customers.drain()
    assert customers.outputs() == [("a", "silver", b"0/0"), ("a", "silver", b"0/0")]
    customers.proven(profiled=2, unprofiled=0)


def test_a_retry_after_a_crash_meets_the_newer_profile_and_says_so(customers: Customers) -> None:
    """What the crash left is aborted; each order comes out once, with the profile of the attempt that committed."""
    customers.prepare({"a": "silver", "b": "gold"}, "a", "b", partitions=1)
    assert customers.drain("--crash-prob", "1.0").statuses() == {Status.CRASHED}
    customers.write({"a": "bronze"})
    customers.drain()
    assert customers.outputs() == [("a", "bronze", b"0/2"), ("b", "gold", b"0/1")]
    uncommitted = customers.outputs(READ_UNCOMMITTED)
    assert sorted(set(uncommitted) - set(customers.outputs())) == [("a", "silver", b"0/0")]
    values: dict[tuple[int, bytes | None], set[bytes | None]] = {}
    for record in customers.stage.records(customers.stage.names.output, READ_UNCOMMITTED):
        source = SourcePosition.of(record.headers())
        assert source is not None
        values.setdefault((source.offset, dict(record.headers() or ())[PROFILE_OFFSET]), set()).add(record.value())
    assert all(len(same) == 1 for same in values.values()), "equal order and header, equal bytes"
    customers.proven(profiled=2, unprofiled=0)


def test_a_missing_topic_and_one_that_forgets_are_refused_with_their_settings(customers: Customers) -> None:
    customers.stage.create(1)
    customers.order("a")
    with pytest.raises(Refused, match=r"is not on .*make topic-create-all.*PROFILES_TOPIC \(--profiles-topic\)"):
        customers.drain()
    customers.make(policy="delete")
    with pytest.raises(Refused, match=r"has cleanup.policy=delete.*needs cleanup.policy=compact"):
        customers.drain()
    assert customers.stage.committed() == {0: None}


def test_malformed_profiles_stop_nobody_and_are_named(customers: Customers, capsys: pytest.CaptureFixture[str]) -> None:
    customers.prepare({"a": "silver", "b": "gold"}, partitions=1)
    customers.stage.produce(customers.topic, (0, b"a", b"{"), (0, b"c", b'{"tier":"diamond"}'))
    customers.order("a", "b", "c")
    customers.drain()
    assert [tier for _, tier, _ in customers.outputs()] == ["standard", "gold", "standard"]
    output = capsys.readouterr().err
    assert "2 records can't be read" in output
    assert f"{customers.topic}[0] offset 2: the value is not JSON" in output
    customers.proven(profiled=1, unprofiled=2)
    assert any("2 records of" in note for note in customers.verify()[1]["notes"])


def test_a_wrong_tier_is_seen(customers: Customers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that mixes up its tiers gives each customer another one."""
    customers.prepare({"a": "silver", "b": "gold"}, "a", "b")
    monkeypatch.setattr(profiles, "_TIERS", (*profiles._TIERS[1:], profiles._TIERS[0]))
    customers.drain()
    code, report = customers.verify()
    assert (code, report["verdict"], report["totals"]) == (1, "violated", {"corrupt-output": 2})
    assert "loyalty_" in report["findings"][0]["evidence"]


def test_a_table_that_is_not_read_to_its_end_is_caught(customers: Customers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put in on purpose: the first transaction does not wait. The count that was demanded is not reached."""
    customers.prepare({"a": "silver", "b": "gold"}, "a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(FullTopicReader, "ends", lambda self, _deadline: dict(self.positions))
        customers.drain()
    assert [tier for _, tier, _ in customers.outputs()] == ["standard", "standard"]
    code, report = customers.verify("--need", "profiled=2")
    assert (code, report["totals"]) == (3, {"silent-fault": 1})
    customers.order("a", "b")
    customers.drain()
    assert customers.verify("--need", "profiled=2")[0] == 0


def test_spark_workers_hold_the_table_and_keep_it(customers: Customers) -> None:
    """Two drains of one Spark: its workers are used again, and meet what was written between."""
    customers.stage.create(2)
    customers.make()
    customers.write({"a": "silver"})
    customers.order("a", "b")
    customers.stage.drain(*customers.options)
    customers.write({"b": "gold"})
    customers.order("a", "b")
    customers.stage.drain(*customers.options)
    assert [tier for _, tier, _ in customers.outputs()] == ["silver", "standard", "silver", "gold"]
    customers.proven(profiled=3, unprofiled=1)


def test_the_seeder_makes_a_compacted_topic_that_the_orders_customers_are_found_in(customers: Customers) -> None:
    customers.stage.create()
    options = ("--topic", customers.topic, "--customers", "20000", "--updates", "300", "--tombstones", "100")
    bootstrap = ("--bootstrap", customers.stage.broker.bootstrap)
    code, report = customers.stage._proof("seed-customers", *bootstrap, *options)
    assert (code, report["created"], report["customers"], report["tombstones"]) == (0, True, 20000, 100), report
    assert topics.cleanup_policy(customers.stage.admin, customers.topic, Deadline(20)) == "compact"
    code, report = customers.stage._proof("seed-customers", *bootstrap, "--topic", customers.topic, "--customers", "1")
    assert (code, report["created"], report["partitions"]) == (0, False, 4), report
    customers.stage.seed(300, "--bad-every", "10")
    customers.drain()
    code, report = customers.verify()
    assert (code, report["outputs"], report["dead_letters"]) == (0, 270, 30)
    assert report["counts"]["profiled"] > 200
