"""Fresh names, so that tests share a broker and never each other's topics."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """One test's topics and group: `it-<test>-<8 hex digits>` and a suffix."""

    stem: str

    @classmethod
    def fresh(cls, test: str) -> Names:
        word = re.sub(r"[^a-zA-Z0-9]+", "-", test.removeprefix("test_")).strip("-")[:60]
        return cls(f"it-{word}-{uuid.uuid4().hex[:8]}")

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

    def topic(self, suffix: str) -> str:
        """One more topic of this test."""
        return f"{self.stem}.{suffix}"
