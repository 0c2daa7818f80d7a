"""What simulated work waits for: processors that are shared, interpreters that are locked, queues of one."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator
from typing import Any

import simpy

from pipeline.direct.turns import LONGEST_S

Steps = Generator[simpy.Event, Any, Any]

SWITCH_S = 0.005
"""How long CPython lets a thread hold the lock while others wait (`sys.getswitchinterval`)."""
_SOON = 1e-12


class Cores:
    """
    Processors that all runnable threads share evenly: each of n runs at the speed min(1, cores / n).

    Time is kept in what one job has been given, so that an arrival changes one number and not every job.
    """

    def __init__(self, env: simpy.Environment, cores: int) -> None:
        self._env, self.cores = env, cores
        self._given = self._at = 0.0
        self._jobs: list[tuple[float, int, simpy.Event]] = []
        self._numbers = itertools.count()
        self._alarm: simpy.Event | None = None
        self._worked = 0.0

    def work(self, seconds: float) -> simpy.Event:
        """An event that happens once so many seconds of CPU have been given."""
        done = self._env.event()
        if seconds <= 0:
            return done.succeed()
        self._advance()
        heapq.heappush(self._jobs, (self._given + seconds, next(self._numbers), done))
        self._set_alarm()
        return done

    def busy_s(self) -> float:
        """CPU seconds given until now."""
        self._advance()
        return self._worked

    def _speed(self) -> float:
        return min(1.0, self.cores / len(self._jobs))

    def _advance(self) -> None:
        passed, self._at = self._env.now - self._at, self._env.now
        if self._jobs and passed > 0:
            self._given += passed * self._speed()
            self._worked += passed * min(len(self._jobs), self.cores)

    def _set_alarm(self) -> None:
        left = (self._jobs[0][0] - self._given) / self._speed()
        self._alarm = self._env.timeout(max(0.0, left))
        self._alarm.callbacks.append(self._ring)  # type: ignore[union-attr]

    def _ring(self, alarm: simpy.Event) -> None:
        if alarm is not self._alarm:
            return  # somebody came in between, and set a new one
        self._advance()
        self._given = max(self._given, self._jobs[0][0])
        while self._jobs and self._jobs[0][0] <= self._given + _SOON:
            heapq.heappop(self._jobs)[2].succeed()
        if self._jobs:
            self._set_alarm()


class Interpreter:
    """One slot's Python process: its threads take turns at the lock, ``SWITCH_S`` each while others wait."""

    def __init__(self, env: simpy.Environment, cores: Cores) -> None:
        self._cores, self._lock = cores, simpy.Resource(env, 1)
        self._env = env
        self.held_s = 0.0

    def run(self, seconds: float) -> Steps:
        left = seconds
        while left > _SOON:
            with self._lock.request() as turn:
                yield turn
                began, piece = self._env.now, min(left, SWITCH_S)
                yield self._cores.work(piece)
                self.held_s += self._env.now - began
            left -= piece


class Turns:
    """
    `pipeline.direct.turns`, simulated: a few of a process work at a time; what takes too long no longer counts.

    ``longest_s`` None: it goes on. ``change_s``: until a thread goes on that had to wait for the one before.
    """

    def __init__(
        self, env: simpy.Environment, at_once: int, longest_s: float | None = LONGEST_S, change_s: float = 0.0
    ) -> None:
        self._env, self._room, self._longest_s = env, simpy.Resource(env, at_once), longest_s
        self._change_s = change_s
        self._working = self.most = 0

    def one(self, work: Steps) -> Steps:
        """Wait for a turn, then do ``work``; returns what it returns."""
        with self._room.request() as turn:
            waits = not turn.triggered
            yield turn
            if waits and self._change_s:
                yield self._env.timeout(self._change_s)
            if self._longest_s is not None:
                late = self._env.timeout(self._longest_s)
                late.callbacks.append(lambda _: self._room.release(turn))  # type: ignore[union-attr]
            self._working += 1
            self.most = max(self.most, self._working)
            try:
                return (yield from work)
            finally:
                self._working -= 1


class Queue:
    """Work that is done one piece after another, as a coordinator's or a disk's."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env, self._one = env, simpy.Resource(env, 1)
        self.busy_s = 0.0

    def run(self, seconds: float) -> Steps:
        if seconds <= 0:
            return
        with self._one.request() as turn:
            yield turn
            yield self._env.timeout(seconds)
            self.busy_s += seconds
