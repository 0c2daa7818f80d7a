"""Virtual partitions on the consume loop: positions in Kafka, partitions paused while enough of them is in work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from downstream.consume.handler import Later, Lease, Seat, Slice
from downstream.consume.position import start
from downstream.virtual.partitions import Place, VirtualPartitions
from protocol.deadline import Deadline

_LOOK_S = 0.01
_STORE_EVERY_S = 0.5
_ROOM_S = 1.0


class SpreadingMember:
    """
    The loop's handler. Kafka's committed offset is the position, and never above a record without an effect.

    A commit that gets lost, or that the coordinator refuses because the group has moved on, means repetition.
    ``follow``: False makes the end of a drain wait for the workers; ``stop`` ends that wait.
    """

    def __init__(
        self,
        virtual: VirtualPartitions,
        stop: threading.Event,
        *,
        follow: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._virtual, self._stop, self._follow, self._now = virtual, stop, follow, now
        self._read: dict[int, int] = {}
        self._goals: dict[int, int] = {}
        self._topic = ""
        self._report: Callable[[Mapping[int, int]], None] = lambda _positions: None
        self._stored: dict[int, int] = {}
        self._store_at = 0.0

    def assigned(self, seats: Sequence[Seat], deadline: Deadline) -> Mapping[int, int]:  # noqa: ARG002 - the port's shape
        """Begin at the group's committed offset, or at the first one; what is held already goes on where it was."""
        for seat in seats:
            if seat.partition in self._read:
                continue
            begin = start(seat)
            self._topic = seat.topic
            self._read[seat.partition], self._goals[seat.partition] = begin, seat.last_stable
            self._virtual.assigned(Place(seat.topic, seat.partition), begin)
        return {seat.partition: self._read[seat.partition] for seat in seats}

    def handle(self, slices: Sequence[Slice], lease: Lease) -> None:
        """Give records to the workers, and stop reading partitions of which enough is in work."""
        for one in slices:
            place = Place(self._topic, one.partition)
            self._virtual.add(place, one.records)
            self._virtual.passed(place, one.until)
            self._read[one.partition] = one.until
        # After pause and resume the client takes up to a second to fetch again (measured): so only for slow handlers.
        if not self._virtual.await_room(_ROOM_S):
            lease.pause([p for p in self._read if self._virtual.full(Place(self._topic, p))])

    def tick(self, lease: Lease) -> None:
        """Store positions, read on where there is room again, and let the end of a drain wait for the workers."""
        self._report = lease.report
        lease.resume([p for p in self._read if not self._virtual.full(Place(self._topic, p))])
        if not self._follow and self._read and all(at >= self._goals[p] for p, at in self._read.items()):
            self._await_workers(lease)
        if self._now() >= self._store_at:
            self._store(self._virtual.positions())

    def _await_workers(self, lease: Lease) -> None:
        while not self._virtual.idle() and not self._stop.is_set():
            if lease.deadline.expired():
                raise Later("handlers are still at work", _LOOK_S)
            self._stop.wait(_LOOK_S)

    def _store(self, positions: Mapping[Place, int]) -> None:
        self._store_at = self._now() + _STORE_EVERY_S
        moved = {place.partition: at for place, at in positions.items() if self._stored.get(place.partition) != at}
        if moved:
            self._report(moved)
            self._stored |= moved

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Fill the holes below what was begun, as far as there is time, and store how far that came."""
        places = [self._forget(partition) for partition in partitions if partition in self._read]
        self._virtual.hold(places)
        self._store({place: self._virtual.revoked(place, deadline) for place in places})
        for partition in partitions:
            self._stored.pop(partition, None)

    def lost(self, partitions: Collection[int]) -> None:
        for partition in partitions:
            if partition in self._read:
                self._virtual.lost(self._forget(partition))
            self._stored.pop(partition, None)

    def _forget(self, partition: int) -> Place:
        del self._read[partition], self._goals[partition]
        return Place(self._topic, partition)

    def close(self, deadline: Deadline) -> None:
        self._virtual.close(deadline)
