"""Members of the group are looked for again while a run lasts, on a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.settings import PipelineSettings
from pipeline.strangers import Strangers
from protocol.cluster import GroupFacts, Unknown
from protocol.connection import Connection
from protocol.errors import Refused

SETTINGS = PipelineSettings(Connection("k:9092"), "in", "out", "dead", "g")


class Scene:
    def __init__(self, settings: PipelineSettings = SETTINGS) -> None:
        self.now, self.asked = 100.0, 0
        self.told: GroupFacts | Unknown = GroupFacts("empty", ())
        self.strangers = Strangers(settings, lambda: self.now)

    def ask(self) -> GroupFacts | Unknown:
        self.asked += 1
        return self.told

    def after(self, seconds: float) -> int:
        """How often was asked by then."""
        self.now += seconds
        self.strangers.look(self.ask)
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


def test_who_was_allowed_may_join() -> None:
    scene = Scene(replace(SETTINGS, allow=frozenset({"group-members"})))
    scene.told = GroupFacts("stable", ("console@10.0.0.7",))
    assert [scene.after(5), scene.after(5)] == [1, 2]
