"""The direct reader, simulated: one transaction after another for each partition, leases, and a driver that looks."""

from __future__ import annotations

import contextlib
import random

import simpy

from pipeline.direct import placing
from pipeline.direct.stretch import CHUNK
from pipeline.outcome import Outcome, Status
from scale.log import Log
from scale.numbers import Line
from scale.resources import Steps
from scale.tail import Tail
from scale.transaction import call, transact
from scale.world import Slot, World

_LEAST_AHEAD = 1024 * 1024
_LOOK_S = 1.0
_NOTHING = Line(0.0, 0.0)


class _Tenure:
    """One partition in a slot's hands, until it is drained or the slot is lost."""

    def __init__(self, world: World, slot: Slot, log: Log, ahead: int) -> None:
        self._world, self._slot, self._log = world, slot, log
        self._tail = Tail(world, slot, log, ahead)
        self._left = 0

    def work(self) -> Steps:
        world, log = self._world, self._log
        fetching = world.env.process(self._tail.run())
        try:
            while not (log.committed >= log.backlog and not log.per_s):
                first = yield from self._tail.take(min(CHUNK, self._slot.paces.of(log.partition).cap))
                yield from self._slot.turns.one(self._transaction(first))
            if fetching.is_alive:
                fetching.interrupt()
            yield from call(world, self._slot, world.leader(log.partition), world.numbers.tail_close)
        except simpy.Interrupt:  # the executor is gone
            with contextlib.suppress(RuntimeError):
                fetching.interrupt()

    def _transaction(self, first: int) -> Steps:
        world, log, began = self._world, self._log, self._world.env.now
        self._left = max(0, self._slot.paces.of(log.partition).cap - first)
        python = world.numbers.produce
        count = yield from transact(world, self._slot, log.partition, first, python, _NOTHING, self._more)
        log.commit(world.env.now, log.committed + count)
        self._slot.paces.heed(Outcome(log.partition, 0, count, Status.COMMITTED, seconds=world.env.now - began))

    def _more(self) -> Steps:
        """The next chunk of a transaction that is read while it is written."""
        count = yield from self._tail.take_now(min(CHUNK, self._left))
        self._left -= count
        return count


class Holders:
    """What the director does: looks, grants at the start, and grants anew what a lost executor held."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held: dict[int, int] = {}
        self._left = world.env.event()
        self.lost: dict[int, float] = {}
        """Partition -> when its executor was lost."""

    def start(self) -> None:
        self._grant()
        self._world.env.process(self._look())
        if self._world.scenario.lose:
            self._world.env.process(self._lose())

    def _look(self) -> Steps:
        """Every second, and whenever a partition was left."""
        env = self._world.env
        while not self._world.drained():
            yield env.any_of([env.timeout(_LOOK_S), self._left])
            self._left = env.event()
            yield from self._survey()

    def _survey(self) -> Steps:
        world = self._world
        numbers, broker = world.numbers, world.group_broker
        yield from call(world, world.driver, broker, numbers.survey)
        yield from call(world, world.driver, broker, numbers.survey_partition.times(world.scenario.partitions))

    def _tenure(self, slot: Slot, log: Log, ahead: int) -> Steps:
        work = _Tenure(self._world, slot, log, ahead).work()
        with contextlib.suppress(simpy.Interrupt):  # the executor is gone
            yield from work if log.per_s else slot.reading.one(work)  # a backlog waits for its turn to be read
        if not self._left.triggered:
            self._left.succeed()

    def _grant(self) -> None:
        world = self._world
        slots = [slot.number for slot in world.slots if not slot.lost]
        lags = {log.partition: min(log.arrived(world.env.now), 10**6) for log in world.logs}
        placed = placing.place(lags, self._held, slots)
        self._held |= placed
        share = max(1, -(-len(world.logs) // len(slots)))
        ahead = max(_LEAST_AHEAD, world.scenario.read_ahead_bytes // share) // world.scenario.record_bytes
        for partition, number in placed.items():
            slot = world.slots[number]
            slot.working.add(world.env.process(self._tenure(slot, world.logs[partition], ahead)))

    def _lose(self) -> Steps:
        """The director hears at once of a process that ends, and of a silent one when its lease is over."""
        world, scenario = self._world, self._world.scenario
        yield world.env.timeout(scenario.lose_at)
        gone = set(random.Random(scenario.seed).sample(range(scenario.executors), scenario.lose))
        for slot in world.slots:
            if slot.executor in gone:
                slot.lost = True
                for process in slot.working:
                    if process.is_alive:
                        process.interrupt()
        freed = [partition for partition, number in self._held.items() if world.slots[number].lost]
        self.lost = dict.fromkeys(freed, world.env.now)
        yield world.env.timeout(scenario.lease_s if scenario.silent else 0.0)
        yield from self._survey()
        for partition in freed:
            del self._held[partition]
        self._grant()
