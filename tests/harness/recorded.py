"""A recorder with a clock that the test moves, and the names of all series that it may tell."""

from __future__ import annotations

from dataclasses import dataclass, field

from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily

from brew.observability.counters import Ended, Ending
from brew.observability.health import Bounds
from brew.observability.metrics import METRICS
from brew.observability.recorder import Recorder, Subject
from brew.observability.status import PartitionState, PartitionStatus, Phase, Topics

PLACE = ("orders", 3)


def stored_names() -> dict[str, tuple[str, ...]]:
    """Return each series' name as used in PromQL -> its labels."""
    names: dict[str, tuple[str, ...]] = {}
    for name, metric in METRICS.items():
        if metric.kind is HistogramMetricFamily:
            names[f"{name}_bucket"] = (*metric.labels, "le")
            names |= dict.fromkeys((f"{name}_sum", f"{name}_count"), metric.labels)
        else:
            names[f"{name}_info" if metric.kind is InfoMetricFamily else name] = metric.labels
    return names


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class TimedRecorder:
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        subject = Subject("pipeline", "g", Topics("orders", "out", "dlq"), "localhost:1", "direct")
        self.recorder = Recorder(subject, Bounds(300, 200, 180), self.clock, lambda: self.clock.now)
        self.recorder.phase(Phase.WORKING)

    def after(self, seconds: float) -> Recorder:
        self.clock.now += seconds
        return self.recorder

    def partition(self) -> PartitionStatus:
        (partition,) = self.recorder.status().partitions
        return partition

    def state(self) -> PartitionState:
        return self.partition().state

    def end(self, ending: Ending, start: int = 0, until: int = 10, **more: object) -> None:
        self.recorder.ended(Ended(*PLACE, ending, start, until, **more))
