"""What a check of a store against its topic found: counts by name, with the first examples of each; pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_EXAMPLES = 5


@dataclass
class Findings:
    """Nothing found is proven."""

    findings: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def found(self, name: str, what: str, count: int = 1) -> None:
        self.findings[name] += count
        if sum(one.startswith(f"{name}: ") for one in self.examples) < _EXAMPLES:
            self.examples.append(f"{name}: {what}")

    def judged(self, **told: Any) -> dict[str, Any]:
        """The verdict, what else is ``told``, and what was found."""
        verdict = "violated" if self.findings else "proven"
        return {"verdict": verdict, **told, "findings": dict(self.findings), "examples": self.examples}

    def lines(self, proven: str) -> list[str]:
        """Examples and counts, or what is ``proven``."""
        names = ", ".join(f"{count} {name}" for name, count in self.findings.items())
        return [*self.examples, names or f"proven: {proven}"]
