"""What the page's readers are told: parts with the number of the change that made them; one for all readers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protocol.markup import Markup


@dataclass(frozen=True, slots=True)
class Stand:
    """A reader's place: of which start and shape of the page, and up to which change it has seen."""

    boot: str
    change: int

    def __str__(self) -> str:
        return f"{self.boot}.{self.change}"

    @classmethod
    def parse(cls, text: str) -> Stand | None:
        """None where the text is no place that `str()` writes."""
        boot, _, change = text.rpartition(".")
        if not boot or not change.isascii() or not change.isdigit() or len(change) > 15:  # noqa: PLR2004 - any is too long
            return None
        return cls(boot, int(change))


@dataclass(slots=True)
class Hub:
    """
    Keeps the newest parts; readers that are slow skip what lies between.

    A page whose parts are not those of now (the program was started again, partitions came) has to load itself anew.
    """

    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    change: int = 0
    closed: bool = False
    _parts: dict[str, tuple[int, Markup]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def stand(self) -> Stand:
        return Stand(self.boot, self.change)

    def publish(self, parts: Mapping[str, Markup]) -> None:
        """Take the parts as they are now, and wake the readers where one has changed."""
        if self._parts and parts.keys() != self._parts.keys():
            self.boot, self._parts = secrets.token_hex(4), {}
        changed = [name for name, one in parts.items() if self._parts.get(name, (0, None))[1] != one]
        if not changed:
            return
        self.change += 1
        self._parts |= {name: (self.change, parts[name]) for name in changed}
        self._wake()

    def parts(self, names: Iterable[str] | None = None) -> dict[str, Markup]:
        """All of them as they are now."""
        return {name: one for name, (_, one) in self._parts.items() if names is None or name in names}

    def since(self, stand: Stand) -> dict[str, Markup] | None:
        """What changed behind this place; None where the page has to be loaded anew."""
        if stand.boot != self.boot or stand.change > self.change:
            return None
        return {name: one for name, (change, one) in self._parts.items() if change > stand.change}

    def close(self) -> None:
        """No more news: every stream ends."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, stand: Stand, patience_s: float) -> None:
        """Return once there is something behind this place, or after so many seconds."""
        if self.closed or stand != self.stand:
            return
        try:
            await asyncio.wait_for(self._news.wait(), patience_s)
        except TimeoutError:
            return
