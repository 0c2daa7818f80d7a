"""What a consuming program tells its watchers: all that the loop asks of its pattern, and nothing is changed by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partialmethod
from unittest.mock import Mock

import pytest
from harness.records import FakeRecord

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from brew.kafka import cluster_admin
from brew.observability.health import Bounds
from brew.observability.recorder import Recorder, Subject
from brew.observability.status import PartitionState, Topics
from brew.offsets import LogOffsets
from downstream import observed
from downstream.consume.handler import AssignedPartition, HandlerContext, NotOwned, PartitionBatch, RetryLater
from downstream.observed import ObservedHandler


@dataclass
class Pattern:
    """Reads from the committed offset on, and reports what it is given; raises what it is told to."""

    error: Exception | None = None
    calls: list[str] = field(default_factory=list)

    def _called(self, name: str, *_given: object) -> None:
        self.calls.append(name)
        if self.error is not None:
            raise self.error

    tick, revoked = partialmethod(_called, "tick"), partialmethod(_called, "revoked")
    lost, close = partialmethod(_called, "lost"), partialmethod(_called, "close")

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:  # noqa: ARG002 - the port's shape
        self._called("assigned")
        return {assignment.partition: assignment.committed or 0 for assignment in assignments}

    def handle(self, slices: Sequence[PartitionBatch], context: HandlerContext) -> None:
        self._called("handle")
        context.report({one.partition: one.until for one in slices})


class Scene:
    def __init__(self) -> None:
        self.pattern, self.reported = Pattern(), []
        subject = Subject("downstream ledger", "g", Topics("out"), "localhost:1")
        self.recorder = Recorder(subject, Bounds(300, 300, 120), wall=lambda: 5000.0)
        self.handler = ObservedHandler(self.pattern, self.recorder, "out")

    def context(self) -> HandlerContext:
        return HandlerContext(Deadline(5), frozenset({0, 1}), lambda _: None, lambda _: None, self.reported.append)

    def assign(self, last_stable: int = 3) -> Mapping[int, int]:
        assignments = [AssignedPartition("out", "id", p, 0, 0, last_stable) for p in (0, 1)]
        return self.handler.assigned(assignments, Deadline(5))

    def read(self, partition: int = 0, until: int = 3) -> None:
        records = [FakeRecord(time_ms=time_ms) for time_ms in (4_900_000, 4_925_000)]
        self.handler.handle([PartitionBatch(partition, 0, until, records)], self.context())

    def states(self) -> list[PartitionState]:
        return [one.state for one in self.recorder.status().partitions]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_positions_and_reports_go_through_unchanged(scene: Scene) -> None:
    assert not scene.recorder.status().started.ok
    assert scene.assign() == {0: 0, 1: 0}
    assert scene.states() == [PartitionState.WORKING, PartitionState.WORKING]
    scene.read()
    assert scene.reported == [{0: 3}]
    assert scene.states() == [PartitionState.IDLE, PartitionState.WORKING]
    status = scene.recorder.status()
    assert (status.totals.records, status.partitions[0].position, status.ready.ok) == (2, 3, True)


def test_a_store_that_is_away_blocks_its_partitions_until_it_is_back(scene: Scene) -> None:
    scene.pattern.error = RetryLater("the database is away")
    with pytest.raises(RetryLater):
        scene.assign()
    assert scene.states() == [PartitionState.BLOCKED, PartitionState.BLOCKED]
    assert "the database is away" in scene.recorder.status().partitions[0].reason
    assert scene.recorder.status().live.ok
    assert scene.recorder.status().ready.reason == "every partition waits: the database is away"
    scene.pattern.error = None
    scene.assign()
    assert scene.states() == [PartitionState.BLOCKED, PartitionState.BLOCKED], "a look at Kafka asks no store"
    scene.read()
    assert scene.states() == [PartitionState.IDLE, PartitionState.BLOCKED]
    scene.read(1, 2)
    assert scene.states() == [PartitionState.IDLE, PartitionState.WORKING]
    scene.pattern.error = NotOwned("lost its lock")
    with pytest.raises(NotOwned):
        scene.read(1)
    assert scene.states() == [PartitionState.IDLE, PartitionState.BLOCKED]
    assert scene.recorder.status().ready.ok, "the other one can be worked on"


def test_what_ends_the_loop_is_told_before_it_ends(scene: Scene) -> None:
    """Between that and the end of the process somebody may ask."""
    scene.assign()
    scene.pattern.error = Refused("input-lost: out[0]")
    with pytest.raises(Refused):
        scene.handler.tick(scene.context())
    assert scene.recorder.status().live.reason == "unrecoverable: Refused: input-lost: out[0]"


@pytest.mark.parametrize("how", ["revoked", "lost"])
def test_partitions_that_leave_are_not_told_any_more(scene: Scene, how: str) -> None:
    scene.assign()
    scene.handler.revoked([0], Deadline(5)) if how == "revoked" else scene.handler.lost([0])
    assert scene.recorder.topic_partitions() == [("out", 1)]
    scene.handler.tick(scene.context())
    assert scene.pattern.calls == ["assigned", how, "tick"]


def test_the_end_is_told(scene: Scene) -> None:
    scene.assign()
    scene.handler.close(Deadline(5))
    status = scene.recorder.status()
    assert (status.state.value, status.ready.ok, status.live.ok) == ("stopping", False, True)


def test_what_is_left_is_about_as_old_as_what_was_done_last(scene: Scene) -> None:
    """The loop's own records tell the lag in seconds: nobody is asked for it."""
    scene.assign(last_stable=10)
    scene.read(0, 3)
    ages = [one.lag_s for one in scene.recorder.status().partitions]
    assert ages[0] == pytest.approx(75, abs=1)
    scene.read(0, 10)
    assert scene.recorder.status().partitions[0].lag_s == 0


def test_a_client_that_lost_the_brokers_is_replaced_and_the_program_is_ready_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would say for ever that the brokers do not answer: the program was restarted for nothing."""
    clients = iter(["lost", "new"])

    def log_offsets(client: str, _topic: str, partitions: list[int], _deadline: Deadline) -> dict[int, LogOffsets]:
        if client == "lost":
            raise DeadlineExceeded("offsets of out: no answer")
        return dict.fromkeys(partitions, LogOffsets(0, 3, 3))

    monkeypatch.setattr(observed, "admin", lambda _connection: next(clients))
    monkeypatch.setattr(observed, "is_cut_off", lambda client, *_: client == "lost")
    monkeypatch.setattr(observed, "leaderless", lambda _client, _topic, _deadline: [])
    monkeypatch.setattr(observed, "log_offsets", log_offsets)
    ready, turns = list[bool](), 2

    def wait(_seconds: float) -> bool:
        ready.append(scene.recorder.status().ready.ok)
        return len(ready) > turns

    scene.assign()
    observed._poll_end_offsets(Connection("nowhere:1"), scene.recorder, Mock(wait=wait))
    assert ready == [True, False, True]


def test_a_partition_without_a_leader_does_not_make_the_others_unready(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program was restarted though it consumed the others, and could then take over none of them."""

    def log_offsets(_client: str, _topic: str, partitions: list[int], _deadline: Deadline) -> dict[int, LogOffsets]:
        if 1 in partitions:
            raise DeadlineExceeded("offsets of out: no leader")
        return dict.fromkeys(partitions, LogOffsets(0, 3, 3))

    monkeypatch.setattr(observed, "admin", lambda _connection: "client")
    monkeypatch.setattr(observed, "is_cut_off", lambda *_: False)
    monkeypatch.setattr(cluster_admin, "leaders", lambda *_: {0: 4, 1: -1})
    monkeypatch.setattr(observed, "log_offsets", log_offsets)
    scene.assign()
    observed._poll_end_offsets(Connection("nowhere:1"), scene.recorder, Mock(wait=Mock(side_effect=[False, True])))
    assert scene.recorder.status().ready.ok
