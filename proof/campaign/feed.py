"""A steady trickle of orders, so that there is always something new to commit while things break."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Self

from proof.orders import orders, spoiled
from protocol.kafka.clients import Connection, KafkaException, Producer, producer

_EVERY_S = 0.05
_FIRST = 10_000_000
_BAD_EVERY = 50
_FLUSH_S = 20.0
_TIMEOUT_S = 120.0


class Feeder(threading.Thread):
    """Write ``rate`` orders a second over all partitions, one in fifty unreadable; lost ones are written anew."""

    def __init__(self, connection: Connection, topic: str, partitions: int, rate: int, seed: int) -> None:
        super().__init__(name=f"feed {topic}", daemon=True)
        self._connection, self._topic, self.partitions, self._rate = connection, topic, partitions, rate
        self._orders, self._random = orders(seed), random.Random(seed)  # noqa: S311 - dice, no secret
        self._stop_now = threading.Event()
        self._number = _FIRST

    def run(self) -> None:
        client = self._client()
        while not self._stop_now.wait(_EVERY_S):
            try:
                self._write(client)
            except KafkaException:  # an idempotent producer may be beyond repair; the orders' numbers go on
                client.purge()
                client = self._client()
            except BufferError:
                client.poll(_EVERY_S)
        client.flush(_FLUSH_S)

    def _client(self) -> Producer:
        return producer(
            self._connection,
            None,
            timeout_s=_TIMEOUT_S,
            message_max_bytes=1_000_000,
            **{"enable.idempotence": True, "linger.ms": 1},
        )

    def _write(self, client: Producer) -> None:
        for _ in range(max(1, int(self._rate * _EVERY_S))):
            made = self._orders(self._number)
            if self._number % _BAD_EVERY == 0:
                made = spoiled(made, self._number // _BAD_EVERY)
            self._number += 1
            client.produce(self._topic, made[1], made[0], self._number % self.partitions)
        client.poll(0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_now.set()
        self.join(_FLUSH_S + 1)
