"""All mutants by name."""

from __future__ import annotations

from mutants import direct, driver, harmless, offsets, records, steps
from mutants.mutant import Mutant, by_name

MUTANTS: dict[str, Mutant] = {
    **by_name(steps),
    **by_name(offsets),
    **by_name(records),
    **by_name(driver),
    **by_name(direct),
}
HARMLESS: dict[str, Mutant] = by_name(harmless)
EVERY: dict[str, Mutant] = {**MUTANTS, **HARMLESS}
