"""Producer ids and epochs in /status: asked of the brokers on request, kept for a second, null with a reason."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.observability.counters import Ended, Ending
from brew.observability.health import Bounds
from brew.observability.recorder import Recorder, Subject
from brew.observability.server import Producers, respond
from brew.observability.status import LastTransaction, Topics, from_json


@dataclass
class Brokers:
    """Know the holders of some ids, or do not answer."""

    holders: dict[str, tuple[int, int]] = field(default_factory=dict)
    silent: bool = False
    asked: list[Sequence[str]] = field(default_factory=list)
    now: float = 100.0

    def ask(self, names: Sequence[str], deadline: Deadline) -> Mapping[str, tuple[int, int]]:
        self.asked.append(names)
        assert 0 < deadline.remaining_s() <= 2
        if self.silent:
            raise DeadlineExceeded("describe transactions: 2 s are over")
        return {name: self.holders[name] for name in names if name in self.holders}


@dataclass
class Scene:
    brokers: Brokers
    recorder: Recorder
    producers: Producers

    def last(self, partition: int, page: str = "/status?producers") -> LastTransaction:
        reply = respond(page, self.recorder, self.producers)
        assert reply.code == 200
        found = from_json(reply.body).partitions[partition].last_transaction
        assert found is not None
        return found


@pytest.fixture
def scene() -> Scene:
    brokers = Brokers({"g:orders:0": (7, 3)})
    recorder = Recorder(Subject("pipeline", "g", Topics("orders"), "localhost:1"), Bounds(300, 300, 180))
    for partition in (0, 1):
        name = f"g:orders:{partition}"
        recorder.ended(Ended("orders", partition, Ending.COMMITTED, 0, 5, transactional_id=name))
    return Scene(brokers, recorder, Producers(brokers.ask, lambda: brokers.now))


def test_who_asks_for_producers_gets_them_and_nobody_else_waits_for_brokers(scene: Scene) -> None:
    """The plain document says how to ask."""
    plain = scene.last(0, "/status")
    assert (plain.producer_id, plain.epoch) == (None, None)
    assert "/status?producers" in (plain.producer_unknown or "")
    for page in ("/livez", "/readyz", "/metrics", "/status?other=producers"):
        respond(page, scene.recorder, scene.producers)
    assert scene.brokers.asked == []
    told = scene.last(0)
    assert (told.producer_id, told.epoch, told.producer_unknown) == (7, 3, None)
    assert scene.brokers.asked == [["g:orders:0", "g:orders:1"]]


def test_an_id_that_no_coordinator_knows_is_null_with_its_reason(scene: Scene) -> None:
    told = scene.last(1, "/status?producers=1")
    assert (told.producer_id, told.epoch) == (None, None)
    assert "does not know the id" in (told.producer_unknown or "")


def test_brokers_that_do_not_answer_leave_null_and_the_reason(scene: Scene) -> None:
    """The rest of the document is there."""
    scene.brokers.silent = True
    told = scene.last(0)
    assert (told.producer_id, told.epoch, told.records) == (None, None, 0)
    assert told.producer_unknown == "the brokers did not report it: describe transactions: 2 s are over"


@pytest.mark.parametrize("silent", [True, False])
def test_an_answer_is_kept_for_a_second_and_a_failure_too(scene: Scene, silent: bool) -> None:
    """However often somebody asks: brokers that are in trouble are not asked more often."""
    scene.brokers.silent = silent
    for _ in range(3):
        scene.last(0)
    scene.brokers.now += 0.999
    scene.last(0)
    assert len(scene.brokers.asked) == 1
    scene.brokers.now += 0.001
    scene.brokers.silent, scene.brokers.holders = False, {"g:orders:0": (7, 4)}
    assert scene.last(0).epoch == 4
    assert len(scene.brokers.asked) == 2


def test_a_program_without_transactions_asks_nobody() -> None:
    """Those on the consume loop have none."""
    brokers = Brokers()
    recorder = Recorder(Subject("downstream ledger", "g", Topics("out"), "localhost:1"), Bounds(300, 300, 180))
    recorder.surveyed(("out", 0), 0, 10, 10)
    reply = respond("/status?producers", recorder, Producers(brokers.ask))
    assert (json.loads(reply.body)["partitions"][0]["last_transaction"], brokers.asked) == (None, [])
