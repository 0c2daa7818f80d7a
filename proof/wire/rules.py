"""Which frame a rule is about and what happens to it; a trap is a rule at work, with events that can be awaited."""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any, TypeVar

from proof.wire.apis import Api
from proof.wire.frames import Details, Head
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, UsageError

_Result = TypeVar("_Result")


class Side(enum.StrEnum):
    """Requests go to the broker, replies come back."""

    REQUEST = "request"
    REPLY = "reply"


class Action(enum.StrEnum):
    """
    What happens to the frame.

    `HOLD` keeps it, and what comes behind it in the same direction, until it is released or dropped. `CUT` ends the
    client's connection and loses the frame: what a broken connection does to a reply. `DROP` loses the frame
    and nothing else. `DELAY` lets it, and what comes behind it, wait.
    """

    HOLD = "hold"
    DROP = "drop"
    DELAY = "delay"
    CUT = "cut"


@dataclass(frozen=True)
class Rule:
    """
    A choice of frames, and an action.

    The ``nth`` frame that fits, counted from 1 since the rule was given, and the ``times`` - 1 ones after it (0: all)
    are acted on. ``cut`` ends the client's connection as soon as the frame is held; the frame can still be released on
    the broker's side of that connection. Delays are in seconds, ``jitter_s`` to both sides, never below 0.
    """

    api: Api
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
            raise UsageError("a rule needs nth >= 1, times >= 0 and delays >= 0 s")
        if self.action is Action.HOLD and self.times != 1:
            raise UsageError("one rule holds one frame: give times=1, and a rule for each frame to hold")

    def fits(self, side: Side, head: Head, asked: Details) -> bool:
        """Whether a frame is meant; a reply is chosen by what its request said."""
        return (
            head.api == self.api
            and side is self.side
            and self.transactional_id in {None, asked.transactional_id}
            and self.client_id in {None, head.client_id}
            and self.committed in {None, asked.committed}
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Rule:
        """
        Read a rule from JSON: the fields above, `api` by its name.

        Raises:
            UsageError: a field is unknown or has no such value.
        """
        fields = dict(given)
        try:
            fields["api"] = Api.named(str(fields.get("api", "")))
            fields["action"] = Action(fields.get("action", Action.HOLD))
            fields["side"] = Side(fields.get("side", Side.REQUEST))
            return cls(**fields)
        except (ValueError, TypeError) as error:
            raise UsageError(f"rule {dict(given)}: {error}; see `python -m proof proxy --help`") from error


@dataclass(frozen=True, slots=True)
class Caught:
    """A frame that a rule acted on."""

    connection: int
    head: Head
    details: Details


class Trap:
    """
    A rule at work in one proxy; every method may be called from any thread.

    Waiting is done on events: `caught` for the frame, `answered` for the reply to a frame that was held and released.
    """

    def __init__(self, rule: Rule, number: int, loop: asyncio.AbstractEventLoop, seed: int = 0) -> None:
        self.rule, self.number = rule, number
        self.seen = 0
        self.fired = 0
        self._loop = loop
        self._caught: Future[Caught] = Future()
        self._answered: Future[Details] = Future()
        self._go: asyncio.Future[bool] = loop.create_future()
        self._cutter: Callable[[], None] | None = None
        self._random = random.Random(f"{seed}:{number}")  # noqa: S311 - a network's moods, no secret

    # For whoever runs the experiment.

    def caught(self, deadline: Deadline) -> Caught:
        """
        The (first) frame that this rule acted on.

        Raises:
            DeadlineExceeded: none came.
        """
        return _result(self._caught, deadline, f"waiting for a frame that fits {self.rule}")

    def answered(self, deadline: Deadline) -> Details:
        """
        What the broker replied to the frame that was held and then released.

        Raises:
            DeadlineExceeded: it did not.
        """
        return _result(self._answered, deadline, f"waiting for the reply to the frame held by {self.rule}")

    def is_caught(self) -> bool:
        return self._caught.done()

    def tell(self, caught: Callable[[Caught], None], answered: Callable[[Details], None]) -> None:
        """Call back (from the proxy's thread) for the first frame acted on, and for a late frame's reply."""
        self._caught.add_done_callback(lambda done: caught(done.result()))
        self._answered.add_done_callback(lambda done: answered(done.result()))

    def cut(self) -> None:
        """End the client's connection on which the frame came; the broker's side stays until the frame is settled."""
        self._loop.call_soon_threadsafe(lambda: self._cutter and self._cutter())

    def release(self) -> None:
        """Let the held frame go on, on the connection that it came on."""
        self._decide(forward=True)

    def drop(self) -> None:
        """Lose the held frame."""
        self._decide(forward=False)

    def _decide(self, *, forward: bool) -> None:
        def decide() -> None:
            if not self._go.done():
                self._go.set_result(forward)

        self._loop.call_soon_threadsafe(decide)

    # For the proxy, in its loop.

    def takes(self, side: Side, head: Head, asked: Details) -> bool:
        """Count a frame that fits, and tell whether it is acted on."""
        if not self.rule.fits(side, head, asked):
            return False
        self.seen += 1
        past = self.seen - self.rule.nth
        if past < 0 or (self.rule.times and past >= self.rule.times):
            return False
        self.fired += 1
        return True

    def catch(self, caught: Caught, cutter: Callable[[], None]) -> None:
        self._cutter = cutter
        if not self._caught.done():
            self._caught.set_result(caught)

    async def decision(self) -> bool:
        """True once the held frame is released, False once it is dropped."""
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
