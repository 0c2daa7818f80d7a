"""Whether the time-outs fit into each other, and into what one transaction has to do; and the clocks; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.pace import SHARE
from pipeline.preflight.finding import Finding, Severity
from protocol.cluster import Unknown

_MOST_SKEW_S = 1.0
_BUSY_RECORDS_PER_S = 50_000
_BUSY_BYTES_PER_S = 20_000_000
_WEEK_MIN = 7 * 24 * 60
MAX_TRANSACTION_MS = "transaction.max.timeout.ms"
OFFSETS_RETENTION_MIN = "offsets.retention.minutes"


@dataclass(frozen=True, slots=True)
class Chain:
    """How long each one waits, in ms; ``broker_ms`` is the longest transaction that the brokers allow, if they tell."""

    request_ms: int
    delivery_ms: int
    transaction_ms: int
    broker_ms: int | None


def chain(found: Chain) -> Iterator[Finding]:
    """`request < delivery < transaction < the brokers' maximum`, link by link; what is equal is warned of."""
    ok = found.request_ms < found.delivery_ms
    yield Finding(
        "request-timeout",
        f"{found.request_ms} ms",
        f"less than {found.delivery_ms} ms",
        "request.timeout.ms (--transaction-timeout sets the delivery's)",
        "a request that is lost is sent again within the transaction"
        if ok
        else "a lost request is not sent again before the record's time is over: the transaction is aborted instead",
        Severity.OK if ok else Severity.WARNING,
    )
    ok = found.delivery_ms < found.transaction_ms
    yield Finding(
        "delivery-timeout",
        f"{found.delivery_ms} ms",
        f"less than {found.transaction_ms} ms",
        "message.timeout.ms (--transaction-timeout sets it)",
        "the writer gives up before the brokers abort it, and the next attempt knows why"
        if ok
        else "the brokers abort the transaction while its records are still on their way",
        _severity(found.delivery_ms, found.transaction_ms),
    )
    yield _transaction(found)


def _transaction(found: Chain) -> Finding:
    value, setting = f"{found.transaction_ms} ms", f"--transaction-timeout, or the brokers' {MAX_TRANSACTION_MS}"
    if found.broker_ms is None:
        why = "the brokers do not tell their maximum (DescribeConfigs on the cluster); a longer one is refused at once"
        return Finding("transaction-timeout", value, "less than the brokers' maximum", setting, why, Severity.UNKNOWN)
    severity = _severity(found.transaction_ms, found.broker_ms)
    why = "a dead run holds readers back for that long, unless the next one fences it"
    if severity is Severity.WARNING:
        why = "the brokers take just that: once their maximum is lowered they refuse every transaction"
    elif severity is Severity.UNSAFE:
        why = "the brokers refuse every transaction (INVALID_TRANSACTION_TIMEOUT)"
    return Finding("transaction-timeout", value, f"less than {found.broker_ms} ms", setting, why, severity)


def _severity(ms: int, limit_ms: int) -> Severity:
    """Below is good, above fails; equal works, and has no room."""
    return Severity.OK if ms < limit_ms else Severity.WARNING if ms == limit_ms else Severity.UNSAFE


def size(records: int, transaction_bytes: int | None, transaction_ms: int) -> Finding:
    """
    Whether a full transaction fits into a third of its time-out, at a speed that a busy machine still has.

    ``transaction_bytes``: where the reader counts bytes, not records.
    """
    share_s = transaction_ms / 1000 * SHARE
    if transaction_bytes is None:
        value, need, speed = f"{records} records", round(_BUSY_RECORDS_PER_S * share_s), f"{_BUSY_RECORDS_PER_S}/s"
        setting, text = "--max-records-per-transaction", f"at most {need} records"
        ok = records <= need
    else:
        value, need, speed = f"{transaction_bytes} bytes", round(_BUSY_BYTES_PER_S * share_s), "20 MB/s"
        setting, text = "--transaction-bytes", f"at most {need} bytes"
        ok = transaction_bytes <= need
    why = f"at {speed} a full transaction takes a third of its time-out ({share_s:g} s) at most"
    if not ok:
        why = f"at {speed} a full transaction takes more than {share_s:g} s: on a slow day its time-out aborts it"
    return Finding("transaction-size", value, text, setting, why, Severity.OK if ok else Severity.WARNING)


def retention(minutes: int | None) -> Finding:
    """How long Kafka remembers a position of a group without members, as ours is."""
    value, need = "?" if minutes is None else f"{minutes} min", f"at least {_WEEK_MIN} min"
    if minutes is None:
        severity, why = Severity.UNKNOWN, "the brokers do not tell; grant DescribeConfigs on the cluster"
    elif minutes < _WEEK_MIN:
        severity = Severity.WARNING
        why = "a partition without commits for that long loses its position (offsets-vanished at the next run)"
    else:
        severity, why = Severity.OK, "a run may pause for that long and still knows where it stands"
    return Finding("offsets-retention", value, need, f"the brokers' {OFFSETS_RETENTION_MIN}", why, severity)


def skew(told: float | Unknown) -> Finding:
    """``told``: seconds that the controller's clock is ahead of this machine's, negative where it is behind."""
    name, need, setting = (
        "clock-skew",
        f"at most {_MOST_SKEW_S:g} s",
        "the clocks (NTP) of this machine and the brokers",
    )
    if isinstance(told, Unknown):
        why = f"the brokers do not tell ({told.reason}); with KRaft, Kafka 3.3 and Describe on the cluster they do"
        return Finding(name, "?", need, setting, why, Severity.UNKNOWN)
    if abs(told) > _MOST_SKEW_S:
        value = f"the controller is {abs(told):.1f} s {'ahead' if told > 0 else 'behind'}"
        why = "lag in seconds, ages of transactions and times of orders compare clocks: they are wrong by as much"
        return Finding(name, value, need, setting, why, Severity.WARNING)
    value = "within the answer's time" if told == 0 else f"{told:+.3f} s"
    return Finding(name, value, need, setting, "ages that compare both clocks can be believed", Severity.OK)
