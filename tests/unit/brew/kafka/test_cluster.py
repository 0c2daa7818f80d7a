"""What a cluster answers before a run, and a watch that tells of outages: brokers that refuse or say nothing."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException

from brew.cluster import ClusterFacts, GroupFacts, TopicFacts, Unknown
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, Fatal
from brew.kafka import cluster, group_requests, kafka_python
from brew.kafka.cluster import ClusterQueries, Groups, Outage, controller_ahead_s, feature_level, may_describe
from brew.kafka.kafka_python import NoSuchId

NOWHERE = Connection("nowhere:1")
NO = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "not yours")
CLUSTER_NO = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "not yours")
GONE = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "no such topic")


def answered(value: Any) -> Future[Any]:
    future = Future[Any]()
    if isinstance(value, KafkaError):
        future.set_exception(KafkaException(value))
    else:
        future.set_result(value)
    return future


def entries(**config: str | None) -> dict[str, Any]:
    return {name: SimpleNamespace(value=value) for name, value in config.items()}


class Admin:
    """A client whose brokers and topics answer with these; an error is raised where the answer is read."""

    def __init__(self, brokers: dict[str, Any], topics: dict[str, tuple[Any, Any]]) -> None:
        self.brokers, self.topics = brokers, topics

    def describe_cluster(self, **_: float) -> Future[Any]:
        return answered(SimpleNamespace(nodes=[SimpleNamespace(id=int(broker)) for broker in self.brokers]))

    def describe_topics(self, _names: object, **_: Any) -> dict[str, Future[Any]]:
        return {name: answered(topic) for name, (topic, _) in self.topics.items()}

    def describe_configs(self, resources: list[Any], **_: float) -> dict[Any, Future[Any]]:
        configs = {**self.brokers, **{name: config for name, (_, config) in self.topics.items()}}
        return {one: answered(configs[one.name]) for one in resources}


def described(*partitions: tuple[int, int]) -> SimpleNamespace:
    """A topic whose partitions have so many replicas, and so many in sync."""
    return SimpleNamespace(
        topic_id="id",
        partitions=[SimpleNamespace(replicas=[0] * replicas, isr=[0] * in_sync) for replicas, in_sync in partitions],
        authorized_operations=[SimpleNamespace(name="READ")],
    )


def facts(brokers: dict[str, Any]) -> ClusterFacts:
    topics = {
        "in": (described((3, 3), (2, 1), (3, 2)), entries(a="1", unset=None)),
        "gone": (GONE, GONE),
        "secret": (NO, NO),
        "out": (described((1, 1)), NO),
    }
    groups: Any = SimpleNamespace(now=lambda group, _deadline: GroupFacts(group, ()))
    return ClusterQueries(Admin(brokers, topics), groups, topics, "g", Deadline(5)).answers()  # type: ignore[arg-type]


def test_a_topics_worst_partition_counts_and_what_is_not_told_is_unknown_or_missing() -> None:
    """A missing topic will be created; of one that this user may not describe nothing can be said."""
    found = facts({"1": entries(b="2"), "2": entries(b="3")})
    denied = Unknown("not yours (TOPIC_AUTHORIZATION_FAILED)")
    assert found.topics == {
        "in": TopicFacts("in", "id", 3, 2, 1, {"a": "1"}, frozenset({"READ"})),
        "gone": None,
        "secret": denied,
        "out": TopicFacts("out", "id", 1, 1, 1, denied, frozenset({"READ"})),
    }
    assert (found.brokers, found.config, found.group) == (2, {1: {"b": "2"}, 2: {"b": "3"}}, GroupFacts("g", ()))


def test_settings_are_those_of_the_brokers_that_tell_them() -> None:
    assert facts({"1": CLUSTER_NO, "2": entries(b="3")}).config == {2: {"b": "3"}}
    assert facts({"1": CLUSTER_NO}).config == Unknown("not yours (CLUSTER_AUTHORIZATION_FAILED)")
    assert facts({}).config == Unknown("no broker is known")


def test_a_connection_that_failed_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a former coordinator cached, and would ask that one for ever; one that answers is kept."""
    opened, ended = list[object](), list[object]()
    answers: list[Any] = [GroupFacts("empty", ()), DeadlineExceeded("no answer"), GroupFacts("stable", ("a",))]

    def answer(*_: object) -> GroupFacts:
        found = answers.pop(0)
        if isinstance(found, BrewError):
            raise found
        return found  # type: ignore[no-any-return]

    monkeypatch.setattr(kafka_python, "open_admin", lambda *_: opened.append(object()) or opened[-1])
    monkeypatch.setattr(group_requests, "describe_group", answer)
    monkeypatch.setattr(group_requests, "end", ended.append)
    groups = Groups(NOWHERE)
    found = [groups.now("g", Deadline(5)) for _ in range(3)]
    assert found == [GroupFacts("empty", ()), Unknown("no answer"), GroupFacts("stable", ("a",))]
    assert (len(opened), ended) == (2, opened[:1])
    groups.close()
    groups.close()
    assert ended == opened


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What a request through kafka-python returns or raises; asked from 1000 s to 1001 s."""
    ask, times = Mock(), iter([1000.0, 1001.0])
    monkeypatch.setattr(kafka_python, "kafka_python_admin", lambda *_: nullcontext(Mock()))
    monkeypatch.setattr(kafka_python, "ask", ask)
    monkeypatch.setattr(cluster, "_now", lambda: next(times))
    return ask


def voter(replica_id: int, fetched_ms: int | None) -> SimpleNamespace:
    return SimpleNamespace(replica_id=replica_id, last_fetch_timestamp=fetched_ms)


@pytest.mark.parametrize(
    ("voters", "ahead"),
    [
        ([voter(1, 5_000_000), voter(2, 1_003_000)], 2.0),
        ([voter(2, 1_000_500)], 0.0),
        ([voter(2, 998_999)], -1.0),
        *(([voter(2, told), voter(1, 1_000_500)], None) for told in (-1, 0, None)),
        ([voter(1, 1_000_500)], None),
    ],
)
def test_the_controllers_clock_is_the_one_that_the_leader_tells(
    answer: Mock, voters: list[SimpleNamespace], ahead: float | None
) -> None:
    """A follower's last fetch may be long ago; brokers before 3.3 tell none."""
    answer.return_value = SimpleNamespace(current_voters=voters, leader_id=2)
    found = controller_ahead_s(NOWHERE, Deadline(5))
    assert found == (Unknown("this controller does not say when it answers") if ahead is None else ahead)


DENIED = Fatal("describe transactions: (TransactionalIdAuthorizationFailedError)")


def test_what_can_not_be_asked_is_unknown(answer: Mock) -> None:
    answer.side_effect = [DeadlineExceeded("late")] * 3
    asked = (controller_ahead_s(NOWHERE, Deadline(5)), feature_level(NOWHERE, "f", Deadline(5)))
    assert (*asked, may_describe(NOWHERE, "g:in:0", Deadline(5))) == (Unknown("late"),) * 3
    answer.side_effect = [{"f": {"finalized": (0, 2)}}, {"else": {}}, {}, NoSuchId("no"), DENIED]
    assert [feature_level(NOWHERE, "f", Deadline(5)) for _ in range(2)] == [2, 0]
    assert [may_describe(NOWHERE, "g:in:0", Deadline(5)) for _ in range(3)] == [True, True, False]


class Watch:
    """A watch of brokers with these outages, until a time; each look takes half a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, outages: list[tuple[float, float]], until_s: float) -> None:
        self.now, self.outages, self.until_s = 0.0, outages, until_s
        self.made, self.reports = list[float](), list[tuple[float, str]]()
        self.stopped = threading.Event()
        monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(cluster, "admin", self.admin)
        outage = Outage("nowhere:1", "the run waits", None)
        stop: Any = SimpleNamespace(is_set=self.stopped.is_set, wait=self.wait)
        cluster._watch(NOWHERE, "in", outage, stop, lambda text: self.reports.append((self.now, text.split(":")[0])))

    def admin(self, _connection: Connection, **settings: Any) -> Any:
        assert settings == {"allow.auto.create.topics": False}
        self.made.append(self.now)
        return SimpleNamespace(list_topics=self.look)

    def look(self, _topic: str, timeout: float) -> None:
        self.now += timeout / 2
        if any(begin <= self.now < end for begin, end in self.outages):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.until_s:
            self.stopped.set()


def test_a_watch_tells_of_silence_after_three_seconds_and_asks_through_a_new_client_every_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that has lost the brokers for good never answers again; a short silence is none that people wait for."""
    watch = Watch(monkeypatch, [(25.1, 26.0), (40.1, 65.1)], 80)
    assert watch.reports == [(42.5, "brokers-away"), (65.5, "brokers-back")], "the last answer before was at 39 s"
    assert watch.made == [0.0, 49.5, 59.5]
