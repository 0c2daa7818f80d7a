"""Scenarios where another process moves the position: a second pipeline, a predecessor, the retention of offsets."""

from __future__ import annotations

import threading

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from harness.pipeline import until

from brew.deadline import Deadline
from brew.driver import partitions
from brew.errors import Refused
from brew.kafka import committed_offset, offsets, transaction
from brew.kafka.transaction import KafkaTransaction
from brew.names import READ_COMMITTED
from mutants.scene import Scene

_LATER_S = 3.0  # on a busy machine, reading the offset has taken more than one second


def rival_before_the_fence(scene: Scene) -> None:
    """A second pipeline commits half of a range after it was planned and before its attempt fences."""
    scene.create(1, 20)
    scene.mutate()
    scene.once(KafkaTransaction, "fence", before=lambda: scene.drain("--max-records-per-transaction", "8", cycles=1))
    scene.drain()


def rival_behind_the_first_step(scene: Scene) -> None:
    """A second pipeline commits the range between an attempt's first and second step."""
    scene.create(1, 20)
    scene.mutate()
    scene.once(KafkaTransaction, "fence", after=scene.drain)
    scene.drain()


def zombie(scene: Scene) -> None:
    """An attempt is paused before it sends the offsets; meanwhile a second pipeline commits the range."""
    scene.create(1, 4)
    scene.drain()
    scene.orders(20)
    scene.mutate()
    scene.once(KafkaTransaction, "send_offsets", before=scene.drain)
    scene.drain()


def stale_answers(scene: Scene) -> None:
    """Plan and locate get the offset from before a second pipeline's commit, as from a cut-off coordinator."""
    scene.create(1, 4)
    scene.drain()
    group = (scene.stage.connection, scene.stage.names.group, scene.stage.names.input, [0])
    committed = offsets.committed_by(*group, READ_COMMITTED, Deadline(20))
    scene.orders(20)
    scene.drain()
    scene.mutate()
    until_sent: list[object] = []
    for owner in (partitions, committed_offset):
        scene.change.wrap(owner, "committed", lambda old, *args: old(*args) if until_sent else dict(committed))
    scene.once(KafkaTransaction, "send_offsets", before=lambda: until_sent.append(True))
    scene.drain()


def vanished(scene: Scene) -> None:
    """The group's offsets are gone, output and dead letters exist, new orders arrived; a refusal leads to restore."""
    scene.create(1, 20, bad_every=20)
    scene.drain()
    scene.forget()
    scene.orders(6)
    scene.mutate()
    scene.drain_or_restore("offsets-vanished")


def vanished_behind_the_plan(scene: Scene) -> None:
    """Between plan and fence, a second pipeline commits the range, and then the group's offsets vanish."""
    scene.create(1, 10)
    scene.drain()
    scene.orders(10)
    scene.mutate()

    def meanwhile() -> None:
        scene.drain()
        scene.forget()

    scene.once(KafkaTransaction, "fence", before=meanwhile)
    scene.drain_or_restore("offsets-vanished")


def pending_under_another_id(scene: Scene) -> None:
    """A predecessor with another transactional id has sent its offsets, and commits seconds later."""
    scene.create(1, 4)
    scene.drain()
    scene.orders(10)
    ids = iter([":before"])
    scene.change.wrap(transaction, "producer", lambda old, c, name, **k: old(c, name + next(ids, ""), **k))
    scene.mutate()
    pending, may_commit = threading.Event(), threading.Event()

    def wait() -> None:
        pending.set()
        may_commit.wait(20)

    scene.once(KafkaTransaction, "commit", before=wait)
    predecessor = threading.Thread(target=scene.drain)
    predecessor.start()
    pending.wait(20)
    release = threading.Timer(_LATER_S, may_commit.set)
    scene.once(KafkaTransaction, "locate", before=release.start)
    try:
        scene.drain()
    finally:
        release.cancel()
        may_commit.set()
        predecessor.join(20)


def vanished_behind_the_first_commit(scene: Scene) -> None:
    """Right after the first commit of a run, the group's offsets vanish; a refusal leads to restore."""
    scene.create(1, 20)
    scene.mutate()

    def vanish() -> None:
        until(lambda: None not in scene.stage.committed().values(), "the commit's marker")
        scene.forget()

    scene.once(KafkaTransaction, "commit", after=vanish)
    scene.drain_or_restore("offsets-vanished")


def recreated(scene: Scene) -> None:
    """The input is recreated, and the committed offset is unchanged, as with a broker that was down meanwhile."""
    scene.create(1, 20)
    scene.mutate()
    scene.drain()
    stage, group = scene.stage, (scene.stage.connection, scene.stage.names.group, scene.stage.names.input)
    position = offsets.committed_by(*group, [0], READ_COMMITTED, Deadline(20))[0]
    stage.admin.delete_topics([stage.names.input])[stage.names.input].result(20)
    until(lambda: stage.names.input not in stage.admin.list_topics(timeout=10).topics, "the topic's end")
    scene.create(1, 30)
    until(lambda: set(stage.committed().values()) == {None}, "the old topic's offsets' end")
    assert position is not None
    place = TopicPartition(stage.names.input, 0, position.offset, position.metadata)
    futures = stage.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(stage.names.group, [place])])
    futures[stage.names.group].result(20)
    try:
        scene.drain()
    except Refused as error:
        if not str(error).startswith("topic-recreated"):
            raise
    else:
        scene.signs.append("not refused: topic-recreated")
    scene.partitions = 0  # the output is that of the old input: there is nothing to prove
