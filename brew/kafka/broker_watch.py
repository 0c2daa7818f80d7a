"""Report once when no broker answers, and once when one answers again."""

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
    Tracks whether brokers answer, and words a message for each change.

    ``consequence``: a clause that says what the program does meanwhile. ``give_up_s``: the program gives up after so
    many seconds without an answer; None: it waits until it is stopped.
    """

    def __init__(self, bootstrap: str, consequence: str, give_up_s: float | None) -> None:
        self._bootstrap, self._consequence, self._give_up_s = bootstrap, consequence, give_up_s
        self._answered_at: float | None = None
        self._reported = False

    def answered(self, now: float) -> str | None:
        """The brokers answered at ``now`` (seconds, monotonic); the line to say, if any."""
        since, self._answered_at = self._answered_at, now
        if not self._reported or since is None:
            return None
        self._reported = False
        return f"brokers-back: {self._bootstrap} answers again; it was away for {now - since:.0f} s"

    def silent(self, now: float, clock: datetime | None = None) -> str | None:
        """No broker answered at ``now`` (``clock``: the same as time of day); None before the first answer ever."""
        if self._reported or self._answered_at is None:
            return None
        self._reported = True
        silent_s = now - self._answered_at
        text = f"brokers-away: {self._bootstrap} has not answered for {silent_s:.0f} s; {self._consequence}"
        if self._give_up_s is None:
            return f"{text}, until it answers or this program is stopped"
        until = (clock or datetime.now(UTC)) + timedelta(seconds=max(0.0, self._give_up_s - silent_s))
        return f"{text}, at least until {until:%H:%M:%S} UTC ({self._give_up_s:g} s)"


_INTERVAL_S = 2.0
_ATTEMPT_S = 1.0
_SILENT_S = 3.0
_RENEW_S = 10.0
_PAUSE_S = 0.5
_JOIN_S = 2.0


@contextmanager
def broker_watch(
    connection: Connection, topic: str, consequence: str, give_up_s: float | None, report: Callable[[str], None]
) -> Iterator[None]:
    """
    Report outages of all brokers while the block runs, from a background thread; see `Outage` for ``consequence``.

    ``topic``: the topic whose metadata is requested; any topic will do.
    """
    outage, stop = Outage(connection.bootstrap, consequence, give_up_s), threading.Event()
    thread = threading.Thread(
        target=_watch, args=(connection, topic, outage, stop, report), name="broker-watch", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_JOIN_S)


def _watch(
    connection: Connection, topic: str, outage: Outage, stop: threading.Event, report: Callable[[str], None]
) -> None:
    # A metadata request must not recreate a topic that was deleted.
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
            report(text)
        stop.wait(_INTERVAL_S if answered else _PAUSE_S)
