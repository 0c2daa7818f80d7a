"""The chain of timeouts, each explained, and the clock skew; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from brew.cluster import Unknown
from brew.preflight import Finding, Severity
from brew.settings import PipelineSettings, Reader
from brew.transaction_sizing import TIMEOUT_SHARE
from brew.watchdog import MAX_TIMEOUTS

_MOST_SKEW_S = 1.0
_BUSY_RECORDS_PER_S = 50_000
_BUSY_BYTES_PER_S = 20_000_000
_WEEK_MIN = 7 * 24 * 60
MAX_TRANSACTION_MS = "transaction.max.timeout.ms"
OFFSETS_RETENTION_MIN = "offsets.retention.minutes"


@dataclass(frozen=True, slots=True)
class TimeoutChain:
    """The timeouts in ms; ``broker_ms`` is the brokers' maximum transaction timeout, if they report it."""

    request_ms: int
    delivery_ms: int
    transaction_ms: int
    broker_ms: int | None


def check_chain(chain: TimeoutChain) -> Iterator[Finding]:
    """Check `request < delivery < transaction < the brokers' maximum`, link by link; equal values give a warning."""
    value, need = f"{chain.request_ms} ms", f"less than {chain.delivery_ms} ms"
    setting = "--transaction-timeout, which sets the delivery timeout"
    severity, why = Severity.OK, "a lost request is sent again within the transaction"
    if chain.request_ms >= chain.delivery_ms:
        severity = Severity.WARNING
        why = "a lost request is not sent again before the delivery timeout: the transaction is aborted instead"
    yield Finding("request-timeout", value, need, setting, why, severity)
    value, need = f"{chain.delivery_ms} ms", f"less than {chain.transaction_ms} ms"
    severity = _severity(chain.delivery_ms, chain.transaction_ms)
    why = "the producer gives up before the brokers abort its transaction"
    if severity is not Severity.OK:
        why = "the brokers abort the transaction while its records are still being sent"
    setting = "message.timeout.ms (--transaction-timeout sets it)"
    yield Finding("delivery-timeout", value, need, setting, why, severity)
    yield _transaction(chain)


def _transaction(chain: TimeoutChain) -> Finding:
    value, setting = f"{chain.transaction_ms} ms", f"--transaction-timeout, or the brokers' {MAX_TRANSACTION_MS}"
    if chain.broker_ms is None:
        why = "the brokers did not report their maximum (grant DescribeConfigs on the cluster), and refuse a longer one"
        return Finding("transaction-timeout", value, "less than the brokers' maximum", setting, why, Severity.UNKNOWN)
    severity = _severity(chain.transaction_ms, chain.broker_ms)
    why = "a crashed run holds back readers for that long, unless another one fences it"
    if severity is Severity.WARNING:
        why = "it is equal to the maximum: if that is lowered, the brokers refuse every transaction"
    elif severity is Severity.UNSAFE:
        why = "the brokers refuse every transaction (INVALID_TRANSACTION_TIMEOUT)"
    return Finding("transaction-timeout", value, f"less than {chain.broker_ms} ms", setting, why, severity)


def _severity(ms: int, limit_ms: int) -> Severity:
    """Return OK below the limit and unsafe above; equal values work without any margin, a warning."""
    return Severity.OK if ms < limit_ms else Severity.WARNING if ms == limit_ms else Severity.UNSAFE


def size(records: int, transaction_bytes: int | None, transaction_ms: int) -> Finding:
    """Check that a full transaction (``transaction_bytes``, if bytes are counted) fits into a third of its timeout."""
    share_s = transaction_ms / 1000 * TIMEOUT_SHARE
    if transaction_bytes is None:
        value, need, speed = f"{records} records", round(_BUSY_RECORDS_PER_S * share_s), f"{_BUSY_RECORDS_PER_S}/s"
        setting, text = "--max-records-per-transaction", f"at most {need} records"
        ok = records <= need
    else:
        value, need, speed = f"{transaction_bytes} bytes", round(_BUSY_BYTES_PER_S * share_s), "20 MB/s"
        setting, text = "--transaction-bytes", f"at most {need} bytes"
        ok = transaction_bytes <= need
    severity, how_much, then = (
        (Severity.OK, "at most", "") if ok else (Severity.WARNING, "more than", ", and may be aborted")
    )
    why = f"at {speed} a full transaction takes {how_much} a third of its timeout ({share_s:g} s){then}"
    return Finding("transaction-size", value, text, setting, why, severity)


def retention(minutes: int | None) -> Finding:
    """Check how long Kafka keeps the position of a group without members, such as ours."""
    value, need = "?" if minutes is None else f"{minutes} min", f"at least {_WEEK_MIN} min"
    if minutes is None:
        severity, why = Severity.UNKNOWN, "the brokers did not report it; grant DescribeConfigs on the cluster"
    elif minutes < _WEEK_MIN:
        severity = Severity.WARNING
        why = "a partition without commits for that long loses its committed offset (offsets-vanished at the next run)"
    else:
        severity, why = Severity.OK, "a run may pause for that long without losing its committed offsets"
    return Finding("offsets-retention", value, need, f"the brokers' {OFFSETS_RETENTION_MIN}", why, severity)


def skew(ahead_s: float | Unknown) -> Finding:
    """Check the clocks; ``ahead_s``: seconds by which the controller's is ahead of ours, negative if behind."""
    name, need = "clock-skew", f"at most {_MOST_SKEW_S:g} s"
    setting = "the clocks (NTP) of this machine and the brokers"
    if isinstance(ahead_s, Unknown):
        why = f"the brokers did not report it ({ahead_s.reason}); it needs KRaft, Kafka 3.3 and Describe on the cluster"
        return Finding(name, "?", need, setting, why, Severity.UNKNOWN)
    if abs(ahead_s) > _MOST_SKEW_S:
        value = f"the controller is {abs(ahead_s):.1f} s {'ahead' if ahead_s > 0 else 'behind'}"
        why = "lag in seconds, ages of transactions and times of orders are wrong by as much"
        return Finding(name, value, need, setting, why, Severity.WARNING)
    value = "less than the request's duration" if ahead_s == 0 else f"{ahead_s:+.3f} s"
    return Finding(name, value, need, setting, "ages that compare both clocks are reliable", Severity.OK)


_MINUTE_MS = 60_000
_TRANSACTION = "--transaction-timeout"


def explained(settings: PipelineSettings, chain: TimeoutChain, retention_min: int | None) -> dict[str, Any]:
    """Return the chain in order, whether it holds (null: unknown), and the other timeouts."""
    links = list(_links(chain))
    values = [link["ms"] for link in links]
    known = [ms for ms in values if ms is not None]
    rising = all(low < high for low, high in itertools.pairwise(known))
    return {
        "holds": rising if known == values or not rising else None,
        "chain": links,
        "beside": list(_beside(settings, retention_min)),
    }


def _links(chain: TimeoutChain) -> Iterator[dict[str, Any]]:
    by = "librdkafka's default for request.timeout.ms"
    yield _timeout("request", chain.request_ms, by, "the request is sent again, within the delivery timeout")
    again = (
        "the record counts as not delivered: the transaction is aborted, and the next attempt writes the range again"
    )
    yield _timeout("delivery", chain.delivery_ms, f"nine tenths of {_TRANSACTION} (message.timeout.ms)", again)
    fenced = "the coordinator aborts and fences it, and readers continue; the next attempt writes the range again"
    yield _timeout("transaction", chain.transaction_ms, f"{_TRANSACTION} (transaction.timeout.ms)", fenced)
    refused = "a longer transaction timeout is refused at the first fence (INVALID_TRANSACTION_TIMEOUT)"
    yield _timeout("brokers' maximum", chain.broker_ms, f"the brokers' {MAX_TRANSACTION_MS}", refused)


def _beside(settings: PipelineSettings, retention_min: int | None) -> Iterator[dict[str, Any]]:
    whole = settings.transaction_timeout_s
    yield _of("batch", whole * TIMEOUT_SHARE, f"a third of {_TRANSACTION}", "the next ranges get fewer records")
    yield _of("attempt", whole, _TRANSACTION, "it aborts, and returns its range to the driver")
    ends = "its worker ends, and Spark retries the task"
    if settings.spark.absent:
        ends = "the run ends, with stack traces on stderr"
    hung = f"a call of the client library has hung: {ends}"
    yield _of("watchdog", MAX_TIMEOUTS * whole, f"twice {_TRANSACTION}", hung)
    claims = settings.stand_by or settings.share
    if settings.reader is Reader.DIRECT and not settings.spark.absent:
        leased = settings if claims is None else settings.leased_within(claims)
        by = "--lease" if claims is None else "--lease, at most two heartbeat intervals"
        gone = "a task that hears nothing from the driver stops its partitions; one that is not heard counts as dead"
        yield _of("lease", leased.direct.lease_s, by, gone)
    if claims is not None:
        by = "--claim-interval, the same for all drivers"
        yield _of("heartbeat", claims.interval_s, by, "nothing yet: one heartbeat may be late")
        over = "another driver takes over, and its fence aborts the open transactions"
        yield _of("take-over", 2 * claims.interval_s, "twice --claim-interval", over)
    if settings.profiles is not None:
        load_s = settings.profiles.load_timeout_s
        yield _of("profiles", load_s, "--profiles-timeout", "the attempt fails, and is repeated")
    failed = "attempts failed without progress: the run stops with exit code 3"
    yield _of("patience", settings.patience_s, "--patience", failed)
    if not settings.follow:
        upstream = "an open upstream transaction held back the input: the run stops with exit code 3"
        yield _of("blocked patience", settings.blocked_patience_s, "--blocked-patience", upstream)
    ms = None if retention_min is None else retention_min * _MINUTE_MS
    forgotten = "without a commit, Kafka deletes the committed offsets: offsets-vanished at the next run"
    yield _timeout("position", ms, f"the brokers' {OFFSETS_RETENTION_MIN}", forgotten)
    nobody = "nothing: the pipeline does not subscribe, so it has no session and no poll interval"
    yield _timeout("session", None, nobody, "nothing; the fence keeps two runs apart")


def _timeout(name: str, ms: int | None, set_by: str, exceeded: str) -> dict[str, Any]:
    """Return one timeout as JSON; ``ms`` is None if unknown, ``exceeded`` is what happens when it expires."""
    return {"name": name, "ms": ms, "set_by": set_by, "exceeded": exceeded}


def _of(name: str, seconds: float, set_by: str, exceeded: str) -> dict[str, Any]:
    return _timeout(name, round(seconds * 1000), set_by, exceeded)


def chain_text(chain: Mapping[str, Any]) -> str:
    values = [f"{link['name']} {'?' if link['ms'] is None else duration_text(link['ms'])}" for link in chain["chain"]]
    verdict = {True: "holds", False: "does NOT hold", None: "unknown, a value is missing"}[chain["holds"]]
    return f"{' < '.join(values)}: {verdict}"


def duration_text(ms: int | None) -> str:
    """Format seconds, with all digits; a dash if the value is unknown or infinite."""
    return "-" if ms is None else f"{ms // 1000:,}{f'.{ms % 1000:03}'.rstrip('0').rstrip('.')} s"
