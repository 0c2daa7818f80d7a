"""Creating topics on brokers that have just started, that answer late, and that refuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from brew.kafka.topics import TopicSpec, create

CREATED, EXISTS, LATE, DENIED = (
    None,
    KafkaError(KafkaError.TOPIC_ALREADY_EXISTS),
    KafkaError(KafkaError._TIMED_OUT),
    KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED),
)


class Brokers:
    """An admin client: how many brokers are registered, and what creation answers; the last of each stays."""

    def __init__(self, registered: Iterable[int], answers: Iterable[KafkaError | None] = (CREATED,)) -> None:
        self.registered, self.answers = _staying(registered), _staying(answers)
        self.replicas: list[int] = []

    def list_topics(self, timeout: float) -> Any:
        assert timeout > 0
        return SimpleNamespace(brokers=dict.fromkeys(range(next(self.registered))))

    def create_topics(self, wanted: list[NewTopic], **_: float) -> dict[str, Future[None]]:
        return {topic.topic: self._answer(topic) for topic in wanted}

    def _answer(self, topic: NewTopic) -> Future[None]:
        self.replicas.append(topic.replication_factor)
        future, error = Future[None](), next(self.answers)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(KafkaException(error))
        return future


def _staying(values: Iterable[Any]) -> Iterator[Any]:
    last = None
    for last in values:
        yield last
    while True:
        yield last


def made(brokers: Any, seconds: float = 5.0) -> dict[str, bool]:
    return create(brokers, [TopicSpec("t", 4, {})], Deadline(seconds))


@pytest.mark.parametrize(("registered", "replicas"), [([1], 1), ([3], 3), ([9], 3), ([0, 0, 1], 1)])
def test_a_topic_has_as_many_replicas_as_there_are_brokers_up_to_three(registered: list[int], replicas: int) -> None:
    """A broker that has just started tells of none for a moment; no replicas at all would be refused."""
    brokers = Brokers(registered)
    assert (made(brokers), brokers.replicas) == ({"t": True}, [replicas])


def test_brokers_that_never_register_are_waited_for_until_the_deadline() -> None:
    with pytest.raises(DeadlineExceeded, match=r"make topics: .*no broker has registered yet"):
        made(Brokers([0]), 0.3)


@pytest.mark.parametrize(
    ("answers", "by_this_call"), [([EXISTS], False), ([LATE, EXISTS], True), ([LATE, CREATED], True)]
)
def test_who_created_a_topic_is_known_though_an_answer_was_lost(answers: list[Any], by_this_call: bool) -> None:
    assert made(Brokers([1], answers)) == {"t": by_this_call}


def test_a_refusal_names_the_topic_and_what_to_do() -> None:
    with pytest.raises(Refused, match=r"'t' is missing and could not be made: .*; make it by hand"):
        made(Brokers([1], [DENIED]))
