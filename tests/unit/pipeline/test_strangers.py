"""Members of the group are looked for again while a run lasts, on a clock that the test moves."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from brew.cluster import GroupFacts, Unknown
from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import partitions
from brew.driver.partitions import GroupMembershipCheck
from brew.driver.progress import ProgressView, RunProgress
from brew.driver.run_context import Interval, RunContext
from brew.errors import Refused, Retriable
from brew.fault_injection import CrashInjector
from brew.kafka.transaction import TransactionSettings
from brew.settings import PipelineSettings

SETTINGS = PipelineSettings(Connection("k:9092"), "in", "out", "dead", "g")


class Scene:
    def __init__(self, settings: PipelineSettings = SETTINGS) -> None:
        self.now, self.asked = 100.0, 0
        self.told: GroupFacts | Unknown = GroupFacts("empty", ())
        self.every = Interval(5.0, lambda: self.now)
        self.strangers = GroupMembershipCheck(settings, self.every)

    def ask(self) -> GroupFacts | Unknown:
        self.asked += 1
        return self.told

    def after(self, seconds: float) -> int:
        """How often was asked by then."""
        self.now += seconds
        self.strangers.check(self.ask)
        return self.asked


def test_brokers_are_asked_every_few_seconds_and_not_at_once() -> None:
    """The checks before the run have just asked, and a look comes every second."""
    scene = Scene()
    assert [scene.after(s) for s in (0, 4.9, 0.1, 1, 3.9, 0.1)] == [0, 0, 1, 1, 1, 2]


def test_who_has_joined_ends_the_run_by_name() -> None:
    """What to do is in the sentence; brokers that do not tell end nothing."""
    scene = Scene()
    scene.told = Unknown("timed out")
    assert scene.after(5) == 1
    scene.told = GroupFacts("stable", ("console@10.0.0.7",))
    with pytest.raises(Refused, match=r"group-members is 1: console@10\.0\.0\.7.*--allow group-members"):
        scene.after(5)


def test_the_lanes_of_a_run_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lanes look a second apart; what one was told counts for both."""
    scene, asked = Scene(), list[float]()

    class Away:
        def __init__(self, _settings: PipelineSettings) -> None:
            self.groups = self

        def now(self, _group: str, _deadline: Deadline) -> GroupFacts:
            asked.append(scene.now)
            return GroupFacts("empty", ())

        def input_topic(self, _deadline: Deadline) -> None:
            raise Retriable("no more than that")

    monkeypatch.setattr(partitions, "OffsetsClient", Away)
    transaction = TransactionSettings(SETTINGS.connection, "g", 60.0)
    parts = (
        threading.Event(),
        RunProgress(),
        ProgressView(),
        None,
        1_000_000,
        transaction,
        CrashInjector(SETTINGS.crash),
    )
    shared = RunContext(SETTINGS, {}, *parts, member_check_due=scene.every)
    lanes = [partitions.PartitionSurvey(shared), partitions.PartitionSurvey(shared)]
    for _ in range(11):
        for lane in lanes:
            with pytest.raises(Retriable):
                lane.read(lambda _: [])
        scene.now += 1
    assert asked == [105.0, 110.0]


def test_who_was_allowed_may_join() -> None:
    scene = Scene(replace(SETTINGS, allow=frozenset({"group-members"})))
    scene.told = GroupFacts("stable", ("console@10.0.0.7",))
    assert [scene.after(5), scene.after(5)] == [1, 2]
