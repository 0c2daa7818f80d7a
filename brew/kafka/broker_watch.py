"""Say once when no broker answers, and once when one does again."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from brew.connection import Connection
from brew.kafka.clients import KafkaException, admin


class Outage:
    """
    Takes in whether brokers answer, and tells what there is to say.

    ``waits``: what happens meanwhile, and what ends the wait, as a clause. ``patience_s``: the program gives up when
    they have not answered for so long; None: it waits until it is stopped.
    """

    def __init__(self, bootstrap: str, waits: str, patience_s: float | None) -> None:
        self._bootstrap, self._waits, self._patience_s = bootstrap, waits, patience_s
        self._answered_at: float | None = None
        self._told = False

    def answered(self, now: float) -> str | None:
        """The brokers answered at ``now`` (seconds, monotonic); the line to say, if any."""
        since, self._answered_at = self._answered_at, now
        if not self._told or since is None:
            return None
        self._told = False
        return f"brokers-back: {self._bootstrap} answers again; it was away for {now - since:.0f} s"

    def silent(self, now: float, clock: datetime | None = None) -> str | None:
        """They did not; ``clock``: the time of day at ``now``. Nothing is said of brokers that never answered yet."""
        if self._told or self._answered_at is None:
            return None
        self._told = True
        silent_s = now - self._answered_at
        text = f"brokers-away: {self._bootstrap} has not answered for {silent_s:.0f} s; {self._waits}"
        if self._patience_s is None:
            return f"{text}, until it answers or this program is stopped"
        until = (clock or datetime.now(UTC)) + timedelta(seconds=max(0.0, self._patience_s - silent_s))
        return f"{text}, at least until {until:%H:%M:%S} UTC ({self._patience_s:g} s)"


_EVERY_S = 2.0
_ATTEMPT_S = 1.0
_SILENT_S = 3.0
_RENEW_S = 10.0
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
    made = functools.partial(admin, connection, **{"allow.auto.create.topics": False})
    client, answered_at = made(), time.monotonic()
    made_at = answered_at
    while not stop.is_set():
        try:
            client.list_topics(topic, timeout=_ATTEMPT_S)
        except KafkaException:
            answered, now = False, time.monotonic()
            text = outage.silent(now) if now - answered_at >= _SILENT_S else None
            if now - max(answered_at, made_at) >= _RENEW_S:
                # One that has lost the brokers for good never answers again (librdkafka issue 5301).
                client, made_at = made(), now
        else:
            answered, answered_at = True, time.monotonic()
            text = outage.answered(answered_at)
        if text is not None and not stop.is_set():
            tell(text)
        stop.wait(_EVERY_S if answered else _PAUSE_S)
