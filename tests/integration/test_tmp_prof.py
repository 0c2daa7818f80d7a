from __future__ import annotations
import sys
from pipeline.profiles.held import Held
from pipeline.settings import ProfilesSettings
import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage, until
from protocol.deadline import Deadline
from protocol.errors import *
from protocol.kafka import topics
from protocol.profiles import profile

def test_recreated(broker: Broker, names: Names) -> None:
    stage = Stage(broker, names)
    topic = names.topic("customers")
    def make():
        topics.create(stage.admin, [topics.Wanted(topic, 1, {topics.CLEANUP_POLICY: "compact"})], Deadline(30))
        topics.describe_all(stage.admin, [topic], Deadline(30))
    def write(names_, tier):
        stage.produce(topic, *[(0, n.encode(), profile(n, tier)) for n in names_])
    make()
    write(["a", "b", "c"], "gold")
    held = Held(stage.connection, names.group, ProfilesSettings(topic=topic))
    print(held.ready(20).entries)
    stage.admin.delete_topics([topic])[topic].result(20)
    until(lambda: topic not in stage.admin.list_topics(timeout=10).topics, "the topic's end")
    make()
    write(["a", "x", "y", "z", "w", "v"], "silver")
    for _ in range(3):
        try:
            print(held.ready(20).entries)
            break
        except BrewError as e:
            print(type(e), e)
    t = held.ready(20)
    print(t.entries, held._source.positions)
    held.close()
    assert set(t.entries) == {"a","x","y","z","w","v"}
