"""What a run does around its transactions: open a partition's reader, close it, look where partitions stand."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.settings import PipelineSettings
from pipeline.survey import Surveyor
from proof.wire.running import WireProxy
from proof.wire.shape import PLAIN, Shape
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.kafka.tail import Tail
from scale.numbers import StepCost
from scale.probe.place import SMALL, Sandbox
from scale.probe.timed import Laps

_FAR_S = 0.01
_TRIES = 6
_ASK_S = 30.0
_AHEAD = 1024 * 1024
_FEW, _MANY = 4, 256


def tails(here: Sandbox, times: int) -> tuple[StepCost, StepCost]:
    """A reader from its making to its first record, and its end."""
    topic = here.orders(1, SMALL)

    def once(connection: Connection, laps: Laps) -> None:
        deadline = Deadline(_ASK_S)
        laps.start()
        tail = Tail(connection, "scale.tails", topic, 0, 0, _AHEAD)
        try:
            while tail.take(1, _AHEAD, 0.05) is None:
                deadline.check("a first record")
            laps.lap("open")
        finally:
            tail.close()
        laps.lap("close")

    laps, broker_s = _repeated(here, once, times)
    trips = _trips(here, once)
    return _cost(laps, "open", broker_s, trips["open"]), _cost(laps, "close", 0.0, trips["close"])


def surveys(here: Sandbox, times: int) -> tuple[StepCost, StepCost]:
    """A look without partitions, and what each of them adds: a line through a few and many."""
    few, many = (_survey(here, here.topic(partitions), partitions, times) for partitions in (_FEW, _MANY))
    slope = {name: max(0.0, (getattr(many, name) - getattr(few, name)) / (_MANY - _FEW)) for name in _SPENT}
    base = {name: max(0.0, getattr(few, name) - _FEW * slope[name]) for name in _SPENT}
    return StepCost(**base, trips=few.trips), StepCost(**slope, trips=0.0)


_SPENT = ("wall_ms", "python_ms", "native_ms", "broker_ms")


def _survey(here: Sandbox, topic: str, partitions: int, times: int) -> StepCost:
    def settings(connection: Connection) -> PipelineSettings:
        return PipelineSettings(connection, topic, f"{topic}.out", f"{topic}.dead", f"{topic}.group")

    surveyors: dict[str, Surveyor] = {}

    def once(connection: Connection, laps: Laps) -> None:
        where = connection.bootstrap
        surveyor = surveyors[where] = surveyors.get(where) or Surveyor(settings(connection))
        deadline = Deadline(_ASK_S)
        laps.start()
        surveyor.facts(surveyor.input_topic(deadline), range(partitions), deadline, {})
        laps.lap("open")

    try:
        laps, broker_s = _repeated(here, once, times)
        return _cost(laps, "open", broker_s, _trips(here, once)["open"])
    finally:
        for surveyor in surveyors.values():
            surveyor.close()


def _repeated(here: Sandbox, once: Callable[[Connection, Laps], None], times: int) -> tuple[Laps, float]:
    """Laps of many, behind as many that warm up, and the brokers' CPU seconds of each."""
    for _ in range(times):
        once(here.connection, Laps())
    idle, laps = here.idle_cpu_per_s(), Laps()
    began, broker = time.monotonic(), here.broker_cpu_s()
    for _ in range(times):
        once(here.connection, laps)
    broker = here.broker_cpu_s() - broker - idle * (time.monotonic() - began)
    return laps, max(0.0, broker) / times


def _trips(here: Sandbox, once: Callable[[Connection, Laps], None]) -> dict[str, float]:
    """Round trips in a row, from what it takes longer when every frame takes 10 ms each way."""
    near, far = Laps(), Laps()
    with WireProxy(here.cluster.bootstrap) as proxy:
        once(proxy.connection, Laps())
        for _ in range(_TRIES):
            once(proxy.connection, near)
        proxy.reshape(Shape(latency_s=_FAR_S))
        for _ in range(_TRIES):
            once(proxy.connection, far)
        proxy.reshape(PLAIN)
    found = {}
    for step in ("open", "close"):
        longer_s = far.wall_s(step) - near.wall_s(step) if far.laps[step] else 0.0
        found[step] = float(max(0, round(longer_s / (2 * _FAR_S))))
    return found


def _cost(laps: Laps, step: str, broker_s: float, trips: float) -> StepCost:
    python, native = (laps.mean_s(step, value) for value in (lambda lap: lap.python_s, lambda lap: lap.native_s))
    return StepCost(1000 * laps.wall_s(step), 1000 * python, 1000 * native, 1000 * broker_s, trips)
