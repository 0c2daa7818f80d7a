"""Virtual partitions on the loop's port: where reading begins, when it pauses, and what is stored."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import pytest
from harness.programs import until

from brew.deadline import Deadline
from brew.errors import Refused
from downstream.consume.handler import AssignedPartition, HandlerContext, PartitionBatch, RetryLater
from downstream.virtual import partitions as member
from downstream.virtual.partitions import TopicPartition, VirtualPartitions, VirtualPartitionsHandler, VirtualSettings


@dataclass(frozen=True)
class Order:
    """A record without a broker."""

    number: int

    def offset(self) -> int:
        return self.number

    def key(self) -> bytes:
        return b"%d" % self.number


@dataclass
class Scene:
    """A member, its gate for handlers, and what it told the loop."""

    gate: threading.Event = field(default_factory=threading.Event)
    paused: set[int] = field(default_factory=set)
    stored: dict[int, int] = field(default_factory=dict)
    now: float = 0.0

    def handle(self, _record: object) -> None:
        assert self.gate.wait(20)

    def give_up(self, *_: object) -> None: ...

    def make(self, *, follow: bool = True) -> VirtualPartitionsHandler:
        self.virtual = VirtualPartitions(VirtualSettings(count=4, most_uncovered=20), self)
        return VirtualPartitionsHandler(self.virtual, threading.Event(), follow=follow, now=lambda: self.now)

    def context(self, seconds: float = 20.0) -> HandlerContext:
        def pause(partitions: Collection[int]) -> None:
            self.paused |= set(partitions)

        def resume(partitions: Collection[int]) -> None:
            self.paused -= set(partitions)

        def report(positions: Mapping[int, int]) -> None:
            self.stored |= positions

        return HandlerContext(Deadline(seconds), frozenset({0, 1}), pause, resume, report)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.gate.set()
    made.virtual.close(Deadline(10))


def assignment(partition: int, committed: int | None, first: int = 5, last_stable: int = 30) -> AssignedPartition:
    return AssignedPartition("orders", "id", partition, committed, first, last_stable)


def records(start: int, until: int) -> PartitionBatch:
    return PartitionBatch(0, start, until, [Order(n) for n in range(start, until)])  # type: ignore[misc]


def test_reading_begins_at_the_committed_offset_or_the_first(scene: Scene) -> None:
    """Asked again after a wait, it goes on where it has read to; what retention took is refused."""
    one = scene.make()
    assert one.assigned([assignment(0, 9), assignment(1, None)], Deadline(5)) == {0: 9, 1: 5}
    one.handle([records(9, 12)], scene.context())
    assert one.assigned([assignment(0, 9)], Deadline(5)) == {0: 12}
    with pytest.raises(Refused, match="left at 2, and retention has taken what lies before 5"):
        one.assigned([assignment(2, 2)], Deadline(5))
    one.revoked([0, 1, 2], Deadline(1))
    one.lost([2])


def test_a_partition_with_enough_in_work_is_paused_and_read_on_when_there_is_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that one; nothing is stored before it is finished."""
    monkeypatch.setattr(member, "_ROOM_S", 0.05)
    one = scene.make()
    one.assigned([assignment(0, 5), assignment(1, 5)], Deadline(5))
    one.handle([records(5, 15)], scene.context())
    assert scene.paused == set()
    one.handle([records(15, 20)], scene.context())
    assert scene.paused == {0}
    one.tick(scene.context())
    assert (scene.paused, scene.stored) == ({0}, {0: 5, 1: 5})
    scene.gate.set()
    scene.now += 10
    assert scene.virtual.await_room(10)
    assert one.revoked([0], Deadline(10)) is None
    assert scene.stored[0] == 20
    one.tick(scene.context())


def test_a_drains_end_waits_for_the_workers(scene: Scene) -> None:
    """All is read, nothing done: the loop is told to come back before its time is over, and then all is stored."""
    one = scene.make(follow=False)
    one.assigned([assignment(0, 28)], Deadline(5))
    one.handle([records(28, 30)], scene.context())
    with pytest.raises(RetryLater, match="still at work"):
        one.tick(scene.context(0.05))
    scene.gate.set()
    one.tick(scene.context())
    assert scene.stored == {0: 30}


def test_nothing_is_stored_of_a_partition_that_was_lost(scene: Scene) -> None:
    """Somebody else has it: an offset of ours could take back what they have stored."""
    one = scene.make()
    one.assigned([assignment(0, 5)], Deadline(5))
    one.handle([records(5, 8)], scene.context())
    one.tick(scene.context())
    scene.stored.clear()
    one.lost([0])
    scene.gate.set()
    scene.now += 10
    one.tick(scene.context())
    assert scene.stored == {}


def test_partitions_that_leave_together_are_held_before_the_first_is_waited_for(scene: Scene) -> None:
    """Else a slow handler of one would let the others begin what there is no time left to finish."""
    one = scene.make()
    one.assigned([assignment(0, 5), assignment(1, 5)], Deadline(5))
    held, revoked, limits = dict(scene.virtual._held), scene.virtual.revoked, []

    def watched(place: TopicPartition, deadline: Deadline) -> int:
        limits.append([one.limit for one in held.values()])
        return revoked(place, deadline)

    scene.virtual.revoked = watched  # type: ignore[method-assign]
    one.revoked([0, 1], Deadline(5))
    assert limits[0] == [-1, -1]


@pytest.mark.parametrize("how", ["lost", "revoked"])
def test_a_position_that_was_stored_before_a_partition_went_is_stored_again_when_it_comes_back(
    scene: Scene, how: str
) -> None:
    """Whether the first one was kept nobody knows: the coordinator refuses what comes from a member that is out."""
    scene.gate.set()
    one = scene.make()
    for _ in range(2):
        assert one.assigned([assignment(0, 5)], Deadline(5)) == {0: 5}
        one.handle([records(5, 9)], scene.context())
        until(scene.virtual.idle, "the effects")
        scene.now += 10
        scene.stored.clear()
        one.tick(scene.context())
        assert scene.stored == {0: 9}
        one.lost([0]) if how == "lost" else one.revoked([0], Deadline(5))
