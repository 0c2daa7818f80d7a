"""The claims topic on a real broker: the brokers' time, races, retention, compaction, topics that were made again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from harness.secure import DOWNSTREAM, PROOF, Secure
from harness.servers import Broker, Names
from harness.waiting import until

from brew import acl
from brew.acl import Kind, Operation, Purpose, ResourceNames
from brew.claims.heartbeater import StandBy
from brew.claims.log import Item
from brew.claims.member import Member, Membership
from brew.claims.messages import CONFIG, ClaimingPartition, encode
from brew.claims.state import snapshot_of
from brew.client_config import load
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, KafkaFailure, Refused
from brew.kafka import cluster_admin, topics
from brew.kafka.claims_log import ClaimsLog
from brew.kafka.clients import admin
from proof.claims import members as races
from proof.claims.history import Belief, History, broken, uncovered


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


def test_the_judge_of_races_finds_each_way_to_be_wrong() -> None:
    """Somebody else's, nobody's, twice, unknown."""
    history = History()
    for offset, client in ((7, "a"), (8, "b")):
        history.add(offset, 0, encode(ClaimingPartition(client, "g", "t", 0, 1000))[1])
    granted = history.granted
    assert (granted, history.owners()) == ({(0, 7): "a"}, {0: "a"})
    assert broken([Belief("a", 0, 7)], granted) == []
    assert len(broken([Belief("b", 0, 8)], granted)) == 2
    assert len(broken([Belief("a", 0, 7), Belief("a", 0, 7)], granted)) == 1
    assert uncovered([Belief("a", 0, 7)], 2) == ["partition 1 has 0 owners"]


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
