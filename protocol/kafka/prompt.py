"""Two ways not to wait for librdkafka's producers, which look for a broker every half second only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from protocol.deadline import Deadline
from protocol.kafka.clients import mapped
from protocol.retry import again

_CONNECT_S = 1.0
_FIRST_S = 0.01
_MOST_S = 3.0
_GROWTH = 1.25
PAUSE_S = 0.001
"""Between two calls of `fencing`."""


def connected(client: Producer, topic: str) -> None:
    """
    Have an idempotent producer connect before its first record, which mostly is out after 10 ms then, not 515.

    Where no broker answers it returns after a second; the first record waits then, and tells.
    """
    with contextlib.suppress(KafkaException):
        client.list_topics(topic, timeout=_CONNECT_S)


def fencing(client: Producer) -> Callable[[float], None]:
    """
    `init_transactions` with a time-out in seconds, to be called again and again until it does not raise.

    Where a connection is not up yet, or the transaction before is still being completed, librdkafka looks again after
    500 ms; called again, it looks at once (librdkafka 2.16: rd_kafka_idemp_start).
    """
    attempt_s = _FIRST_S

    def fence(timeout: float) -> None:
        nonlocal attempt_s
        within, attempt_s = min(attempt_s, timeout), min(_MOST_S, attempt_s * _GROWTH)
        client.init_transactions(within)

    return fence


def fenced(client: Producer, deadline: Deadline) -> None:
    """
    `init_transactions` by `fencing`, for a client of one's own.

    Raises:
        DeadlineExceeded: no answer in time.
    """
    attempt = fencing(client)

    def fence() -> None:
        with mapped("fence"):
            attempt(max(0.001, deadline.remaining_s()))

    again(fence, "fence", deadline, PAUSE_S)
