"""Enrichment of orders (`pipeline.enrichment`) as a `Transformation` that a run loads by name; opens the profiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brew.connection import Connection
from brew.deadline import Deadline
from brew.orders import Reason
from brew.settings import Limits, ProfilesSettings
from brew.transformation import Prepared
from pipeline import profiles
from pipeline.enrichment import enricher

ORDERS = "pipeline.transformation:OrderEnrichment"
"""The setting that names this transformation."""
EXAMPLE = (
    '{"order_id": "o-17", "customer_id": "c-17", "item": "espresso", "quantity": 2, "total_cents": 700, '
    '"store": "s-1", "created_at": "2026-01-01T00:00:00Z"}'
)
_LACK = {
    Reason.NO_VALUE: "have no value (tombstones)",
    Reason.NOT_JSON: "are not JSON",
    Reason.NOT_AN_OBJECT: "are JSON, but no object",
    Reason.NO_CUSTOMER_ID: "have no customer_id",
    Reason.TOO_LARGE: "are larger than --max-record-bytes",
    Reason.TOO_DEEP: "are nested deeper than --max-record-depth",
}


@dataclass(frozen=True, slots=True)
class OrderEnrichment:
    """Tiers come from the record key's prefix, or from ``profiles``, read to their end before each transaction."""

    limits: Limits
    profiles: ProfilesSettings | None = None

    @property
    def whole_input_first(self) -> bool:
        """True with profiles, so that they are newer than the orders that look them up."""
        return self.profiles is not None

    def ready(self, connection: Connection, group: str, timeout_s: float) -> Prepared:
        """Prepare as `Transformation` describes; with profiles, wait until they have been read to their end."""
        if self.profiles is None:
            return Prepared(enricher(self.limits))
        table = profiles.ready(self.profiles, connection, group, timeout_s)
        resolve, evidence = profiles.lookup(table)
        return Prepared(enricher(self.limits, resolve), evidence, table.malformed)

    def check(self, connection: Connection, deadline: Deadline) -> None:
        if self.profiles is not None:
            profiles.check(self.profiles, connection, deadline)

    @property
    def reasons(self) -> Sequence[str]:
        return tuple(Reason)

    def advice(self, reason: str) -> str:
        """Return what the orders lack, and an example."""
        return f"they {_LACK[Reason(reason)]}; an order looks like {EXAMPLE} (customer_id is what it must have)"

    def release(self, *, loading_only: bool = False) -> None:
        if self.profiles is not None:
            profiles.close_tables(loading_only=loading_only)
