"""Brokers before Kafka 4.0: a crash, a whole run on Spark, and every command that looks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.operate import crash, json_of, pipeline, upstream, write
from harness.pipeline import CONNECTOR, Stage
from harness.servers import Broker, Names, sandbox_broker
from harness.sinks import SinkStage, numbers
from harness.waiting import markers_written

from brew.errors import Refused
from brew.jvm.dependencies import KAFKAS, fetch, home

ORDERS = 40
OLDEST = "3.3.2"


@pytest.fixture(scope="module")
def old() -> Iterator[Broker]:
    """The oldest broker, whose jars are fetched where they are not there. 3.9.2: `BREW_TEST_KAFKA` (CONTRIBUTING)."""
    fetch(KAFKAS[OLDEST], home())
    with sandbox_broker(kafka=OLDEST) as broker:
        yield broker


def test_a_crash_heals_on_an_old_broker_and_every_command_tells_what_is_there(old: Broker, names: Names) -> None:
    """Spark's own consumer reads from the older one; what an upstream holds open is named, and ended by `doctor`."""
    stage = Stage(old, names, reader=CONNECTOR)
    stage.create(1, orders=ORDERS)
    crash(stage)
    assert json_of(stage, "lag", "--interval", "0.1")["group"] == names.group

    stage.drain()
    stage.proven(inputs=ORDERS, outputs=ORDERS)

    report = json_of(stage, "preflight")
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert not report["refuses"]
    unknown = {name for name, finding in findings.items() if finding["severity"] == "unknown"}
    assert unknown == {"transaction-verification"}
    assert "before Kafka 3.6" in findings["transaction-verification"]["why"]

    (order,) = json_of(stage, "explain", f"{names.input}/0/0")["orders"]
    assert order["answer"] == "delivered"
    fates = [copy["fate"] for copy in order["copies"]]
    assert fates == ["aborted", "committed"]

    strips = {strip["role"]: strip for strip in json_of(stage, "xray")["strips"]}
    kinds = [run["kind"] for run in strips["output"]["runs"]]
    assert kinds == ["aborted", "abort-marker", "committed", "commit-marker"]
    assert pipeline(stage, "top", "--once")[0] == 0

    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        (blocked,) = [row for row in json_of(stage, "lag", "--interval", "0.1")["partitions"] if row["held_by"]]
        assert (blocked["state"], blocked["partition"], names.topic("up") in blocked["why"]) == ("blocked", 0, True)
        options = ("--topic", names.input, "--older-than", "0")
        (transaction,) = json_of(stage, "doctor", *options, code=1)["transactions"]
        assert (transaction["transactional_id"], transaction["kind"]) == (names.topic("up"), "lingering")
        report = json_of(stage, "doctor", *options, "--abort", "--yes", "--transaction", names.topic("up"))
        assert report["sick"] == 0
    markers_written(stage.connection, names.input)
    assert [row["held_by"] for row in json_of(stage, "lag", "--interval", "0.1")["partitions"]] == [[]]


def test_the_sink_refuses_an_old_broker_unless_it_is_told_to_write(old: Broker, names: Names, tmp_path: Path) -> None:
    it = SinkStage(Stage(old, names), tmp_path, "tasks")
    it.create()
    it.feed(30)
    with pytest.raises(Refused, match=r"the sink needs 3\.6 or later.*allow_old_brokers=True"):
        it.run(it.copied(), it.sink())
    assert not it.values()
    it.run(it.copied(), it.sink(allow_old_brokers=True))
    assert it.values() == numbers(30)
