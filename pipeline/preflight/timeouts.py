"""What waits for how long, who sets it, and what happens when it is over; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.pace import SHARE
from pipeline.preflight.clocks import MAX_TRANSACTION_MS, OFFSETS_RETENTION_MIN, Chain
from pipeline.settings import PipelineSettings, Reader
from pipeline.watchdog import PATIENCE

_MINUTE_MS = 60_000
_TRANSACTION = "--transaction-timeout"


@dataclass(frozen=True, slots=True)
class Timeout:
    """One of them; ``ms`` is None where it is not told, ``exceeded`` what happens when it is over."""

    name: str
    ms: int | None
    set_by: str
    exceeded: str


def explained(settings: PipelineSettings, found: Chain, retention_min: int | None) -> dict[str, Any]:
    """The chain in its order, whether it holds (null: not told), and what waits beside it."""
    links = list(_links(settings, found))
    values = [one.ms for one in links]
    known = [ms for ms in values if ms is not None]
    rising = all(low < high for low, high in itertools.pairwise(known))
    return {
        "holds": rising if known == values or not rising else None,
        "chain": [asdict(one) for one in links],
        "beside": [asdict(one) for one in _beside(settings, retention_min)],
    }


def _links(settings: PipelineSettings, found: Chain) -> Iterator[Timeout]:
    given = "request.timeout.ms" in settings.connection.properties
    by = "request.timeout.ms in --client-config" if given else "librdkafka's default; request.timeout.ms"
    yield Timeout("request", found.request_ms, by, "the request is sent again, as long as the record has time left")
    yield Timeout(
        "delivery",
        found.delivery_ms,
        f"nine tenths of {_TRANSACTION} (message.timeout.ms)",
        "the record counts as lost: the transaction is aborted, and the next attempt writes the range again",
    )
    yield Timeout(
        "transaction",
        found.transaction_ms,
        f"{_TRANSACTION} (transaction.timeout.ms)",
        "the coordinator aborts and fences it, readers go on behind it; the next attempt writes the range again",
    )
    yield Timeout(
        "brokers' maximum",
        found.broker_ms,
        f"the brokers' {MAX_TRANSACTION_MS}",
        "a longer transaction time-out is refused at the first fence (INVALID_TRANSACTION_TIMEOUT)",
    )


def _beside(settings: PipelineSettings, retention_min: int | None) -> Iterator[Timeout]:
    whole = settings.transaction_timeout_s
    yield _of("batch", whole * SHARE, f"a third of {_TRANSACTION}", "the next ranges get fewer records")
    yield _of("attempt", whole, _TRANSACTION, "it gives up, aborts, and gives its range back to the driver")
    ends = (
        "the run ends with the stacks on stderr" if settings.spark.absent else "its worker ends, Spark tries it again"
    )
    yield _of("watchdog", PATIENCE * whole, f"twice {_TRANSACTION}", f"a call of the client library has hung: {ends}")
    claims = settings.stand_by or settings.share
    if settings.reader is Reader.DIRECT and not settings.spark.absent:
        leased = settings if claims is None else settings.leased_within(claims)
        by = "--lease" if claims is None else "--lease, two heartbeat intervals at most"
        gone = "without a word from the driver a task ends its partitions; one that is silent is taken for dead"
        yield _of("lease", leased.direct.lease_s, by, gone)
    if claims is not None:
        by = "--claim-interval, the same for all drivers"
        yield _of("heartbeat", claims.interval_s, by, "nothing yet: one beat may be late")
        over = "another driver takes over, and its fence ends what this one left open"
        yield _of("take-over", 2 * claims.interval_s, "twice --claim-interval", over)
    if settings.profiles is not None:
        yield _of(
            "profiles", settings.profiles.load_timeout_s, "--profiles-timeout", "the attempt fails, and is repeated"
        )
    yield _of("patience", settings.patience_s, "--patience", "no progress for so long: the run refuses to go on")
    if not settings.follow:
        upstream = "an upstream's open transaction held the input back for so long: the draining run refuses to go on"
        yield _of("blocked patience", settings.blocked_patience_s, "--blocked-patience", upstream)
    ms = None if retention_min is None else retention_min * _MINUTE_MS
    forgotten = "a group without commits for so long is forgotten: offsets-vanished at the next run"
    yield Timeout("position", ms, f"the brokers' {OFFSETS_RETENTION_MIN}", forgotten)
    nobody = "nobody: the pipeline subscribes nowhere, so no session or poll interval can end"
    yield Timeout("session", None, nobody, "nothing; the fence keeps two runs apart")


def _of(name: str, seconds: float, set_by: str, exceeded: str) -> Timeout:
    return Timeout(name, round(seconds * 1000), set_by, exceeded)


def chain_words(told: Mapping[str, Any]) -> str:
    """The chain in one line."""
    values = [f"{one['name']} {'?' if one['ms'] is None else words(one['ms'])}" for one in told["chain"]]
    verdict = {True: "holds", False: "does NOT hold", None: "can't be told whole"}[told["holds"]]
    return f"{' < '.join(values)}: {verdict}"


def words(ms: int | None) -> str:
    """As people say it; a dash where it is not told, or never ends."""
    return "-" if ms is None else f"{ms / 1000:,g} s"
