"""Latency: paced orders go in, a `read_committed` reader takes them out, and each is timed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

from beside import ScopedThread
from contenders import Contender, Setup
from course import create_run_topics, stop, verified
from figures import delays_ms, percentile
from ground import PARTITIONS, BenchmarkCluster
from memory import touch
from runs import Latency
from tree import MemoryWatch, Tree

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.clients import TopicPartition, consumer, mapped, producer
from brew.names import READ_COMMITTED
from proof.seed import orders

_WAITING = 1_000
_FIRST_S = 120.0
_ARRIVE_S = 60.0
_POLL_S = 0.1


class Pacer(ScopedThread):
    """Sends orders at a steady rate; ``sent`` is key -> moment of `produce()`."""

    def __init__(self, connection: Connection, topic: str, per_s: int, first: int) -> None:
        super().__init__()
        self._client = producer(
            connection, None, timeout_s=_ARRIVE_S, message_max_bytes=1_000_000, **{"linger.ms": 0, "acks": "all"}
        )
        self._topic, self._per_s, self._first = topic, per_s, first
        self.sent: dict[bytes, float] = {}

    def after(self) -> None:
        """Return once all that was sent is in the log."""
        with mapped("flush"):
            self._client.flush(_ARRIVE_S)

    def work(self) -> None:
        order, began = orders(0), time.monotonic()
        for number in itertools.count():
            due = began + number / self._per_s - time.monotonic()
            if due > 0:
                self._client.poll(0)
                if self._stop.wait(due):
                    return
            key, value = order(self._first + number)
            self.sent[key] = time.monotonic()
            self._client.produce(self._topic, value, key, partition=number % PARTITIONS)


class Receiver(ScopedThread):
    """Reads a topic from its start at `read_committed`; ``received`` is key -> moment."""

    def __init__(self, connection: Connection, topic: str, group: str) -> None:
        super().__init__()
        self._client = consumer(connection, group, READ_COMMITTED, **{"fetch.wait.max.ms": 20})
        self._client.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        self.received: dict[bytes, float] = {}
        self.duplicates = 0

    def after(self) -> None:
        self._client.close()

    def work(self) -> None:
        while not self._stop.is_set():
            message = self._client.poll(_POLL_S)  # one by one: `consume` would wait for a full batch
            if message is None or message.error() is not None:
                continue
            now, key = time.monotonic(), message.key() or b""
            if key in self.received:
                self.duplicates += 1
            else:
                self.received[key] = now


def follow(
    ground: BenchmarkCluster,
    contender: Contender,
    setup: Setup,
    number: int,
    *,
    per_s: int,
    warm_s: float,
    seconds: float,
) -> Latency:
    """
    Start a contender on a few waiting orders, then feed it ``per_s`` a second, ``warm_s`` of it uncounted.

    Raises:
        Refused: it ended, records were lost or came twice, or the proof found something.
    """
    source = f"bench.follow.{contender.name}.{number}.in"
    ground.seed(source, _WAITING)
    place = create_run_topics(ground, contender, source, f"follow-{number}")
    touch()
    with Receiver(ground.connection, place.output, f"{place.group}.reader") as reader:
        started = time.monotonic()
        with Tree(contender.command(place, setup, True), place.home) as tree, MemoryWatch(tree) as memory:
            _await(lambda: bool(reader.received), tree, _FIRST_S, "the first record")
            first = min(reader.received.values()) - started
            memory.sparing = True
            with Pacer(ground.connection, source, per_s, _WAITING) as pacer:
                _pause(tree, warm_s)
                since, cpu = time.monotonic(), memory.cpu_s
                _pause(tree, seconds)
                measured_s, cpu = time.monotonic() - since, memory.cpu_s - cpu
                pacer.end()
            memory.weigh()
            total = _WAITING + len(pacer.sent)
            _await(lambda: len(reader.received) >= total, tree, _ARRIVE_S, f"all of {total} records")
            stop(tree)
    if reader.duplicates:
        raise Refused(f"{contender.name}: {reader.duplicates} records came twice")
    verdict = verified(ground, contender, place, total)
    ground.drop_topics([source, place.output, place.dead_letter])
    delays = delays_ms(pacer.sent, reader.received, since)
    return Latency(
        contender.name,
        number,
        per_s,
        len(delays) / measured_s,
        measured_s,
        first,
        percentile(delays, 0.5),
        percentile(delays, 0.99),
        max(delays),
        cpu / measured_s,
        memory.peak.total / 2**20,
        verdict,
    )


def _await(true: Callable[[], bool], tree: Tree, budget_s: float, what: str) -> None:
    deadline = Deadline(budget_s)
    while not true():
        _alive(tree)
        deadline.check(what)
        time.sleep(0.01)


def _pause(tree: Tree, seconds: float) -> None:
    """Let time go by while the contender lives."""
    deadline = Deadline(seconds)
    while not deadline.expired():
        _alive(tree)
        time.sleep(min(0.1, deadline.remaining_s()))


def _alive(tree: Tree) -> None:
    if not tree.running():
        raise Refused(f"it ended while it was to follow; its last lines:\n{tree.tail()}")
