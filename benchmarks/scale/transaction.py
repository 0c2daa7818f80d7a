"""One simulated transaction: the six steps, between the making and the closing of its two clients."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.pieces import piece_of
from scale.numbers import STEPS, Line, StepCost
from scale.resources import Cores, Steps
from scale.world import Slot, World

_APPENDS = {"fence": 1, "produce": 2, "send-offsets": 2, "commit": 1}
"""Appends on all replicas that a step waits for: the transaction log's, the output's, the offset log's."""


def transact(
    world: World,
    slot: Slot,
    partition: int,
    first: int,
    python: Line,
    beside: Line,
    more: Callable[[], Steps] | None = None,
) -> Steps:
    """
    Write ``first`` records, and what ``more`` (a chunk's number of records; 0: nothing is there now) gives meanwhile;
    returns how many.

    ``python``: CPU of a record in the slot's interpreter; ``beside``: elsewhere on its executor, meanwhile.
    """
    numbers, scenario = world.numbers, world.scenario
    brokers, partitions = scenario.brokers - 1, scenario.partitions - 1
    # Clients connect to all brokers and learn about all partitions, and nobody waits for that.
    native_us = numbers.native_us_per_broker * brokers + numbers.native_us_per_partition * partitions
    broker_us = numbers.broker_us_per_broker * brokers + numbers.broker_us_per_partition * partitions
    slot.cores.work(1e-6 * native_us)
    world.coordinator(partition).work(1e-6 * broker_us)
    records = 0
    for step in STEPS:
        if step == "produce":
            records = yield from _produce(world, slot, partition, first, python, beside, more)
        yield from call(world, slot, world.coordinator(partition), numbers.steps[step], _APPENDS.get(step, 0))
        if step == "send-offsets":
            yield from world.group(partition).run(1e-6 * numbers.coordinator_us)
    return records


def call(world: World, slot: Slot, broker: Cores, cost: StepCost, appends: int = 0) -> Steps:
    """One call of the client: CPU of the thread that waits, then of the client's threads and the broker, then time."""
    scenario = world.scenario
    native_beside, broker_beside = cost.beside
    slot.cores.work(native_beside / 1000)
    broker.work(broker_beside / 1000)
    yield from slot.interpreter.run(cost.python_ms / 1000)
    native_ms, broker_ms, waiting_ms = cost.path
    if native_ms:
        yield slot.cores.work(native_ms / 1000)
    if broker_ms:
        yield broker.work(broker_ms / 1000)
    far = cost.trips * scenario.network_ms + appends * scenario.replication_ms
    if waiting_ms + far:
        yield world.env.timeout((waiting_ms + far) / 1000)


def _produce(
    world: World, slot: Slot, partition: int, first: int, python: Line, beside: Line, more: Callable[[], Steps] | None
) -> Steps:
    """
    Enrich and queue a piece in the interpreter, then wait until it is written, while others have the interpreter;
    returns how many.
    """
    records, count, size = 0, first, world.scenario.record_bytes
    most = piece_of(size)
    while count:
        for queued in range(0, count, most):
            piece = min(most, count - queued)
            yield from slot.producing.one(slot.interpreter.run(piece * python.seconds(size)))
            yield from _send(world, slot, partition, piece, beside)
        records += count
        count = 0 if more is None else (yield from slot.producing.one(more()))
    return records


def _send(world: World, slot: Slot, partition: int, records: int, beside: Line) -> Steps:
    """One request and its answer; followers fetch it from the leader and append it, too."""
    numbers, size = world.numbers, world.scenario.record_bytes
    append_s, fetch_s = (records * line.seconds(size) for line in (numbers.broker_append, numbers.broker_fetch))
    copies = world.scenario.copies
    for further in range(1, copies):
        world.leader(partition + further).work(append_s)
    written = records * (size + numbers.logs.record_overhead)
    yield world.env.all_of([
        slot.cores.work(records * (numbers.send.seconds(size) + beside.seconds(size))),
        world.leader(partition).work(append_s + (copies - 1) * fetch_s),
        world.env.timeout(written / (numbers.flush_mib_per_s * 2**20)),
    ])  # fmt: skip
    if far := world.scenario.network_ms + world.scenario.replication_ms:
        yield world.env.timeout(far / 1000)
