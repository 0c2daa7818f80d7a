"""An X-ray is what the renderers take: strips, their times, and what the journal tells; pure."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.xray.clock import Timeline
from pipeline.xray.model import Strip
from pipeline.xray.steps import Told


@dataclass(frozen=True, slots=True)
class Xray:
    """``roles`` names topics, as in `input`; ``not_told`` is what could not be asked, in sentences."""

    strips: tuple[Strip, ...]
    line: Timeline
    roles: dict[str, str]
    group: str
    bootstrap: str
    taken_ms: int
    told: tuple[Told, ...] = ()
    not_told: tuple[str, ...] = ()

    def role(self, strip: Strip) -> str:
        return self.roles.get(strip.topic, strip.topic)

    def by_partition(self) -> dict[int, list[int]]:
        """Partition -> indices of its strips, so that input and output stand above each other."""
        found: dict[int, list[int]] = {}
        for at, strip in enumerate(self.strips):
            found.setdefault(strip.partition, []).append(at)
        return dict(sorted(found.items()))
