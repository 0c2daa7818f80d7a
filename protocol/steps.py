"""Two steps that every transaction of ours takes alike: queue a record whatever the queue says, and give up at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol.deadline import Deadline
from protocol.errors import BrewError

_ABORT_S = 5.0


class Transacting(Protocol):
    """The part of `protocol.kafka.transaction.KafkaTransaction` that is used here."""

    produce: Callable[..., None]

    def make_room(self, deadline: Deadline) -> None: ...
    def abort(self, deadline: Deadline) -> None: ...


def queue(
    kafka: Transacting,
    deadline: Deadline,
    topic: str,
    value: bytes | None,
    key: bytes | None,
    partition: int,
    timestamp: int = 0,
    headers: object = None,
) -> None:
    """
    Queue one record, waiting for room: a BufferError that is passed over is a lost record.

    ``timestamp`` in milliseconds since the epoch; 0 is now.
    """
    while True:
        try:
            kafka.produce(topic, value, key, partition, None, None, timestamp, headers)
        except BufferError:
            kafka.make_room(deadline)
        else:
            return


def abort_at_once(kafka: Transacting) -> None:
    """End the transaction if the broker lets us, so that readers need not wait; if not, the next fence does it."""
    try:
        kafka.abort(Deadline(_ABORT_S))
    except BrewError:
        return
