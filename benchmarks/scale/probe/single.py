"""Single numbers of transactions and records, on one broker."""

from __future__ import annotations

import time
from collections.abc import Mapping

from proof.wire.running import WireProxy
from proof.wire.shape import PLAIN, Shape
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka.clients import producer
from protocol.kafka.introspect import raw_logs
from scale.numbers import STEPS, Logs, StepCost
from scale.probe.place import SMALL, Sandbox, read
from scale.probe.timed import Laps, Worker

_FAR_S = 0.01
_TRIES = 12
_ASK_S = 60.0
_BLOCK, _BLOCKS = 10_240, 6_400


def empty_transactions(
    here: Sandbox, count: int, warm_up: int, *, output_partitions: int = 1
) -> tuple[Laps, float, float]:
    """Transactions of one record: their laps; CPU seconds of all brokers and of the group coordinator for each."""
    topic = here.orders(warm_up + count, SMALL)
    worker = Worker(here.connection, topic, here.topic(output_partitions), f"{topic}.group")
    records = read(here, topic, warm_up + count).records
    worker.run(records[:warm_up], 1)  # compilers and caches
    idle = here.idle_cpu_per_s()
    began, broker, coordinator = time.monotonic(), here.broker_cpu_s(), here.coordinator_cpu_s()
    laps = worker.run(records[warm_up:], 1)
    broker = here.broker_cpu_s() - broker - idle * (time.monotonic() - began)
    return laps, max(0.0, broker) / count, (here.coordinator_cpu_s() - coordinator) / count


def steps(laps: Laps, broker_s: float, trips: Mapping[str, float]) -> dict[str, StepCost]:
    """The brokers' CPU is shared out over the steps that wait for them, by how long they wait."""
    waits = {step: laps.wall_s(step) if trips[step] else 0.0 for step in STEPS}
    whole = sum(waits.values()) or 1.0
    return {
        step: StepCost(
            1000 * laps.wall_s(step),
            1000 * laps.mean_s(step, lambda lap: lap.python_s),
            1000 * laps.mean_s(step, lambda lap: lap.native_s),
            1000 * broker_s * waits[step] / whole,
            trips[step],
        )
        for step in STEPS
    }


def trips(here: Sandbox) -> tuple[dict[str, float], dict[str, float]]:
    """
    Through the proof's wire proxy: step -> round trips in a row, and API -> requests of one transaction.

    The first from what each step takes longer when every frame takes 10 ms each way, the second counted.
    """
    topic = here.orders(3 * _TRIES, SMALL)
    records = read(here, topic, 3 * _TRIES).records
    output = here.topic()
    with WireProxy(here.cluster.bootstrap) as proxy:
        worker = Worker(proxy.connection, topic, output, "scale.trips")
        worker.run(records[:_TRIES], 1)
        proxy.timeline.clear()
        near = worker.run(records[_TRIES : 2 * _TRIES], 1)
        requests = {name: count / _TRIES for name, count in sorted(proxy.timeline.counts().items())}
        proxy.reshape(Shape(latency_s=_FAR_S))
        far = worker.run(records[2 * _TRIES :], 1)
        proxy.reshape(PLAIN)
        if proxy.failures:
            raise Refused(f"the proxy could not read a frame: {proxy.failures[0]}")
    more = {step: (far.wall_s(step) - near.wall_s(step)) / (2 * _FAR_S) for step in STEPS}
    return {step: float(max(0, round(one))) for step, one in more.items()}, requests


def logs(here: Sandbox, count: int) -> Logs:
    """What transactions add to Kafka's own logs and to the output, in bytes."""
    topic, output = here.orders(2 * count, SMALL), here.topic()
    records = read(here, topic, 2 * count).records
    worker = Worker(here.connection, topic, output, "scale.logs")
    own = ("__transaction_state", "__consumer_offsets")
    before = [here.log_bytes(name) for name in own]
    worker.run(records[:count], 1)
    state, offsets = (here.log_bytes(name) - one for name, one in zip(own, before, strict=True))
    deadline = Deadline(_ASK_S)
    with raw_logs(here.connection, deadline) as raw:
        markers = [
            (len(content), batch.records)
            for batch, content in raw.batches(output, 0, 0, 2 * count, deadline)
            if batch.control
        ]
    before_large = here.log_bytes(output)
    worker.run(records[count:], count)
    marker = sum(size for size, _ in markers) / len(markers)
    written = (here.log_bytes(output) - before_large - marker) / count
    return Logs(state / count, offsets / count, marker, sum(n for _, n in markers) / len(markers), written - SMALL)


def flush_mib_per_s(here: Sandbox) -> float:
    """One producer, one partition, records of 10 KiB: the best of three."""
    topic, value, rates = here.topic(), b"x" * _BLOCK, []
    for _ in range(3):
        client = producer(here.connection, None, timeout_s=_ASK_S, message_max_bytes=10_000_000)
        deadline, began = Deadline(_ASK_S), time.perf_counter()
        for _ in range(_BLOCKS):
            while True:
                try:
                    client.produce(topic, value, None, 0)
                    break
                except BufferError:
                    client.poll(0.01)
                    deadline.check("flush bandwidth")
        if client.flush(deadline.remaining_s()):
            raise Refused(f"{_BLOCK * _BLOCKS} bytes could not be written within {_ASK_S:g} s")
        rates.append(_BLOCK * _BLOCKS / 2**20 / (time.perf_counter() - began))
        client.close()
    return max(rates)
