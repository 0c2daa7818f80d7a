"""All scenarios by name: what happens around the product during an experiment, the same with a bug and without."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from mutants import direct_scenarios, rivals, single
from mutants.scene import Scene

Scenario = Callable[[Scene], None]


def _of(module: ModuleType) -> dict[str, Scenario]:
    """Return a module's own public functions; each docstring says what happens there."""
    mine = {name: act for name, act in vars(module).items() if getattr(act, "__module__", "") == module.__name__}
    return {name.replace("_", "-"): act for name, act in mine.items() if not name.startswith("_")}


SCENARIOS: dict[str, Scenario] = {**_of(single), **_of(rivals), **_of(direct_scenarios)}
