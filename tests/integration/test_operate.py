"""Preflight, clocks and time-outs, and what older brokers leave untold, against a real broker."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType
from harness.operate import json_of, pipeline, upstream, write
from harness.pipeline import Stage, until

from brew.cluster import ClusterFacts
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import cluster, topics
from brew.kafka.clients import AdminClient, consumer
from brew.kafka.cluster import controller_ahead_s
from brew.kafka.cluster_admin import set_config
from brew.kafka.kafka_python import Unsupported
from brew.kafka.topics import TopicSpec
from brew.kafka.transactions_admin import TransactionsAdmin
from brew.names import READ_COMMITTED, ExitCode


def test_preflight_finds_what_the_sandbox_can_and_can_not_do(stage: Stage) -> None:
    """One broker: warned of, and not refused; every check has an answer."""
    stage.create(2, orders=10)
    stage.drain_locally()
    report = json_of(stage, "preflight")
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert not report["refuses"]
    assert {name for name, finding in findings.items() if finding["severity"] == "unsafe"} == set()
    assert {name for name, finding in findings.items() if finding["severity"] == "unknown"} == set()
    assert findings["transaction-timeout"]["need"] == "less than 900000 ms"
    assert (findings["transaction-version"]["value"], findings["brokers-alike"]["value"]) == ("2", "1 broker")
    assert findings["topic-identity"]["value"] == "2 of 2 positions"
    code, text = pipeline(stage, "preflight")
    assert (code, "a run can start" in text) == (0, True)
    assert "! input-replication" in text
    assert "✓" not in text
    code, all_checks = pipeline(stage, "preflight", "--all")
    assert (code, all_checks.count("✓ ")) == (0, report["counts"]["ok"])
    assert all_checks.index("! input-replication") < all_checks.index("✓ ")
    assert max(map(len, text.splitlines())) <= 80


def configure(stage: Stage, config: dict[str, str]) -> None:
    """Set the output up, and return when the broker says so, too: the controller takes it a moment before."""
    topic = ConfigResource(ResourceType.TOPIC, stage.names.output)
    set_config(stage.admin, stage.names.output, config, Deadline(20))

    def applied() -> bool:
        actual = stage.admin.describe_configs([topic], request_timeout=20)[topic].result()
        return all(actual[name].value == value for name, value in config.items())

    until(applied, f"{config} on the broker", 20)


def test_an_unsafe_topic_is_refused_and_allowed_by_name_with_a_note(stage: Stage) -> None:
    """Nothing is written before; after it the note names what was allowed."""
    stage.create(1, output=1, orders=10)
    configure(stage, {"min.insync.replicas": "2"})
    with pytest.raises(Refused, match=r"output-min-isr is 2, needs 1 .*--allow output-min-isr"):
        stage.drain_locally()
    assert stage.records(stage.names.output) == []
    assert json_of(stage, "preflight", code=3)["refuses"]

    configure(stage, {"min.insync.replicas": "1", "cleanup.policy": "compact"})
    with pytest.raises(Refused, match="--allow output-cleanup"):
        stage.drain_locally()
    ran = stage.drain_locally("--allow", "output-cleanup")
    assert [note for note in ran.notes if "allowed although unsafe: output-cleanup is compact" in note]
    assert stage.outputs() == 10


@contextlib.contextmanager
def other_member(stage: Stage) -> Iterator[None]:
    """Somebody who has subscribed with our group."""
    member = consumer(stage.connection, stage.names.group, READ_COMMITTED)
    try:
        member.subscribe([stage.names.input])
        until(lambda: member.poll(0.05) or member.assignment(), "the other member's partitions")
        yield
    finally:
        member.close()


def test_a_foreign_member_in_the_group_is_found(stage: Stage) -> None:
    """It would commit positions of its own."""
    stage.create(1)
    with other_member(stage):
        report = json_of(stage, "preflight", code=3)
    (finding,) = [finding for finding in report["findings"] if finding["name"] == "group-members"]
    assert (finding["severity"], finding["value"].startswith("1: ")) == ("unsafe", True)


def test_a_run_that_is_refused_makes_no_topic(stage: Stage) -> None:
    """Who is told no finds the cluster as it was."""
    stage.create(1, orders=10)
    with other_member(stage), pytest.raises(Refused, match="--allow group-members"):
        stage.drain_locally()
    assert topics.describe(stage.admin, [stage.names.output, stage.names.dead_letter], Deadline(20)) == {}
    stage.drain_locally()
    assert stage.outputs() == 10


def test_topics_that_were_just_made_are_judged_as_they_are(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as they were expected: somebody's policy may make them otherwise."""
    stage.create(1, orders=10)
    create = topics.create

    def create_compacted(client: AdminClient, specs: list[TopicSpec], deadline: Deadline) -> None:
        create(client, [replace(spec, config={**spec.config, "cleanup.policy": "compact"}) for spec in specs], deadline)

    monkeypatch.setattr(topics, "create", create_compacted)
    with pytest.raises(Refused, match="output-cleanup is compact"):
        stage.drain_locally()
    assert stage.records(stage.names.output) == []


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_foreign_member_that_joins_while_a_run_follows_ends_it(stage: Stage, reader: str) -> None:
    """Its commits would move our position; who allows it goes on."""
    stage.create(1, output=1)
    follow = ("pipeline", "run", *stage.options(), "--master", "none", "--reader", reader, "--follow")
    with stage.python(*follow) as run, stage.python(*follow, "--allow", "group-members") as tolerant:
        stage.seed(10)
        until(lambda: stage.outputs() == 10, "both have begun", 30)
        with other_member(stage):
            ran = run.wait(60)
            assert (ran.code, "group-members is 1: " in ran.err) == (ExitCode.REFUSED, True), ran
            assert tolerant.alive()
        tolerant.terminate()
        assert tolerant.wait(20).code == 0


def test_brokers_that_are_too_old_to_tell_of_transactions_stop_only_the_doctor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others do without names, and say so."""

    def too_old(_self: TransactionsAdmin, step: str, *_arguments: object) -> None:
        raise Unsupported(f"{step}: Kafka 3.0 or later can")

    stage.create(1)
    stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id":"c-1"}'))
    stage.drain_locally()
    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        monkeypatch.setattr(TransactionsAdmin, "_ask", too_old)
        report = json_of(stage, "lag", "--interval", "0.1")
        (row,) = report["partitions"]
        assert (row["state"], "did not report its producer" in row["why"], row["held_by"]) == ("blocked", True, [])
        assert "Kafka 3.0 or later" in report["unavailable"]
        report = json_of(stage, "explain", f"{stage.names.input}/0/0")
        assert [order["answer"] for order in report["orders"]] == ["delivered"]
        assert [text for text in report["unavailable"] if "Kafka 3.0 or later" in text]
        code, text = pipeline(stage, "doctor", "--topic", stage.names.input)
        assert (code, "Kafka 3.0 or later" in text) == (3, True)


def test_the_controllers_clock_is_ours_on_one_machine(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between question and answer it can't be told from ours; a clock here that is 75 s behind makes it ahead."""
    ahead = controller_ahead_s(stage.connection, Deadline(20))
    assert ahead == pytest.approx(0, abs=0.05)
    monkeypatch.setattr(cluster, "_now", lambda: time.time() - 75)
    assert controller_ahead_s(stage.connection, Deadline(20)) == pytest.approx(75, abs=1)
    monkeypatch.setattr(cluster, "_now", lambda: time.time() + 75)
    assert controller_ahead_s(stage.connection, Deadline(20)) == pytest.approx(-75, abs=1)


def test_the_time_outs_are_explained_with_what_brokers_and_options_say(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people in 80 columns, for programs as a document; one that the brokers refuse ends with 3."""
    report = json_of(stage, "preflight", "--explain-timeouts", "--transaction-timeout", "120")
    assert [timeout["ms"] for timeout in report["chain"]] == [30_000, 108_000, 120_000, 900_000]
    assert report["holds"] is True
    longest = ("preflight", "--explain-timeouts", "--transaction-timeout", "900")
    assert json_of(stage, *longest)["holds"] is False
    monkeypatch.setattr(ClusterFacts, "number", lambda *_: 60_000)
    assert json_of(stage, *longest, code=3)["chain"][-1]["ms"] == 60_000
    assert pipeline(stage, *longest, "--allow", "transaction-timeout")[0] == 0
    monkeypatch.undo()
    code, text = pipeline(stage, "preflight", "--explain-timeouts")
    assert (code, text.splitlines()[0].endswith("< brokers' maximum 900 s: holds")) == (0, True)
    assert max(map(len, text.splitlines())) <= 80
