"""What all receivers do alike: positions in Kafka, stored after the effect, so a crash redelivers and never skips."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from downstream.consume.crash import Crash
from downstream.consume.handler import Lease, Seat, Slice
from downstream.consume.position import start
from downstream.receive.background import Background
from downstream.receive.message import BAD_QUANTITY, Identify, Message, messages
from protocol.deadline import Deadline

_TOLD = 5


@dataclass
class Received:
    """
    What this process has been given and what it has done: ``repeated`` messages were known already.

    ``rejected`` ones give no points; one that is delivered again counts again.
    """

    messages: int = 0
    effects: int = 0
    repeated: int = 0
    rejected: int = 0


@dataclass(frozen=True)
class Ground:
    """
    What a receiver is told: who it is, what makes an id, whether to read all again, and whether to die.

    ``tell`` hears what weakens the promise.
    """

    group: str
    topic: str
    identify: Identify
    again: bool = False
    crash: Crash = field(default_factory=Crash)
    tell: Callable[[str], None] = lambda _text: None


class Receiver:
    """A handler whose subclass claims messages and brings about their effects."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._begun: set[int] = set()
        self._ready = False
        self.received = Received()
        self.beside: list[Background] = []
        """Threads that work for this receiver, once its store is ready; what ends one ends the loop."""
        self.skipped: Callable[[int], None] = lambda _records: None
        """Hears how many records of a batch were known already."""
        self.rejected: Callable[[str, int], None] = lambda _reason, _records: None
        """Hears how many records were refused, and why in a word."""

    def prepare(self) -> None:
        """Look at the store, and make what is missing there. Raises `Later` to be asked again: it is away."""

    def claim(self, found: Sequence[Message], lease: Lease) -> int:
        """Bring about the effect of each message that is new; return of how many. Raises `Later` to be asked again."""
        raise NotImplementedError

    def assigned(self, seats: Sequence[Seat], deadline: Deadline) -> Mapping[int, int]:
        deadline.check("taking partitions over")
        self._get_ready()
        return {seat.partition: self._start(seat) for seat in seats}

    def _get_ready(self) -> None:
        if self._ready:
            return
        self.prepare()
        for one in self.beside:
            one.start()
        self._ready = True

    def _start(self, seat: Seat) -> int:
        if self.ground.again and seat.partition not in self._begun:
            self._begun.add(seat.partition)
            return seat.first
        return start(seat)

    def handle(self, slices: Sequence[Slice], lease: Lease) -> None:
        for one in slices:
            lease.check(one.partition)
        records = [record for one in slices for record in one.records]
        found = messages(self.ground.topic, records, self.ground.identify)
        effects = self.claim(found, lease)
        self.received.messages += len(records)
        self.received.effects += effects
        self.received.repeated += len(records) - effects
        self.skipped(len(records) - effects)
        self._refuse(found)
        lease.report({one.partition: one.until for one in slices})

    def _refuse(self, found: Sequence[Message]) -> None:
        """Count the messages that give no points, and tell the first ones."""
        refused = [one for one in found if one.refused]
        for one in refused[: max(0, _TOLD - self.received.rejected)]:
            self.ground.tell(f"message {one.message_id} gives no points: {one.refused}")
        self.received.rejected += len(refused)
        if refused:
            self.rejected(BAD_QUANTITY, len(refused))

    def tick(self, lease: Lease) -> None:  # noqa: ARG002 - the handler's shape
        self._get_ready()  # also who is given no partition has work beside
        for one in self.beside:
            one.check()

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Nothing is held between two batches."""

    def lost(self, partitions: Collection[int]) -> None:
        """The next owner is given again what we had not stored; the claims tell it what is done."""

    def close(self, deadline: Deadline) -> None:
        """Give the store's connection back."""
