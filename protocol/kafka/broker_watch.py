"""Ask every few seconds whether a broker answers, and say so when none does, and when one does again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from protocol.connection import Connection
from protocol.kafka.clients import KafkaException, admin
from protocol.outage import Outage

_EVERY_S = 2.0
_ATTEMPT_S = 1.0
_SILENT_S = 3.0
_PAUSE_S = 0.5
_LEAVE_S = 2.0


@contextmanager
def broker_watch(
    connection: Connection, topic: str, waits: str, patience_s: float | None, tell: Callable[[str], None]
) -> Iterator[None]:
    """
    Tell of outages of all brokers while the block runs, from a thread of its own; see `Outage` for ``waits``.

    ``topic``: whose metadata is asked for; any topic will do.
    """
    outage, stop = Outage(connection.bootstrap, waits, patience_s), threading.Event()
    watch = threading.Thread(
        target=_watch, args=(connection, topic, outage, stop, tell), name="broker-watch", daemon=True
    )
    watch.start()
    try:
        yield
    finally:
        stop.set()
        watch.join(_LEAVE_S)


def _watch(
    connection: Connection, topic: str, outage: Outage, stop: threading.Event, tell: Callable[[str], None]
) -> None:
    # To ask about a topic that was deleted must not make it anew.
    client, answered_at = admin(connection, **{"allow.auto.create.topics": False}), time.monotonic()
    while not stop.is_set():
        try:
            client.list_topics(topic, timeout=_ATTEMPT_S)
        except KafkaException:
            answered, now = False, time.monotonic()
            text = outage.silent(now) if now - answered_at >= _SILENT_S else None
        else:
            answered, answered_at = True, time.monotonic()
            text = outage.answered(answered_at)
        if text is not None and not stop.is_set():
            tell(text)
        stop.wait(_EVERY_S if answered else _PAUSE_S)
