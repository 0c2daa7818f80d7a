"""The application as a transformation: an order goes in, an enriched order or a rejection comes out."""

from __future__ import annotations

from dataclasses import dataclass

from brew.connection import Connection
from brew.deadline import Deadline
from brew.settings import Limits, ProfilesSettings
from brew.transformation import Prepared
from pipeline.orders import enricher


@dataclass(frozen=True, slots=True)
class OrderEnrichment:
    """Tiers come from the record key's prefix, or from ``profiles``, read to their end before each transaction."""

    limits: Limits
    profiles: ProfilesSettings | None = None

    @property
    def whole_input_first(self) -> bool:
        """The profiles that a transaction looks up in are newer than its orders."""
        return self.profiles is not None

    def ready(self, connection: Connection, group: str, timeout_s: float) -> Prepared:
        """As `Transformation` says; with profiles it waits until they have been read to their end."""
        if self.profiles is None:
            return Prepared(enricher(self.limits))
        from pipeline import profiles  # noqa: PLC0415 - most runs have none

        table = profiles.ready(self.profiles, connection, group, timeout_s)
        resolve, evidence = profiles.lookup(table)
        return Prepared(enricher(self.limits, resolve), evidence, table.malformed)

    def check(self, connection: Connection, deadline: Deadline) -> None:
        """As `Transformation` says."""
        if self.profiles is not None:
            from pipeline import profiles  # noqa: PLC0415 - the same

            profiles.check(self.profiles, connection, deadline)

    def release(self, *, loading_only: bool = False) -> None:
        """As `Transformation` says."""
        if self.profiles is not None:
            from pipeline import profiles  # noqa: PLC0415 - the same

            profiles.close_tables(loading_only=loading_only)
