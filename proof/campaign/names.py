"""Names that nothing has used before: topics and group of one cell."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Names:
    """A cell's topics and group, never used before."""

    stem: str

    @classmethod
    def fresh(cls, cell: str, seed: int) -> Self:
        return cls(f"cell-{cell}-s{seed}-{uuid.uuid4().hex[:6]}")

    @property
    def input(self) -> str:
        return f"{self.stem}.in"

    @property
    def output(self) -> str:
        return f"{self.stem}.out"

    @property
    def dead_letter(self) -> str:
        return f"{self.stem}.dlq"

    @property
    def group(self) -> str:
        return f"{self.stem}.group"

    def topics(self) -> list[str]:
        return [self.input, self.output, self.dead_letter]

    def options(self) -> list[str]:
        """The same words for the pipeline and for the checker."""
        named = [("--input", self.input), ("--output", self.output), ("--dead-letter", self.dead_letter)]
        return [word for pair in [*named, ("--group", self.group)] for word in pair]
