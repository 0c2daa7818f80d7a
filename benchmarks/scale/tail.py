"""One partition's reader, simulated: fetches ahead of its transactions."""

from __future__ import annotations

import contextlib

import simpy

from pipeline.direct.tenure import IDLE_FOLLOWING_MS
from protocol.kafka.tail import IDLE_MS
from scale.log import Log
from scale.resources import Steps
from scale.transaction import call
from scale.world import Slot, World

_FETCH_BYTES = 1024 * 1024


class Tail:
    """Fetches one partition ahead of its transactions, a fetch after another, as far as ``ahead`` records."""

    def __init__(self, world: World, slot: Slot, log: Log, ahead: int) -> None:
        self._world, self._slot, self._log = world, slot, log
        self._ahead = max(1, ahead)
        self._chunk = max(1, _FETCH_BYTES // world.scenario.record_bytes)
        self.fetched = self.taken = log.committed
        self._news, self._room = world.env.event(), world.env.event()
        self._waits = False
        self._idle_s = (IDLE_FOLLOWING_MS if log.per_s else IDLE_MS) / 1000

    def run(self) -> Steps:
        world, size, env = self._world, self._world.scenario.record_bytes, self._world.env
        numbers = world.numbers
        with contextlib.suppress(simpy.Interrupt):
            yield from call(world, self._slot, world.leader(self._log.partition), numbers.tail_open)
            while True:
                while self.fetched - self.taken >= self._ahead:
                    yield self._room
                there = self._log.arrived(env.now) - self.fetched
                least = 1 if self._waits or not self._log.per_s else self._chunk
                if there < least:
                    yield from self._until(least, idle=there <= 0)
                    continue
                count = min(there, self._chunk)
                yield env.timeout(world.scenario.network_ms / 1000)
                yield world.leader(self._log.partition).work(count * numbers.broker_fetch.seconds(size))
                yield self._slot.cores.work(count * numbers.fetch.seconds(size))
                self.fetched += count
                news, self._news = self._news, env.event()
                news.succeed()

    def _until(self, count: int, *, idle: bool) -> Steps:
        """
        So many records have arrived, or somebody waits for one; ``idle``: one fetch after another is kept meanwhile.

        While a transaction runs, small fetches are put off to its end: nobody asks for them, and each is an event.
        """
        env, cost = self._world.env, self._world.numbers.idle
        at = self._log.arrives_at(self.fetched + count - 1)
        while True:
            timers = [env.timeout(max(1e-6, at - env.now))] if at < float("inf") else []
            kept = env.timeout(self._idle_s)
            yield env.any_of([*timers, self._room, *([kept] if idle else [])])
            if not (idle and kept.processed):
                return
            self._slot.cores.work(1e-6 * cost.client_us)
            self._world.leader(self._log.partition).work(1e-6 * cost.broker_us)

    def take(self, most: int) -> Steps:
        """Wait for records, then hold as many as are there; returns how many."""
        self._waits = True
        self._open_room()
        while self.fetched == self.taken:
            yield self._news
        self._waits = False
        return (yield from self.take_now(most))

    def take_now(self, most: int) -> Steps:
        """What is there, without waiting; returns how many."""
        count = min(most, self.fetched - self.taken)
        line, size = self._world.numbers.take, self._world.scenario.record_bytes
        yield from self._slot.interpreter.run(count * line.seconds(size))
        self.taken += count
        self._open_room()
        return count

    def _open_room(self) -> None:
        """Wake the fetching process: there is room, or somebody waits."""
        room, self._room = self._room, self._world.env.event()
        room.succeed()
