"""How fast positions move, from looks at them; pure."""

from __future__ import annotations

from collections import deque

from pipeline.operate.judge.lag import Look, State, Told, tell
from pipeline.ui.told import Flow

LOOKING = "looking"
KEPT = 60
_WINDOW_S = 5.0
_RATE_S = 10.0
_MOMENTS = {State.STUCK, State.FENCED}


class History:
    """
    The latest looks, for what needs more than one: rates in offsets per second, and what a partition is doing.

    ``total`` is the rate of all partitions over time, the newest last.
    """

    def __init__(self) -> None:
        self._flows: deque[tuple[float, Flow, dict[int, Look]]] = deque()
        self.total: deque[float] = deque(maxlen=KEPT)
        self.of: dict[int, deque[float]] = {}
        self._began_s: float | None = None

    def add(self, at_s: float, flow: Flow) -> None:
        """One look more; one that is known already changes nothing."""
        if self._flows and self._flows[-1][0] >= at_s:
            return
        self._began_s = at_s if self._began_s is None else self._began_s
        before = self._flows[-1] if self._flows else None
        self._flows.append((at_s, flow, {one.partition: one for one in flow.looks}))
        while len(self._flows) > 2 and at_s - self._flows[0][0] > _RATE_S:  # noqa: PLR2004 - two looks make a rate
            self._flows.popleft()
        if before is not None:
            self._trace(before, at_s, flow)

    def _trace(self, before: tuple[float, Flow, dict[int, Look]], at_s: float, flow: Flow) -> None:
        whole = 0.0
        for look in flow.looks:
            known = before[2].get(look.partition, look)
            rate = max(0, look.position - known.position) / (at_s - before[0])
            self.of.setdefault(look.partition, deque(maxlen=KEPT)).append(rate)
            whole += rate
        self.total.append(whole)

    def rate(self, partition: int) -> float | None:
        """Offsets per second over the last ten seconds; None before the second look."""
        found = [(at, looks[partition].position) for at, _, looks in self._flows if partition in looks]
        if len(found) <= 1:
            return None
        (first_s, first), (last_s, last) = found[0], found[-1]
        return max(0, last - first) / (last_s - first_s)

    def told(self, partition: int) -> tuple[str, str]:
        """State and reason, against a look of some seconds ago, so that a pause between two commits is none."""
        if not self._flows or self._began_s is None:
            return LOOKING, "not looked at yet"
        at_s, flow, looks = self._flows[-1]
        now = looks[partition]
        older = [known[partition] for at, _, known in self._flows if at_s - at <= _WINDOW_S and partition in known]
        found: Told = tell(older[0], now, flow.now_ms)
        outside = now.committed is not None and not now.log.first <= now.committed.offset <= now.log.end
        if found.state in _MOMENTS and not outside and at_s - self._began_s < _WINDOW_S:
            return LOOKING, f"nothing has moved yet; {_WINDOW_S:g} s of looking tell whether it is stuck"
        return found.state.value, found.why
