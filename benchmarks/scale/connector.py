"""The connector reader, simulated: lanes of cycles, each as long as the slowest of its tasks."""

from __future__ import annotations

import random

import simpy

from pipeline.pace import Pace
from scale.numbers import Line
from scale.resources import Steps
from scale.transaction import transact
from scale.world import TIMEOUT_S, Slot, World

_POLL_S = 0.1
_SILENCE_S = 120.0
"""Spark's `spark.network.timeout`: how long an executor may be silent."""


class Lanes:
    """The driver's lanes over Spark's task slots; ``lost`` as the direct reader's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._free = simpy.Store(world.env)
        self._heard = world.env.event()
        self.lost: dict[int, float] = {}
        self._running: dict[int, tuple[Slot, simpy.Process]] = {}
        numbers = world.numbers
        python = Line(numbers.take.us + numbers.produce.us, numbers.take.us_per_kib + numbers.produce.us_per_kib)
        rest = numbers.connector.cpu_us - python.us - numbers.send.us
        self._python, self._jvm = python, Line(max(0.0, rest), numbers.fetch.us_per_kib)

    def start(self) -> None:
        for slot in self._world.slots:
            self._free.put(slot)
        for lane in range(self._world.scenario.lanes):
            self._world.env.process(self._lane(lane))
        if self._world.scenario.lose:
            self._world.env.process(self._lose())

    def _lane(self, index: int) -> Steps:
        world, env = self._world, self._world.env
        mine = world.logs[index :: world.scenario.lanes]
        pace = Pace.at_most(world.scenario.max_records, TIMEOUT_S)
        while mine and not world.drained():
            ranges = {log.partition: min(pace.cap, log.arrived(env.now) - log.committed) for log in mine}
            ranges = {partition: count for partition, count in ranges.items() if count > 0}
            if not ranges:
                yield env.timeout(_POLL_S)
                continue
            yield env.timeout(world.numbers.connector.cycle_s)
            began = env.now
            yield env.all_of([env.process(self._task(partition, count)) for partition, count in ranges.items()])
            pace = pace.after(max(ranges.values()), env.now - began)

    def _task(self, partition: int, count: int) -> Steps:
        """One range; Spark runs it again elsewhere when its executor is lost."""
        world, env = self._world, self._world.env
        while True:
            slot = yield self._free.get()
            if slot.lost:
                continue
            attempt = env.process(self._attempt(slot, partition, count))
            self._running[partition] = (slot, attempt)
            done = yield attempt
            del self._running[partition]
            if done:
                world.logs[partition].commit(env.now, world.logs[partition].committed + count)
                self._free.put(slot)
                return
            yield self._heard

    def _attempt(self, slot: Slot, partition: int, count: int) -> Steps:
        world, size = self._world, self._world.scenario.record_bytes
        try:
            yield world.leader(partition).work(count * world.numbers.broker_fetch.seconds(size))
            yield from transact(world, slot, partition, count, self._python, self._jvm)
        except simpy.Interrupt:
            return False
        return True

    def _lose(self) -> Steps:
        world, scenario = self._world, self._world.scenario
        yield world.env.timeout(scenario.lose_at)
        gone = set(random.Random(scenario.seed).sample(range(scenario.executors), scenario.lose))
        for slot in world.slots:
            slot.lost = slot.lost or slot.executor in gone
        for partition, (slot, attempt) in list(self._running.items()):
            if slot.lost:
                self.lost[partition] = world.env.now
                attempt.interrupt()
        yield world.env.timeout(_SILENCE_S if scenario.silent else 0.0)
        self._heard.succeed()
