"""Rules that match frames and act on them, and network conditions."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, TypeVar

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, UsageError
from proof.wire.codec import Details, RequestHeader, api_named

_Result = TypeVar("_Result")
_QUEUED, _LEAVE_S, _GONE_S = 1000, 5.0, 1.0


class Side(enum.StrEnum):
    """The direction of a frame: requests go to the broker, replies come from it."""

    REQUEST = "request"
    REPLY = "reply"


class Action(enum.StrEnum):
    """
    What happens to a frame.

    `HOLD` keeps it, and all later frames in the same direction, until it is released or dropped. `CUT` ends the
    client's connection and loses the frame, as a broken connection loses a reply. `DROP` loses only the frame.
    `DELAY` delays the frame and all later ones in the same direction.
    """

    HOLD = "hold"
    DROP = "drop"
    DELAY = "delay"
    CUT = "cut"


@dataclass(frozen=True)
class Rule:
    """
    A selection of frames, and an action.

    Acts on the ``nth`` matching frame, counted from 1 since the rule was added, and on the ``times`` - 1 after it (0:
    all). ``cut`` ends the client's connection as soon as the frame is held; the frame can still be released to the
    broker. A delay is ``delay_s`` seconds, plus or minus up to ``jitter_s``, and never below 0.
    """

    api: int
    action: Action = Action.HOLD
    side: Side = Side.REQUEST
    transactional_id: str | None = None
    client_id: str | None = None
    committed: bool | None = None
    nth: int = 1
    times: int = 1
    cut: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0

    def __post_init__(self) -> None:
        if self.nth < 1 or self.times < 0 or self.delay_s < 0 or self.jitter_s < 0:
            raise UsageError("a rule needs nth of at least 1, and times, delay_s and jitter_s of at least 0")
        if self.action is Action.HOLD and self.times != 1:
            raise UsageError("a rule holds one frame only; give times 1, and one rule for each frame to hold")

    def matches(self, side: Side, header: RequestHeader, asked: Details) -> bool:
        """Return whether a frame matches; a reply is matched by its request."""
        return (
            header.api == self.api
            and side is self.side
            and self.transactional_id in {None, asked.transactional_id}
            and self.client_id in {None, header.client_id}
            and self.committed in {None, asked.committed}
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Rule:
        """Parse a rule from a JSON object with the fields above, `api` by name; raise `UsageError` for unknown ones."""
        try:
            kinds = {"action": Action(given.get("action", Action.HOLD)), "side": Side(given.get("side", Side.REQUEST))}
            return cls(**{**given, **kinds, "api": api_named(str(given.get("api", "")))})
        except (ValueError, TypeError) as error:
            raise UsageError(f"rule {dict(given)}: {error}; see `python -m proof proxy --help`") from error


@dataclass(frozen=True, slots=True)
class CaughtFrame:
    connection: int
    header: RequestHeader
    details: Details


class Trap:
    """An active rule of one proxy; the methods for the experiment are thread-safe."""

    def __init__(self, rule: Rule, number: int, loop: asyncio.AbstractEventLoop, seed: int = 0) -> None:
        self.rule, self.number, self._loop = rule, number, loop
        self.seen = self.fired = 0
        self._caught: Future[CaughtFrame] = Future()
        self._answered: Future[Details] = Future()
        self._go: asyncio.Future[bool] = loop.create_future()
        self._cutter: Callable[[], None] | None = None
        self._random = random.Random(f"{seed}:{number}")  # noqa: S311 - jitter, not a secret

    # For the experiment.

    def caught(self, deadline: Deadline) -> CaughtFrame:
        """Wait for and return the first frame that this rule acts on, or raise `DeadlineExceeded`."""
        return _result(self._caught, deadline, f"waiting for a frame that matches {self.rule}")

    def answered(self, deadline: Deadline) -> Details:
        """Wait for and return the broker's reply to the frame that was held and released, or raise the same."""
        return _result(self._answered, deadline, f"waiting for the reply to the frame held by {self.rule}")

    def tell(self, caught: Callable[[CaughtFrame], None], answered: Callable[[Details], None]) -> None:
        """Register callbacks, run in the proxy's thread, for the first frame acted on and for a late frame's reply."""
        self._caught.add_done_callback(lambda done: caught(done.result()))
        self._answered.add_done_callback(lambda done: answered(done.result()))

    def cut(self) -> None:
        """End the client's side of the frame's connection; the broker's side stays until the frame is settled."""
        self._loop.call_soon_threadsafe(lambda: self._cutter and self._cutter())

    def release(self) -> None:
        """Forward the held frame on its own connection."""
        self._decide(forward=True)

    def drop(self) -> None:
        self._decide(forward=False)

    def _decide(self, *, forward: bool) -> None:
        def decide() -> None:
            if not self._go.done():
                self._go.set_result(forward)

        self._loop.call_soon_threadsafe(decide)

    # For the proxy, in its event loop.

    def takes(self, side: Side, header: RequestHeader, asked: Details) -> bool:
        """Count the frame if it matches, and return whether the rule acts on it."""
        if not self.rule.matches(side, header, asked):
            return False
        self.seen += 1
        if (past := self.seen - self.rule.nth) < 0 or (self.rule.times and past >= self.rule.times):
            return False
        self.fired += 1
        return True

    def catch(self, caught: CaughtFrame, cutter: Callable[[], None]) -> None:
        self._cutter = cutter
        if not self._caught.done():
            self._caught.set_result(caught)

    async def decision(self) -> bool:
        """Wait until the held frame is released (True) or dropped (False)."""
        return await asyncio.shield(self._go)

    def answer(self, reply: Details) -> None:
        if not self._answered.done():
            self._answered.set_result(reply)

    def delay_s(self) -> float:
        return max(0.0, self.rule.delay_s + self._random.uniform(-1, 1) * self.rule.jitter_s)


def _result(future: Future[_Result], deadline: Deadline, step: str) -> _Result:
    try:
        return future.result(max(0.001, deadline.remaining_s()))
    except FutureTimeoutError as error:
        raise DeadlineExceeded(f"{step}: no end within {deadline.budget_s:g} s") from error


@dataclass(frozen=True)
class NetworkConditions:
    """
    One-way delay of ``latency_s`` plus or minus up to ``jitter_s``; ``rate`` in bytes per second (0: unlimited).

    ``loss`` is the probability that a frame waits ``retransmit_s`` for a retransmission, which is all that an
    application sees of a lost TCP segment. Reordered segments appear as jitter. A connection's frames stay in order.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    rate: float = 0.0
    loss: float = 0.0
    retransmit_s: float = 0.2

    def __post_init__(self) -> None:
        if min(self.latency_s, self.jitter_s, self.rate, self.retransmit_s) < 0 or not 0 <= self.loss <= 1:
            raise UsageError("network conditions need times and a rate of at least 0, and a loss from 0 to 1")

    @property
    def is_plain(self) -> bool:
        return not (self.latency_s or self.jitter_s or self.rate or self.loss)

    def delay_s(self, chance: random.Random) -> float:
        """Return the delay of one frame, without its transmission time."""
        stalled = self.retransmit_s if self.loss and chance.random() < self.loss else 0.0
        return max(0.0, self.latency_s + chance.uniform(-1, 1) * self.jitter_s) + stalled


NO_DELAY = NetworkConditions()


class DelayedChannel:
    """One direction of a connection; delivers frames in order, delayed by the network conditions."""

    def __init__(self, writer: asyncio.StreamWriter, chance: random.Random) -> None:
        self._writer, self._chance = writer, chance
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
        self._sender: asyncio.Task[None] | None = None
        self._last_due = self._wire_free_at = 0.0

    async def put(self, frame: bytes, shape: NetworkConditions) -> None:
        """Send a frame, prefixed with its length, now or after its delay; discard it if the other side has left."""
        if shape.is_plain and self._queue.empty():
            await self._write(frame)
            return
        sent = asyncio.get_running_loop().time()
        if shape.rate:
            sent = self._wire_free_at = max(self._wire_free_at, sent) + len(frame) / shape.rate
        self._last_due = max(self._last_due, sent + shape.delay_s(self._chance))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send())
        await self._queue.put((self._last_due, frame))

    async def _send(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, frame = await self._queue.get()
            try:
                if (left := due - clock()) > 0:
                    await asyncio.sleep(left)
                await self._write(frame)
            finally:
                self._queue.task_done()

    async def _write(self, frame: bytes) -> None:
        if self._writer.is_closing():
            return
        self._writer.write(len(frame).to_bytes(4))
        self._writer.write(frame)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def stop(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None

    async def close(self) -> None:
        """Deliver queued frames, then close."""
        if self._sender is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._queue.join(), _LEAVE_S)
            self.stop()
        self._writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), _GONE_S)
