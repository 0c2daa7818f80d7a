"""How slow a network is: latency, jitter, rate, and stalls, for every frame in one direction of a connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass

from protocol.errors import UsageError

_QUEUED = 1000
_LEAVE_S = 5.0
_GONE_S = 1.0


@dataclass(frozen=True)
class Shape:
    """
    One way's delay in seconds, ``jitter_s`` to both sides; ``rate`` in bytes per second (0: as fast as it goes).

    ``loss`` is the probability that a frame waits for one retransmission of ``retransmit_s``: all that TCP lets an
    application see of a lost segment. Reordered segments show as jitter. Frames of a connection keep their order.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    rate: float = 0.0
    loss: float = 0.0
    retransmit_s: float = 0.2

    def __post_init__(self) -> None:
        if min(self.latency_s, self.jitter_s, self.rate, self.retransmit_s) < 0 or not 0 <= self.loss <= 1:
            raise UsageError("a network's shape needs times and a rate of at least 0, and a loss from 0 to 1")

    @property
    def is_plain(self) -> bool:
        return not (self.latency_s or self.jitter_s or self.rate or self.loss)

    def delay_s(self, chance: random.Random) -> float:
        """One frame's way, without the time that its bytes take."""
        stalled = self.retransmit_s if self.loss and chance.random() < self.loss else 0.0
        return max(0.0, self.latency_s + chance.uniform(-1, 1) * self.jitter_s) + stalled


PLAIN = Shape()


class Line:
    """One direction of a connection; what is put in comes out in order, after the time that the shape asks for."""

    def __init__(self, writer: asyncio.StreamWriter, chance: random.Random) -> None:
        self._writer, self._chance = writer, chance
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED)
        self._sender: asyncio.Task[None] | None = None
        self._last_due = self._wire_free_at = 0.0

    async def put(self, frame: bytes, shape: Shape) -> None:
        """Send a frame (its length goes in front) now or in its time; to a side that has left, nowhere."""
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
        """Lose what is on its way."""
        if self._sender is not None:
            self._sender.cancel()
            self._sender = None

    async def close(self) -> None:
        """Let what is on its way arrive, then close."""
        if self._sender is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._queue.join(), _LEAVE_S)
            self.stop()
        self._writer.close()
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), _GONE_S)
