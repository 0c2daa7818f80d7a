"""The means of a scenario: topics of its own, the product with one bug or none, and disturbances."""

from __future__ import annotations

import functools
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from harness.pipeline import DrainView, Stage, until

from brew.connection import Connection
from brew.errors import BrewError, Refused
from brew.kafka.clients import producer
from brew.kafka.transaction import KafkaTransaction
from brew.outcome import Outcome
from mutants.mutant import Changes, Method, Mutant
from proof.seed import orders, spoiled

_MOST_CYCLES = 10
# Some of the bugs are in the reading code of the connector's stand-in; scenarios of the other reader override this.
_OPTIONS = ("--transaction-timeout", "30", "--patience", "20", "--poll-interval", "0.01")
_BYTES = 1_000_000


class View(DrainView):
    """Stops the run after a number of cycles."""

    def __init__(self, stop: threading.Event, cycles: int) -> None:
        super().__init__()
        self._stop, self._left = stop, cycles

    def cycle(self, lane: int, outcomes: list[Outcome], seconds: float) -> None:
        super().cycle(lane, outcomes, seconds)
        self._left -= 1
        if self._left <= 0:
            self._stop.set()


@functools.cache
def _writer(bootstrap: str) -> Producer:
    """Cached and without producer id, because the first one takes librdkafka half a second."""
    return producer(
        Connection(bootstrap), None, timeout_s=20, message_max_bytes=_BYTES, **{"enable.idempotence": False}
    )


@dataclass
class Scene:
    """
    One experiment. A scenario calls `mutate` after the set-up; `drain` is a run of the pipeline.

    ``signs``: reports of a run that must not occur in this scenario; ``fired``: for each disturbance, whether it took
    place.
    """

    stage: Stage
    change: Changes
    mutant: Mutant | None
    journals: Path
    signs: list[str] = field(default_factory=list)
    fired: list[bool] = field(default_factory=list)
    partitions: int = 0
    _number: int = 0

    def mutate(self) -> None:
        if self.mutant is not None:
            self.mutant.change(self.change)

    # The input.

    def create(self, partitions: int, orders_first: int = 0, *, bad_every: int = 0) -> None:
        """Create the input, with orders in it."""
        self.partitions = partitions
        self.stage.create(partitions)
        self.orders(orders_first, bad_every=bad_every)

    def orders(self, count: int, *, bad_every: int = 0, headers: Any = None) -> None:
        """Write orders to the partitions in turn, one in ``bad_every`` unreadable."""
        writer, order = _writer(self.stage.broker.bootstrap), orders(0)
        for number in range(self._number, self._number + count):
            record = order(number)
            if bad_every and number % bad_every == 1:
                record = spoiled(record, number // bad_every)
            writer.produce(self.stage.names.input, record[1], record[0], number % self.partitions, headers=headers)
        self._number += count
        assert writer.flush(20) == 0

    def aborted(self, count: int) -> None:
        """Write orders in an aborted transaction over all partitions, invisible to readers."""
        txn_id = f"{self.stage.names.stem}-{uuid.uuid4().hex[:8]}"
        writer = producer(self.stage.connection, txn_id, timeout_s=20, message_max_bytes=_BYTES)
        writer.init_transactions(20)
        writer.begin_transaction()
        for number in range(count):
            key, value = orders(0, "aborted")(number)
            writer.produce(self.stage.names.input, value, key, number % self.partitions)
        assert writer.flush(20) == 0
        writer.abort_transaction(20)

    def forget(self) -> None:
        """Delete the group, as the retention of offsets does."""
        for future in self.stage.admin.delete_consumer_groups([self.stage.names.group]).values():
            future.result(20)
        until(lambda: set(self.stage.committed().values()) == {None}, "the group's end")

    # The product.

    def drain(self, *options: str, cycles: int | None = None) -> DrainView:
        """
        Drain in this process; ``cycles`` ends it early; without it, a run of ten cycles is stalled.

        Raises:
            Refused: the run refused.
        """
        stop = threading.Event()
        view, reader = View(stop, cycles or _MOST_CYCLES), ("--reader", os.environ.get("READER", "connector"))
        self.stage.drain_locally("--journal", str(self.journals), *reader, *_OPTIONS, *options, view=view, stop=stop)
        if len(view.outcomes) >= _MOST_CYCLES and cycles is None and stop.is_set():
            self.signs.append(f"stalled: not drained after {_MOST_CYCLES} cycles")
        return view

    def drain_or_restore(self, refusal: str) -> None:
        """Drain; if the run refuses with this name, follow its instructions."""
        try:
            self.drain()
        except Refused as error:
            if not str(error).startswith(refusal):
                raise
            self.drain("--on-missing-position", "restore")

    # Disturbances.

    def once(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[[], object] = bool,
        after: Callable[[], object] = bool,
        when: Callable[..., bool] = lambda *_: True,
    ) -> None:
        """Act before or after the first call of a method whose arguments ``when`` accepts."""
        self.fired.append(False)
        index, lock = len(self.fired) - 1, threading.Lock()

        def call(old: Method, *arguments: Any) -> Any:
            with lock:
                first = when(*arguments) and not self.fired[index]
                self.fired[index] |= first
            if first:
                before()
            result = old(*arguments)
            if first:
                after()
            return result

        self.change.wrap(owner, name, call)

    def fail_once(self, step: str, error: BrewError, *, applied: bool = False) -> None:
        """Let the first call of this client-library step raise, before or after the broker has acted."""

        def fail() -> None:
            raise error

        moment = {"after" if applied else "before": fail}
        self.once(KafkaTransaction, "_call", when=lambda _, called, *_rest: called == step, **moment)
