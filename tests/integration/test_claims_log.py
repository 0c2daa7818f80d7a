"""The claims topic on a real broker (the brokers' time, races, retention, topics made again), and its commands."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from harness.programs import call_program
from harness.secure import DOWNSTREAM, PROOF, Secure
from harness.servers import Broker, Names, make_topics
from harness.waiting import until

from brew import acl
from brew.acl import Kind, Operation, Purpose, ResourceNames
from brew.claims.heartbeater import Heartbeater, StandBy
from brew.claims.log import Item
from brew.claims.member import Member, Membership
from brew.claims.messages import CONFIG, ClaimingPartition, encode
from brew.claims.state import snapshot_of
from brew.cli import STOPPED_EXIT
from brew.client_config import load
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, KafkaFailure, Refused
from brew.kafka import cluster_admin, topics
from brew.kafka.claims_log import ClaimsLog
from brew.kafka.clients import admin, producer
from brew.names import ExitCode
from brew.signals import Stopped
from downstream.claims.commands import claims_group
from proof.claims import members as races


@pytest.fixture
def log(broker: Broker, names: Names) -> Iterator[ClaimsLog]:
    """A claims topic of this test's own."""
    log = ClaimsLog(Connection(broker.bootstrap), names.topic("claims"))
    yield log
    log.close()


def within_20_s() -> Deadline:
    return Deadline(20)


def claim_item(partition: int = 0, client: str = "a") -> Item:
    return Item(0, *encode(ClaimingPartition(client, "g", "t", partition, 1000)))


def member(log: ClaimsLog, client: str, count: int = 8) -> Member:
    claimant = Member(log, Membership(client, "g", "t", tuple(range(count)), 5.0))
    claimant.join(within_20_s())
    return claimant


def test_records_carry_the_brokers_time_and_are_read_back_at_their_offsets(log: ClaimsLog) -> None:
    """The topic is made as the page says; what is appended tells the same offset and time as what is read."""
    log.tail({0: 0})
    before = time.time_ns() // 1_000_000
    appended = log.append([claim_item(0), claim_item(1)], within_20_s())
    read = log.read({0: 2}, within_20_s())

    assert [entry.offset for entry in appended] == [0, 1]
    assert [(entry.partition, entry.offset, entry.time_ms) for entry in read] == [tuple(entry) for entry in appended]
    assert abs(read[0].time_ms - before) < 10_000
    assert log.bounds(within_20_s()) == {0: (0, 2)}
    assert log.history({0: (1, 2)}, within_20_s()) == read[1:]


def test_a_topic_whose_time_comes_from_its_writers_is_refused(broker: Broker, names: Names) -> None:
    """Whoever writes could make itself fresh for ever."""
    connection, topic = Connection(broker.bootstrap), names.topic("claims")
    topics.create(
        admin(connection), [topics.TopicSpec(topic, 1, {"message.timestamp.type": "CreateTime"})], within_20_s()
    )
    with contextlib.closing(ClaimsLog(connection, topic)) as log, pytest.raises(Refused, match="LogAppendTime"):
        member(log, "a")


def test_a_log_that_is_not_there_is_not_made_by_who_only_looks(broker: Broker, names: Names) -> None:
    """A typing error must not leave a topic."""
    with pytest.raises(Refused, match="does not exist"):
        ClaimsLog(Connection(broker.bootstrap), names.topic("claims"), create=False)


def test_eight_claimants_race_and_every_partition_has_one_owner_each_time(broker: Broker, names: Names) -> None:
    """Short; `make claims-races` runs 1,000 rounds over 64 partitions."""
    result = races.race(Connection(broker.bootstrap), names.topic("claims"), rounds=5, partitions=16)
    assert result.findings == []
    assert sum(result.wins.values()) == 5 * 16
    assert max(result.owned_after_s) < 10


def test_claimants_that_do_not_read_back_are_caught(
    broker: Broker, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes its own claim for granted takes what others have."""

    def claim_without_reading_back(self: Member, partitions: list[int], deadline: Deadline) -> None:
        written = self._write([ClaimingPartition("x", "g", "raced", p, 60_000) for p in partitions], deadline)
        beliefs = {p: races.Belief("", p, offset) for p, (_, offset) in zip(partitions, written, strict=True)}
        self.held = lambda: beliefs  # type: ignore[method-assign,assignment,return-value]

    monkeypatch.setattr(Member, "claim", claim_without_reading_back)
    result = races.race(Connection(broker.bootstrap), names.topic("claims"), rounds=1, claimants=2, partitions=4)
    assert any("2 owners" in text for text in result.findings)
    assert any("believed that it owned partition" in text for text in result.findings)


def test_a_newcomer_after_retention_gets_the_same_world(
    broker: Broker, names: Names, log: ClaimsLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members write snapshots; then all before the newest one is deleted while they go on."""
    monkeypatch.setattr("brew.claims.state.SNAPSHOT_RECORDS", 50)
    connection, topic = Connection(broker.bootstrap), names.topic("claims")
    first = member(log, "a")
    first.claim(range(4), within_20_s())
    for _ in range(20):
        first._next_heartbeat_at = 0
        first.turn(within_20_s())
    snapshot_until = first.view.tables[0].snapshot_until
    assert snapshot_until > 50
    cluster_admin.delete_records(admin(connection), topic, {0: snapshot_until}, within_20_s())
    first._next_heartbeat_at = 0
    first.turn(within_20_s())

    with contextlib.closing(ClaimsLog(connection, topic)) as other:
        assert other.bounds(within_20_s())[0][0] == snapshot_until
        newcomer = member(other, "b")
        deadline = within_20_s()
        while first.view.ends() != newcomer.view.ends():
            deadline.check("both have read the same")
            first.read_new(within_20_s())
        assert snapshot_of(newcomer.view.tables[0], "x") == snapshot_of(first.view.tables[0], "x")
        assert not newcomer.view.partial


def test_a_log_that_was_deleted_and_made_again_ends_its_members(broker: Broker, names: Names, log: ClaimsLog) -> None:
    """Its tokens mean nothing in the new one."""
    client, topic = admin(Connection(broker.bootstrap)), names.topic("claims")
    first = member(log, "a")
    first.turn(within_20_s())
    cluster_admin.delete_topics(client, [topic], within_20_s())
    deadline = Deadline(20)
    while topics.describe(client, [topic], within_20_s()):
        deadline.check("the topic goes")
    topics.create(client, [topics.TopicSpec(topic, 1, CONFIG)], within_20_s())
    topics.describe_all(client, [topic], within_20_s())

    def heartbeat_until_refused() -> None:
        while not deadline.expired():
            first._next_heartbeat_at = 0
            with contextlib.suppress(DeadlineExceeded):
                first.turn(Deadline(5))

    with pytest.raises(Refused, match="recreated"):
        heartbeat_until_refused()


def test_the_next_one_takes_over_a_topic_when_its_worker_leaves(broker: Broker, names: Names) -> None:
    """One partition, and two want it; a clean end hands over at once, not after two intervals, with a higher token."""
    connection, topic, interval_s = Connection(broker.bootstrap), names.topic("claims"), 10.0

    def stand_by(client: str) -> StandBy:
        return StandBy(
            lambda: ClaimsLog(connection, topic), group="g", topic="orders", client_id=client, interval_s=interval_s
        )

    stop = threading.Event()
    with stand_by("a") as a:
        assert a.wait(stop)
        first = a.token
        with stand_by("b") as b:
            assert not b.holds()
            a.leave()
            began = time.monotonic()
            assert b.wait(stop)
            assert time.monotonic() - began < interval_s
            assert first is not None
            assert b.token is not None
            assert b.token > first
        stop.set()
        assert not a.wait(stop)


def test_a_client_that_had_failed_before_says_why_and_the_next_append_has_another(secure: Secure, names: Names) -> None:
    """Without Write it fails for good while the log is read; what it says then is only that it has."""
    topic = names.topic("claims")
    resources = ResourceNames(names.input, names.output, names.dead_letter, names.group)
    rights = [
        replace(right, user=PROOF, name=topic)
        for right in acl.extra_rights(DOWNSTREAM, [Purpose.OWNERSHIP], resources)
        if right.kind is Kind.TOPIC
    ]
    (write,) = (right for right in rights if right.operation is Operation.WRITE)
    # Who reads only may write nowhere; with Write on any topic the client would not fail for good.
    secure.grant(PROOF, *(right for right in rights if right != write))
    config = load(secure.security.config(PROOF))
    log = ClaimsLog(Connection(secure.broker.bootstrap, config.properties, config.secrets, config.source), topic)
    until(lambda: _has_failed(log._writer(), topic), "the client's failing for good")
    with pytest.raises(KafkaFailure, match=r"append to .*idempotence PID.*CLUSTER_AUTHORIZATION_FAILED"):
        log.append([claim_item()], within_20_s())
    secure.grant(PROOF, write)
    assert len(log.append([claim_item()], within_20_s())) == 1
    secure.revoke(PROOF, write)
    log.close()


def _has_failed(writer: Producer, topic: str) -> bool:
    try:
        writer.produce(topic, b"", partition=0)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError._FATAL)
    return False


def test_a_topic_that_was_deleted_is_named_and_not_taken_for_an_outage(
    log: ClaimsLog, broker: Broker, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members tried to append for ever, and owned nothing; once missing may be a broker that has just started."""
    monkeypatch.setattr("brew.kafka.claims_log.SILENT_S", 0)
    member(log, "a")
    client = admin(Connection(broker.bootstrap))
    client.delete_topics([names.topic("claims")])[names.topic("claims")].result(20)
    with pytest.raises((DeadlineExceeded, KafkaFailure)):
        log.append([claim_item()], Deadline(2))
    assert log.read({}, within_20_s()) == [], "a read of what there is takes no answer"
    with pytest.raises(Refused, match="was deleted, so nobody can own a partition; start again"):
        log.append([claim_item()], Deadline(2))


INTERVAL_S = 2.0  # twice that without a heartbeat is another's turn, and no test here is about that
RECORDS = 10


Members = tuple[Heartbeater, Heartbeater]


@dataclass
class ClaimsCommands:
    """Two members at work on a topic with three partitions, and the commands."""

    broker: Broker
    names: Names

    @property
    def topic(self) -> str:
        return self.names.topic("worked")

    @property
    def claims(self) -> str:
        return self.names.topic("claims")

    def heartbeater(self, client: str) -> Heartbeater:
        connection = Connection(self.broker.bootstrap)
        membership = Membership(client, self.names.group, self.topic, (0, 1, 2), INTERVAL_S)
        return Heartbeater(lambda: ClaimsLog(connection, self.claims), membership)

    def run(self, command: str, *more: str, code: int = ExitCode.DONE) -> str:
        words = (command, "--bootstrap", self.broker.bootstrap, "--claims", self.claims, *more)
        exit_code, out, err = call_program(claims_group, "claims", *words)
        assert exit_code == code, out + err
        return out + err

    def positions(self) -> list[int]:
        rows = json.loads(self.run("status", "--json"))["partitions"]
        return [row["position"] for row in rows]


@pytest.fixture
def commands(broker: Broker, names: Names) -> ClaimsCommands:
    commands = ClaimsCommands(broker, names)
    make_topics(Connection(broker.bootstrap), commands.topic, partitions=3)
    writer = producer(Connection(broker.bootstrap), None, timeout_s=30, message_max_bytes=1_000_000)
    for number in range(3 * RECORDS):
        writer.produce(commands.topic, b"x", b"k", number % 3)
    assert writer.flush(30) == 0
    return commands


@pytest.fixture
def members(commands: ClaimsCommands) -> Iterator[Members]:
    """Two members whose worker gives back what it is asked for, at offset 7."""
    stop = threading.Event()

    def work(heartbeater: Heartbeater) -> None:
        while not stop.is_set():
            owned = heartbeater.held()
            if to_release := heartbeater.to_release():
                heartbeater.release_partitions({p: replace(owned[p], position=7) for p in to_release if p in owned})
            heartbeater.wait(0.05)

    with ExitStack() as stack:
        a, b = (stack.enter_context(commands.heartbeater(name)) for name in "ab")
        threads = [threading.Thread(target=work, args=[member], daemon=True) for member in (a, b)]
        for thread in threads:
            thread.start()
        until(lambda: sorted((len(a.held()), len(b.held()))) == [1, 2], "both work")
        yield a, b
        stop.set()
        for thread in threads:
            thread.join(10)


def test_the_world_is_shown_as_a_table_and_as_json(commands: ClaimsCommands, members: Members) -> None:
    """Owner, state, age, position and token of each partition; members that own nothing stand by."""
    status = json.loads(commands.run("status", "--json"))
    assert {row["owner"] for row in status["partitions"]} == {"a", "b"}
    assert {row["state"] for row in status["partitions"]} <= {"fresh", "unknown"}
    assert [member["client"] for member in status["members"]] == ["a", "b"]
    assert status["pauses"] == []
    table = commands.run("status")
    assert all(word in table for word in ("owner", "heartbeat age", commands.topic, "fresh"))
    assert json.loads(commands.run("status", "--json", "--group", "another"))["partitions"] == []
    assert len(members) == 2


def test_names_do_not_control_the_terminal(commands: ClaimsCommands) -> None:
    """Whoever may write to the claims topic chooses its client's name."""
    with commands.heartbeater("\x1b[2J") as member:
        until(lambda: len(member.held()) == 3, "it works")
        table = commands.run("status")
    assert (r"\x1b[2J" in table, "\x1b" in table) == (True, False)


def test_a_paused_group_gives_back_and_goes_on_when_told(commands: ClaimsCommands, members: Members) -> None:
    """The command returns once nobody owns anything; nobody claims until the pause ends."""
    assert "released all partitions" in commands.run("release", "--group", commands.names.group, "--for-s", "600")
    # The log tells others of a release a moment before its writer has read it back.
    until(lambda: all(member.held() == {} for member in members), "they know it, too")
    status = json.loads(commands.run("status", "--json"))
    assert {row["state"] for row in status["partitions"]} == {"free"}
    assert [pause["group"] for pause in status["pauses"]] == [commands.names.group]
    assert "paused by" in commands.run("status")

    assert "is resumed" in commands.run("release", "--group", commands.names.group, "--end")
    until(lambda: sum(len(member.held()) for member in members) == 3, "they work again")


TARGETS: list[tuple[list[str], int]] = [
    (["--to", "latest"], RECORDS),
    (["--to", "earliest"], 0),
    (["--to", "offset", "--offset", "4"], 4),
    (["--to", "offset", "--offset", "99"], RECORDS),
    (["--to", "timestamp", "--at", "2001-01-31T06:00:00Z"], 0),
    (["--to", "timestamp", "--at", "1969-12-31T23:59:59.999Z"], 0),  # -1 ms, which is Kafka's word for the end
    (["--to", "timestamp", "--at", "2101-01-31T06:00:00"], RECORDS),
]


def test_a_position_is_set_anywhere(commands: ClaimsCommands) -> None:
    """Forwards and backwards, and told as it was before."""
    commands.heartbeater("a").__enter__().leave()
    before = "-"
    for target, expected in TARGETS:
        output = commands.run("set-position", "--group", commands.names.group, "--topic", commands.topic, *target)
        assert output.splitlines() == [f"{commands.topic}[{p}]: {before} -> {expected}" for p in range(3)]
        before = str(expected)
    assert commands.positions() == [RECORDS] * 3


def test_a_working_group_goes_on_from_the_position_that_was_set(commands: ClaimsCommands, members: Members) -> None:
    """They give back at 7, are set to 3, and find 3 when they claim again."""
    group = ("--group", commands.names.group, "--topic", commands.topic)
    moved = json.loads(commands.run("set-position", *group, "--to", "offset", "--offset", "3", "--json"))
    assert [(row["before"], row["after"]) for row in moved] == [(7, 3)] * 3
    until(lambda: sum(len(member.held()) for member in members) == 3, "they work again")
    assert {owned.position for member in members for owned in member.held().values()} == {3}


def test_a_group_that_does_not_give_back_is_refused_and_works_on(commands: ClaimsCommands) -> None:
    """The pause is ended again, since nothing was set."""
    with commands.heartbeater("stubborn") as member:
        until(lambda: len(member.held()) == 3, "it works")
        words = ("--group", commands.names.group, "--topic", commands.topic, "--to", "earliest", "--wait-s", "0.5")
        assert "stubborn" in commands.run("set-position", *words, code=ExitCode.REFUSED)
        assert json.loads(commands.run("status", "--json"))["pauses"] == []
        assert len(member.held()) == 3


@pytest.mark.parametrize("command", [["release"], ["set-position", "--to", "earliest", "--topic", "worked"]])
def test_a_signal_while_a_group_gives_back_ends_its_pause(
    commands: ClaimsCommands, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Its members stayed idle for up to twice --wait-s, and nothing said so."""
    with commands.heartbeater("stubborn") as member:
        until(lambda: len(member.held()) == 3, "it works")
        words = [commands.topic if word == "worked" else word for word in command]
        with monkeypatch.context() as patch:
            patch.setattr("downstream.claims.admin.time", Mock(sleep=Mock(side_effect=Stopped)))
            commands.run(*words, "--group", commands.names.group, code=STOPPED_EXIT)
        assert json.loads(commands.run("status", "--json"))["pauses"] == []


WRONG: list[tuple[list[str], str]] = [
    (["--to", "offset"], "--offset N"),
    (["--to", "earliest", "--offset", "3"], "--offset N"),
    (["--to", "timestamp"], "--at TIME"),
    (["--to", "timestamp", "--at", "yesterday"], "'yesterday'"),
    (["--to", "earliest", "--partitions", "1,7"], "['7']"),
]


def test_what_does_not_go_together_is_wrong_usage(commands: ClaimsCommands) -> None:
    """Before anything is paused."""
    for words, message in WRONG:
        arguments = ("--group", "g", "--topic", commands.topic, *words)
        assert message in commands.run("set-position", *arguments, code=ExitCode.USAGE)


def test_a_watcher_tells_each_change_once(commands: ClaimsCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three reads without a change print one line."""
    waits: list[float] = []

    def wait(_watcher: object, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise Stopped

    monkeypatch.setattr("downstream.claims.commands._pass", wait)
    with commands.heartbeater("a") as member:
        until(lambda: len(member.held()) == 3, "it works")
        output = commands.run("watch", "--json", code=STOPPED_EXIT)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert [{row["owner"] for row in line["partitions"]} for line in lines] == [{"a"}]


def test_a_watcher_says_that_no_broker_answers(commands: ClaimsCommands, monkeypatch: pytest.MonkeyPatch) -> None:
    """All owners looked stale, as if they had died, and nothing said why."""

    @contextmanager
    def away(*given: Any) -> Iterator[None]:
        *_, consequence, _, report = given
        report(f"brokers-away: {consequence}")
        yield

    def stopped(*_: object) -> None:
        raise Stopped

    monkeypatch.setattr("downstream.claims.commands.broker_watch", away)
    monkeypatch.setattr("downstream.claims.commands._pass", stopped)
    with commands.heartbeater("a"):
        for words in ([], ["--json"]):
            assert "brokers-away: nobody is heard" in commands.run("watch", *words, code=STOPPED_EXIT)
