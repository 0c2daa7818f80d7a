"""Preflight, lag and doctor's limits against a real broker."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import ConfigResource, ResourceType
from harness.brokers import Broker
from harness.names import Names
from harness.operate import asked, pipeline, upstream, words, write
from harness.pipeline import Stage, until
from harness.waiting import markers_written

from pipeline.operate.judge.lag import State, tell
from pipeline.operate.look import Observer
from protocol.cluster import ClusterFacts
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka import clock, topics
from protocol.kafka.clients import READ_COMMITTED, AdminClient, consumer
from protocol.kafka.clock import controller_ahead_s
from protocol.kafka.introspect import RawLogs, Unsupported
from protocol.kafka.operate import set_config
from protocol.kafka.topics import Wanted
from protocol.kafka.transactions import Transactions, fence
from protocol.names import ExitCode, TransactionalId


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    return Stage(broker, names)


def test_preflight_finds_what_the_sandbox_can_and_can_not_do(stage: Stage) -> None:
    """One broker: warned of, and not refused; every check has an answer."""
    stage.create(2)
    stage.seed(10)
    stage.drain_alone()
    told = asked(stage, "preflight")
    found = {one["name"]: one for one in told["findings"]}
    assert not told["refuses"]
    assert {name for name, one in found.items() if one["severity"] == "unsafe"} == set()
    assert {name for name, one in found.items() if one["severity"] == "unknown"} == set()
    assert found["transaction-timeout"]["need"] == "less than 900000 ms"
    assert (found["transaction-version"]["value"], found["brokers-alike"]["value"]) == ("2", "1 broker")
    assert found["topic-identity"]["value"] == "2 of 2 positions"
    code, text = pipeline(stage, "preflight")
    assert (code, "a run goes on" in text) == (0, True)
    assert max(map(len, text.splitlines())) <= 80


def configure(stage: Stage, config: dict[str, str]) -> None:
    """Set the output up, and return when the broker says so, too: the controller takes it a moment before."""
    topic = ConfigResource(ResourceType.TOPIC, stage.names.output)
    set_config(stage.admin, stage.names.output, config, Deadline(20))

    def known() -> bool:
        found = stage.admin.describe_configs([topic], request_timeout=20)[topic].result()
        return all(found[name].value == value for name, value in config.items())

    until(known, f"{config} on the broker", 20)


def test_an_unsafe_topic_is_refused_and_allowed_by_name_with_a_note(stage: Stage) -> None:
    """Nothing is written before; after it the note names what was allowed."""
    stage.create(1, output=1)
    stage.seed(10)
    configure(stage, {"min.insync.replicas": "2"})
    with pytest.raises(Refused, match=r"output-min-isr is 2, needs 1 .*--allow output-min-isr"):
        stage.drain_alone()
    assert stage.records(stage.names.output) == []
    assert asked(stage, "preflight", code=3)["refuses"]

    configure(stage, {"min.insync.replicas": "1", "cleanup.policy": "compact"})
    with pytest.raises(Refused, match="--allow output-cleanup"):
        stage.drain_alone()
    ran = stage.drain_alone("--allow", "output-cleanup")
    assert [note for note in ran.notes if "allowed although unsafe: output-cleanup is compact" in note]
    assert stage.outputs() == 10


@contextlib.contextmanager
def stranger(stage: Stage) -> Iterator[None]:
    """Somebody who has subscribed with our group."""
    member = consumer(stage.connection, stage.names.group, READ_COMMITTED)
    try:
        member.subscribe([stage.names.input])
        until(lambda: member.poll(0.05) or member.assignment(), "the stranger's partitions")
        yield
    finally:
        member.close()


def test_a_stranger_in_the_group_is_found(stage: Stage) -> None:
    """It would commit positions of its own."""
    stage.create(1)
    with stranger(stage):
        told = asked(stage, "preflight", code=3)
    (found,) = [one for one in told["findings"] if one["name"] == "group-members"]
    assert (found["severity"], found["value"].startswith("1: ")) == ("unsafe", True)


def test_a_run_that_is_refused_makes_no_topic(stage: Stage) -> None:
    """Who is told no finds the cluster as it was."""
    stage.create(1)
    stage.seed(10)
    with stranger(stage), pytest.raises(Refused, match="--allow group-members"):
        stage.drain_alone()
    assert topics.describe(stage.admin, [stage.names.output, stage.names.dead_letter], Deadline(20)) == {}
    stage.drain_alone()
    assert stage.outputs() == 10


def test_topics_that_were_just_made_are_judged_as_they_are(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as they were expected: somebody's policy may make them otherwise."""
    stage.create(1)
    stage.seed(10)
    make = topics.create

    def compacted(client: AdminClient, wanted: list[Wanted], deadline: Deadline) -> None:
        make(client, [replace(one, config={**one.config, "cleanup.policy": "compact"}) for one in wanted], deadline)

    monkeypatch.setattr(topics, "create", compacted)
    with pytest.raises(Refused, match="output-cleanup is compact"):
        stage.drain_alone()
    assert stage.records(stage.names.output) == []


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_stranger_who_joins_while_a_run_follows_ends_it(stage: Stage, reader: str) -> None:
    """Its commits would move our position; who allows it goes on."""
    stage.create(1, output=1)
    follow = ("pipeline", "run", *stage.options(), "--master", "none", "--reader", reader, "--follow")
    with stage.python(*follow) as run, stage.python(*follow, "--allow", "group-members") as tolerant:
        stage.seed(10)
        until(lambda: stage.outputs() == 10, "both have begun", 30)
        with stranger(stage):
            ended = run.wait(60)
            assert (ended.code, "group-members is 1: " in ended.err) == (ExitCode.REFUSED, True), ended
            assert tolerant.alive()
        tolerant.terminate()
        assert tolerant.wait(20).code == 0


def lag_of(stage: Stage) -> dict[str, Any]:
    told = asked(stage, "lag", "--interval", "0.1")
    return dict(told["partitions"][0])


def test_lag_counts_records_and_tells_who_blocks(stage: Stage) -> None:
    """A tail of markers and aborted records is no lag; records behind an open transaction wait for its owner."""
    stage.create(1)
    stage.seed(5)
    stage.drain_alone()
    at_end = lag_of(stage)
    assert (at_end["state"], at_end["remaining"], at_end["why"]) == ("idle", 0, "at the end")
    with upstream(stage, "up") as writer, upstream(stage, "late") as late:
        write(stage, writer, 3)
        writer.abort_transaction(20)
        markers_written(stage.connection, stage.names.input)
        tail = lag_of(stage)
        assert tail["last_stable"] - tail["committed"] == 4
        assert (tail["state"], tail["remaining"], tail["exact"]) == ("idle", 0, True)
        assert "only markers and aborted records" in tail["why"]

        write(stage, late, 2)
        blocked = lag_of(stage)
        assert (blocked["state"], blocked["remaining"]) == ("blocked", 0)
        (holder,) = blocked["held_by"]
        assert (holder["transactional_id"], holder["first_offset"]) == (stage.names.topic("late"), tail["end"])
        assert holder["age_s"] >= 0

        write(stage, writer, 3)
        writer.commit_transaction(20)
        markers_written(stage.connection, stage.names.input)
        assert lag_of(stage)["remaining"] == 0
        late.commit_transaction(20)
        markers_written(stage.connection, stage.names.input)
        behind = lag_of(stage)
        assert (behind["state"], behind["remaining"], behind["exact"]) == ("stuck", 5, True)
        stuck = ("--interval", "0.1", "--fail-on", "stuck")
        assert asked(stage, "lag", *stuck, "--fail-on", "fenced", code=1)["states"] == {"stuck": 1}
        assert pipeline(stage, "lag", *stuck)[0] == ExitCode.VIOLATION
        assert asked(stage, "lag", "--interval", "0.1", "--fail-on", "fenced")["states"] == {"stuck": 1}
        assert pipeline(stage, "lag", *stuck, "--watch")[0] == ExitCode.USAGE
        at_most = asked(stage, "lag", "--interval", "0.1", "--exact", "0")
        assert (at_most["remaining"], at_most["exact"]) == (11, False)
    stage.drain_alone()
    assert lag_of(stage)["state"] == "idle"
    assert asked(stage, "lag", *stuck)["states"] == {"idle": 1}


def test_the_lag_in_seconds_is_the_age_of_the_first_record_that_a_reader_is_given(stage: Stage) -> None:
    """Markers and aborted records have no age; an idle partition, or what waits behind somebody's transaction, is 0."""
    stage.create(2)
    stage.seed(6)
    stage.drain_alone()
    assert [row["lag_s"] for row in asked(stage, "lag", "--interval", "0.1")["partitions"]] == [0, 0]
    with upstream(stage, "up") as writer:
        write(stage, writer, 3)  # ages of these would be small
        writer.abort_transaction(20)
        markers_written(stage.connection, stage.names.input)
        assert lag_of(stage)["lag_s"] == 0
        hour_ago = int(time.time() * 1000) - 3_600_000
        order, new = b'{"customer_id":"c-1"}', hour_ago + 3_000_000
        stage.produce(stage.names.input, (0, b"gold-1", order, None, hour_ago), (0, b"gold-1", order, None, new))
        told = asked(stage, "lag", "--interval", "0.1")
        ages = [row["lag_s"] for row in told["partitions"]]
        assert (3_600 <= ages[0] < 3_700, ages[1], told["lag_s"]) == (True, 0, ages[0])
        assert asked(stage, "lag", "--interval", "0.1", "--exact", "0")["lag_s"] >= 3_600
        quick = ("--interval", "0.1", "--fail-older-than")
        assert pipeline(stage, "lag", *quick, "60")[0] == ExitCode.VIOLATION
        code, text = pipeline(stage, "lag", *quick, "7200")
        assert (code, "2 records to read, the oldest is 3,6" in text) == (ExitCode.DONE, True)
        assert pipeline(stage, "lag", *quick, "60", "--watch")[0] == ExitCode.USAGE
    stage.drain_alone()
    with upstream(stage, "late") as late:
        write(stage, late, 2)
        blocked = lag_of(stage)
        assert (blocked["state"], blocked["lag_s"]) == ("blocked", 0)


def test_a_look_asks_for_the_first_record_once_as_long_as_the_position_stands_still(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fetch for each partition that lags and has moved, and none for those that are at the end."""
    stage.create(2)
    stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id":"c-1"}'))
    asked_at: list[tuple[int, int]] = []
    plain = RawLogs.visible

    def counted(self: RawLogs, topic: str, partition: int, offset: int, *more: Any) -> Any:
        asked_at.append((partition, offset))
        return plain(self, topic, partition, offset, *more)

    monkeypatch.setattr(RawLogs, "visible", counted)
    with Observer(stage.connection, stage.names.input, stage.names.group, exact=100) as observer:
        ages = [observer.look(Deadline(20))[0].oldest_ms for _ in range(3)]
        assert (len(set(ages)), asked_at) == (1, [(0, 0)])
        stage.drain_alone()
        observer.look(Deadline(20))
        stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id":"c-1"}'))
        assert observer.look(Deadline(20))[0].oldest_ms >= ages[0]
    assert asked_at == [(0, 0), (0, 1)]
    with Observer(stage.connection, stage.names.input, stage.names.group, exact=100, ages=False) as observer:
        assert observer.look(Deadline(20))[0].oldest_ms is None
    assert len(asked_at) == 2


def test_a_partition_whose_attempts_end_each_other_is_fenced(stage: Stage) -> None:
    """Between two looks somebody took the id over, and committed nothing; before that it only stands still."""
    stage.create(1)
    stage.seed(5)
    own = str(TransactionalId(stage.names.group, stage.names.input, 0))
    fence(stage.connection, own, Deadline(20))
    with Observer(stage.connection, stage.names.input, stage.names.group, exact=100) as observer:
        (before,), (still,) = observer.look(Deadline(20)), observer.look(Deadline(20))
        fence(stage.connection, own, Deadline(20))
        (after,) = observer.look(Deadline(20))
    now_ms = int(time.time() * 1000)
    assert tell(before, still, now_ms).state is State.STUCK
    told = tell(still, after, now_ms)
    assert (told.state, "two runs fence each other" in told.why) == (State.FENCED, True)
    assert after.remaining.records == 5


def test_watching_the_lag_goes_on_until_sigterm(stage: Stage) -> None:
    """A line per look."""
    stage.create(1)
    with stage.python("pipeline", *words(stage, "lag"), "--watch", "--json", "--interval", "0.1") as program:
        program.await_line(lambda line: '"states":{"idle":1}' in line, times=2)
        program.terminate()
        assert program.wait(30).code == 128 + signal.SIGTERM


def test_brokers_that_are_too_old_to_tell_of_transactions_stop_only_the_doctor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others do without names, and say so."""

    def too_old(_self: Transactions, step: str, *_arguments: object) -> None:
        raise Unsupported(f"{step}: Kafka 3.0 or later can")

    stage.create(1)
    stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id":"c-1"}'))
    stage.drain_alone()
    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        monkeypatch.setattr(Transactions, "_ask", too_old)
        told = asked(stage, "lag", "--interval", "0.1")
        (row,) = told["partitions"]
        assert (row["state"], "do not tell whose" in row["why"], row["held_by"]) == ("blocked", True, [])
        assert "Kafka 3.0 or later" in told["not_told"]
        told = asked(stage, "explain", f"{stage.names.input}/0/0")
        assert [one["answer"] for one in told["orders"]] == ["delivered"]
        assert [text for text in told["not_told"] if "Kafka 3.0 or later" in text]
        code, text = pipeline(stage, "doctor", "--topic", stage.names.input)
        assert (code, "Kafka 3.0 or later" in text) == (3, True)


def test_the_controllers_clock_is_ours_on_one_machine(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between question and answer it can't be told from ours; a clock here that is 75 s behind makes it ahead."""
    ahead = controller_ahead_s(stage.connection, Deadline(20))
    assert ahead == pytest.approx(0, abs=0.05)
    monkeypatch.setattr(clock, "_now", lambda: time.time() - 75)
    assert controller_ahead_s(stage.connection, Deadline(20)) == pytest.approx(75, abs=1)
    monkeypatch.setattr(clock, "_now", lambda: time.time() + 75)
    assert controller_ahead_s(stage.connection, Deadline(20)) == pytest.approx(-75, abs=1)


def test_the_time_outs_are_explained_with_what_brokers_and_options_say(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For people in 80 columns, for programs as a document; one that the brokers refuse ends with 3."""
    told = asked(stage, "preflight", "--explain-timeouts", "--transaction-timeout", "120")
    assert [one["ms"] for one in told["chain"]] == [30_000, 108_000, 120_000, 900_000]
    assert told["holds"] is True
    longest = ("preflight", "--explain-timeouts", "--transaction-timeout", "900")
    assert asked(stage, *longest)["holds"] is False
    monkeypatch.setattr(ClusterFacts, "number", lambda *_: 60_000)
    assert asked(stage, *longest, code=3)["chain"][-1]["ms"] == 60_000
    assert pipeline(stage, *longest, "--allow", "transaction-timeout")[0] == 0
    monkeypatch.undo()
    code, text = pipeline(stage, "preflight", "--explain-timeouts")
    assert (code, text.splitlines()[0].endswith("< brokers' maximum 900 s: holds")) == (0, True)
    assert max(map(len, text.splitlines())) <= 80
