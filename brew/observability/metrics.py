"""The text of `/metrics`: names, labels and help of every metric, filled from a recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from brew.names import STEPS
from brew.observability.counters import BUCKETS_S, Counts, Ending, Histogram
from brew.observability.status import PartitionState, PartitionStatus, Status

CONTENT_TYPE = CONTENT_TYPE_LATEST
_TOPIC_PARTITION = ("topic", "partition")


class MetricInfo(NamedTuple):
    kind: Callable[..., Any]
    labels: tuple[str, ...]
    text: str


_BY_KIND: dict[Callable[..., Any], dict[str, tuple[tuple[str, ...], str]]] = {
    CounterMetricFamily: {
        "brew_txn_total": (
            (*_TOPIC_PARTITION, "outcome"),
            "Ended transactions by outcome: committed, aborted, fenced, indefinite, refused",
        ),
        "brew_records_total": (_TOPIC_PARTITION, "Processed input records"),
        "brew_dlq_total": (("reason",), "Rejected records"),
        "brew_duplicates_total": ((), "Repeated records that were skipped; absent if repetitions are not detected"),
        "brew_fenced_total": ((), "Transactions that a newer producer with the same transactional id fenced"),
        "brew_unanswered_total": ((), "Requests that brokers or stores did not answer"),
        "brew_recoveries_total": ((), "Commits that ended a partition's failure"),
    },
    GaugeMetricFamily: {
        "brew_txn_open": ((), "Transactions that have begun and whose end is not known yet"),
        "brew_profiles_malformed": (
            (),
            "Customer profiles that can't be parsed, so that their customers have none; absent without profiles",
        ),
        "brew_partitions_without_leader": (
            (),
            "Input partitions that have no leader and are left out; absent in programs that do not know",
        ),
        "brew_recovery_seconds": ((), "Duration of the last recovery, from the first failure or the start to a commit"),
        "brew_consumer_lag": (_TOPIC_PARTITION, "Last stable offset minus committed offset"),
        "brew_consumer_lag_seconds": (
            _TOPIC_PARTITION,
            "Age of the oldest readable record that is not processed; absent if unknown",
        ),
        "brew_consumer_position": (_TOPIC_PARTITION, "Committed offset"),
        "brew_lso_lag": (
            _TOPIC_PARTITION,
            "End offset minus last stable offset: offsets held back by open transactions",
        ),
        "brew_partition_state": ((*_TOPIC_PARTITION, "state"), "1 for a partition's current state, 0 for others"),
        "brew_polled_age_seconds": (_TOPIC_PARTITION, "Time since the partition was last polled"),
        "brew_progress_age_seconds": (
            _TOPIC_PARTITION,
            "Time since the position last advanced; absent before the first time",
        ),
        "brew_live": ((), "Whether /livez reports success, 1 or 0"),
        "brew_ready": ((), "Whether /readyz reports success, 1 or 0"),
        "brew_started": ((), "Whether /startupz reports success, 1 or 0"),
        "brew_start_time_seconds": ((), "Start time of the program since the epoch"),
    },
    HistogramMetricFamily: {
        "brew_txn_phase_seconds": (("phase",), "Duration of one step of a transaction, including failed ones"),
        "brew_txn_seconds": ((), "Duration of a whole attempt, including failed ones"),
    },
    InfoMetricFamily: {
        "brew": (
            ("application", "version", "group", "reader"),
            "Application, version, group and reader of this process",
        ),
    },
}
METRICS = {name: MetricInfo(kind, *info) for kind, infos in _BY_KIND.items() for name, info in infos.items()}
"""Name as Prometheus stores it (histograms without their suffixes, `brew` becomes `brew_info`)."""


def text(status: Status, counts: Counts) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Snapshot(status, counts))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Snapshot(Collector):
    def __init__(self, status: Status, counts: Counts) -> None:
        self._status, self._counts = status, counts

    def collect(self) -> Iterator[Metric]:
        status, counts = self._status, self._counts
        yield self._info(status)
        # Start at 0: Prometheus sees no increase if a series begins with its first count.
        ours = [(row.topic, row.partition) for row in status.partitions]
        endings = {(topic_partition, ending): 0 for topic_partition in ours for ending in Ending} | counts.endings
        yield _family("brew_txn_total", [([*_labels(p), e], n) for (p, e), n in sorted(endings.items())])
        records = dict.fromkeys(ours, 0) | counts.records
        yield _family(
            "brew_records_total", [(_labels(topic_partition), n) for topic_partition, n in sorted(records.items())]
        )
        yield _family("brew_dlq_total", [([reason], n) for reason, n in sorted(counts.dead_letters.items())])
        yield from self._unlabeled()
        # The six steps, and any other that was reported.
        steps = [*STEPS, *sorted(counts.steps.keys() - set(STEPS))]
        yield _histogram("brew_txn_phase_seconds", {step: counts.steps.get(step, Histogram()) for step in steps})
        yield _histogram("brew_txn_seconds", {"": counts.seconds})
        yield from _gauges(status.partitions)

    def _info(self, status: Status) -> Metric:
        info = InfoMetricFamily("brew", METRICS["brew"].text)
        info.add_metric([], {label: getattr(status, label) or "" for label in METRICS["brew"].labels})
        return info

    def _unlabeled(self) -> Iterator[Metric]:
        status, counts = self._status, self._counts
        fenced = sum(n for (_, ending), n in counts.endings.items() if ending is Ending.FENCED)
        values: dict[str, float | None] = {
            "brew_duplicates_total": counts.duplicates,
            "brew_profiles_malformed": counts.malformed_profiles,
            "brew_partitions_without_leader": status.totals.without_leader,
            "brew_fenced_total": fenced,
            "brew_unanswered_total": counts.unanswered,
            "brew_recoveries_total": counts.recoveries,
            "brew_recovery_seconds": counts.recovery_s,
            "brew_txn_open": sum(partition.open_s is not None for partition in status.partitions),
            "brew_live": status.live.ok,
            "brew_ready": status.ready.ok,
            "brew_started": status.started.ok,
            "brew_start_time_seconds": datetime.fromisoformat(status.started_at).timestamp(),
        }
        for name, value in values.items():
            yield _family(name, [] if value is None else [([], value)])


def _labels(topic_partition: tuple[str, int]) -> list[str]:
    return [topic_partition[0], str(topic_partition[1])]


def _gauges(partitions: Sequence[PartitionStatus]) -> Iterator[Metric]:
    values: dict[str, Callable[[PartitionStatus], float | None]] = {
        "brew_consumer_lag": lambda row: row.lag,
        "brew_consumer_lag_seconds": lambda row: row.lag_s,
        "brew_consumer_position": lambda row: row.position,
        "brew_lso_lag": lambda row: row.held_back,
        "brew_polled_age_seconds": lambda row: row.polled_age_s,
        "brew_progress_age_seconds": lambda row: row.progress_age_s,
    }
    for name, value_of in values.items():
        gauges = [(_labels((row.topic, row.partition)), value_of(row)) for row in partitions]
        yield _family(name, [(labels, value) for labels, value in gauges if value is not None])
    now = [(_labels((row.topic, row.partition)), row.state) for row in partitions]
    states = [([*labels, state], current is state) for labels, current in now for state in PartitionState]
    yield _family("brew_partition_state", states)


def _family(name: str, samples: Iterable[tuple[Sequence[str], float]]) -> Metric:
    described = METRICS[name]
    family = described.kind(name, described.text, labels=described.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    metric: Metric = family
    return metric


def _histogram(name: str, histograms: dict[str, Histogram]) -> Metric:
    described = METRICS[name]
    family = HistogramMetricFamily(name, described.text, labels=described.labels)
    for label, histogram in histograms.items():
        buckets, below = [], 0
        for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], histogram.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric([label] if described.labels else [], buckets, histogram.total)
    return family
