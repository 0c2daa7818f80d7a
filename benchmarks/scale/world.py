"""The simulated cluster: slots on executors, brokers, coordinators, and the logs of all input partitions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import simpy

from pipeline.direct.turns import READING
from pipeline.pace import Pace, Paces
from scale.log import Log
from scale.numbers import Numbers
from scale.resources import Cores, Interpreter, Queue, Turns
from scale.scenario import Scenario

ENDLESS = 10**12
TIMEOUT_S = 60.0
TRANSACTION_PARTITIONS = 50
"""Kafka's default of `transaction.state.log.num.partitions`: they spread the coordinators' work."""


@dataclass(slots=True)
class Slot:
    """One task slot: a Python process on an executor's processors; ``working`` are the partitions that it works on."""

    number: int
    executor: int
    cores: Cores
    interpreter: Interpreter
    turns: Turns
    producing: Turns
    reading: Turns
    paces: Paces
    working: set[simpy.Process] = field(default_factory=set)
    lost: bool = False


class World:
    """Everything that simulated processes share."""

    def __init__(self, scenario: Scenario, numbers: Numbers) -> None:
        env = self.env = simpy.Environment()
        self.scenario, self.numbers = scenario, numbers
        dice = random.Random(scenario.seed)
        if scenario.one_machine:
            machine = Cores(env, scenario.cores)
            self.hosts = [machine] * scenario.executors
            self.brokers = [machine] * scenario.brokers
        else:
            self.hosts = [Cores(env, scenario.cores) for _ in range(scenario.executors)]
            self.brokers = [Cores(env, scenario.broker_cores) for _ in range(scenario.brokers)]
        self.slots = [
            self._slot(number, executor, self.hosts[executor]) for number, executor in enumerate(scenario.executor_of)
        ]
        # Without Spark the driver's threads and the holder's share one interpreter.
        self.driver = self.slots[0] if scenario.without_spark else self._slot(-1, -1, Cores(env, scenario.cores))
        self.groups = [Queue(env) for _ in range(scenario.groups)]
        backlog = scenario.backlog or (0 if scenario.rate else ENDLESS)
        per_s = scenario.rate / scenario.partitions
        self.logs = [Log(p, backlog, per_s, dice.random()) for p in range(scenario.partitions)]
        self._coordinators = [dice.randrange(TRANSACTION_PARTITIONS) for _ in self.logs]

    def _slot(self, number: int, executor: int, cores: Cores) -> Slot:
        scenario, change_s = self.scenario, 1e-6 * self.numbers.change_us
        turns = [
            Turns(self.env, one or scenario.partitions, change_s=change_s)
            for one in (scenario.turns, scenario.producing)
        ]
        reading = Turns(self.env, READING, None)
        paces = Paces(Pace.at_most(scenario.most_records, TIMEOUT_S))
        return Slot(number, executor, cores, Interpreter(self.env, cores), *turns, reading, paces)

    def leader(self, partition: int) -> Cores:
        """The broker that leads the partition's input and output."""
        return self.brokers[partition % len(self.brokers)]

    def coordinator(self, partition: int) -> Cores:
        """The broker that coordinates its transactions."""
        return self.brokers[self._coordinators[partition] % len(self.brokers)]

    @property
    def group_broker(self) -> Cores:
        """Who answers a survey."""
        return self.brokers[0]

    def group(self, partition: int) -> Queue:
        """The coordinator of its group: one partition of `__consumer_offsets`, one event after another."""
        return self.groups[partition % len(self.groups)]

    def drained(self) -> bool:
        return all(log.committed >= log.backlog and not log.per_s for log in self.logs)
