"""The effect of `downstream call`: one HTTP request per record, and dead letters for those that nobody takes."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import urllib3

from downstream.address import shown
from downstream.virtual.partitions import HopelessError
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import BrewError, DeadlineExceeded
from protocol.kafka.clients import mapped, producer
from protocol.kafka.scan import LogRecord
from protocol.kafka.transaction import MESSAGE_MAX_BYTES
from protocol.position import SourcePosition
from protocol.records import (
    ERROR_EXCEPTION,
    ERROR_MESSAGE,
    ERROR_OFFSET,
    ERROR_PARTITION,
    ERROR_REASON,
    ERROR_TOPIC,
)

REASON = "call-failed"
IDEMPOTENCY_KEY = "Idempotency-Key"
_AGAIN = {408, 425, 429}  # time-out, too early, too many: 4xx that pass (RFC 9110, RFC 8470, RFC 6585)
_WRITE_S = 30.0


class CallFailedError(BrewError):
    """The receiver answered, and not with success."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """Where records are posted to, and the seconds that one request may take."""

    url: str = field(repr=False)  # may hold a password
    timeout_s: float = 5.0


def message_id(topic: str, record: LogRecord) -> SourcePosition:
    """What stays the same however often a record is sent: its source position, or its own where it has none."""
    return SourcePosition.of(record.headers()) or SourcePosition(topic, record.partition(), record.offset())


class Caller:
    """
    POST each record's value; 2xx is the effect. Used by many threads at once.

    At least once: a crash between the answer and the stored offset sends the record again, with the same
    `Idempotency-Key`, by which the receiver can tell. A 4xx that will not pass is not tried again.
    """

    def __init__(
        self, settings: CallSettings, connection: Connection, topic: str, dead_letter: str, calls: int
    ) -> None:
        self._settings, self._topic, self._dead_letter = settings, topic, dead_letter
        # Repeating is the workers' business, so that other keys go on meanwhile.
        self._http = urllib3.PoolManager(maxsize=calls, block=False, retries=False, timeout=settings.timeout_s)
        self._writer = producer(connection, None, timeout_s=_WRITE_S, message_max_bytes=MESSAGE_MAX_BYTES)
        self._writing = threading.Lock()

    def handle(self, record: LogRecord) -> None:
        """
        Send one record.

        Raises:
            HopelessError: the receiver will never take it.
            CallFailedError, urllib3.exceptions.HTTPError: it may, later.
        """
        source = message_id(self._topic, record)
        key = f"{source.topic}/{source.partition}/{source.offset}"
        headers = {"Content-Type": "application/json", IDEMPOTENCY_KEY: key}
        answer = self._http.request("POST", self._settings.url, body=record.value() or b"", headers=headers)
        if 200 <= answer.status < 300:  # noqa: PLR2004 - success, by RFC 9110
            return
        told = f"{shown(self._settings.url)} answered {answer.status}: {answer.data[:200].decode('utf-8', 'replace')}"
        if 400 <= answer.status < 500 and answer.status not in _AGAIN:  # noqa: PLR2004 - the sender's fault
            raise HopelessError(told)
        raise CallFailedError(told)

    def give_up(self, record: LogRecord, error: Exception, attempts: int) -> None:
        """
        Write the record, unchanged, to the dead-letter topic, and return when the brokers have it.

        Raises:
            DeadlineExceeded: they did not take it in time.
        """
        source = message_id(self._topic, record)
        why = f"failed {attempts} times, at last with {type(error).__name__}: {error}"
        errors = {
            ERROR_REASON: REASON,
            ERROR_EXCEPTION: type(error).__name__,
            ERROR_MESSAGE: why,
            ERROR_TOPIC: self._topic,
            ERROR_PARTITION: str(record.partition()),
            ERROR_OFFSET: str(record.offset()),
        }
        carried = record.headers() or []
        headers: list[tuple[str, str | bytes | None]] = [*carried, *errors.items()]
        if SourcePosition.of(carried) is None:
            headers += source.headers()
        failures: list[str] = []

        def delivered(failure: object, _message: object) -> None:
            if failure is not None:
                failures.append(str(failure))

        with self._writing, mapped("dead letter"):
            self._writer.produce(
                self._dead_letter, record.value(), record.key(), on_delivery=delivered, headers=headers
            )
            left = self._writer.flush(Deadline(_WRITE_S).remaining_s())
        if left or failures:
            raise DeadlineExceeded(
                f"dead letter of {self._topic}[{record.partition()}] offset {record.offset()}: "
                f"{failures[0] if failures else f'not taken within {_WRITE_S:g} s'}"
            )

    def close(self) -> None:
        self._http.clear()
