"""Fresh names, so that tests share a broker but never topics."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Self

from proof.campaign import cell


@dataclass(frozen=True, slots=True)
class Names(cell.Names):
    """Topics and group of one test: `it-<test>-<8 hex digits>` and a suffix."""

    @classmethod
    def fresh(cls, test: str, seed: int | None = None) -> Self:
        word = re.sub(r"[^a-zA-Z0-9]+", "-", test.removeprefix("test_")).strip("-")[:60]
        end = "" if seed is None else f"-s{seed}"
        return cls(f"it-{word}{end}-{uuid.uuid4().hex[:8]}")

    def topic(self, suffix: str) -> str:
        """Return the name of another topic of this test."""
        return f"{self.stem}.{suffix}"
