"""The messages between the lease coordinator and its workers, and the connections that carry them."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import asdict, dataclass, replace
from typing import Any

import orjson

from brew.deadline import Deadline
from brew.kafka.transaction import TransactionSettings
from brew.outcome import Outcome, Status
from brew.range_transaction import Targets
from brew.settings import CrashSettings, DirectSettings
from brew.transformation import Transformation

Message = dict[str, Any]


@dataclass(frozen=True)
class WorkerSettings:
    """
    Everything that a worker needs before its first grant; serialized to the executors, so it holds values only.
    ``watched``: report the begin of each transaction, not only of the first one; ``traced``: report trace links of
    records.
    """

    host: str
    port: int
    token: str
    topic: str
    transaction: TransactionSettings
    transformation: Transformation
    direct: DirectSettings
    crash: CrashSettings
    max_records: int
    journal: str | None = None
    watched: bool = False
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """
    A lease of one partition from ``start`` to ``goal``, or for ever. ``first_time``: there is no committed offset and
    no output. ``exempt_from_crash``: the first transaction is not crashed on purpose, or a run whose workers crash
    could not recover.
    """

    partition: int
    start: int
    targets: Targets
    goal: int | None = None
    first_time: bool = False
    exempt_from_crash: bool = False


def grant_message(grant: Grant) -> Message:
    return {"grant": asdict(grant)}


def parse_grant(message: Message) -> Grant | None:
    fields = message.get("grant")
    return None if fields is None else Grant(**{**fields, "targets": Targets(**fields["targets"])})


_MAX_REASON, _MAX_DETAIL = 100, 10_000
"""Characters; an outcome has at most 50 reasons, and must be far below `_MAX_MESSAGE`."""


def reportable(outcome: Outcome) -> Outcome:
    """Shorten a function's texts, such as a whole record as a reason, and replace what can't be UTF-8."""
    reasons, examples = dict[str, int](), dict[str, int]()
    for reason, count in outcome.reasons.items():
        short = reason[:_MAX_REASON]
        reasons[short] = reasons.get(short, 0) + count
        if reason in outcome.examples:
            examples.setdefault(short, outcome.examples[reason])
    detail = outcome.detail[:_MAX_DETAIL].encode(errors="replace").decode()
    return replace(outcome, reasons=reasons, examples=examples, detail=detail)


def outcome_message(outcome: Outcome) -> Message:
    return {"outcome": asdict(reportable(outcome))}


def parse_outcome(message: Message) -> Outcome | None:
    fields = message.get("outcome")
    return None if fields is None else Outcome(**{**fields, "status": Status(fields["status"])})


def released_message(partition: int, position: int, why: str = "") -> Message:
    """The worker has released a partition; ``why`` is the error if it failed."""
    return {"released": {"partition": partition, "position": position, "why": why}}


_MAX_MESSAGE = 1024 * 1024
_CHUNK = 65_536


class MessageConnection:
    """JSON messages in both directions; any thread may `send`, one may `receive`."""

    def __init__(self, connected: socket.socket, idle_timeout_s: float) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(idle_timeout_s)
        self._socket = connected
        self._lock = threading.Lock()
        self._buffer = b""

    @classmethod
    def to(cls, host: str, port: int, idle_timeout_s: float, deadline: Deadline) -> MessageConnection:
        """Connect; ``idle_timeout_s`` is the longest time without a message from the other side."""
        return cls(socket.create_connection((host, port), deadline.remaining_s()), idle_timeout_s)

    def send(self, message: Message) -> bool:
        """Send a message; False if the connection is closed, which `receive` reports, too."""
        with self._lock:
            try:
                self._socket.sendall(orjson.dumps(message) + b"\n")
            except OSError:
                self.close()
                return False
        return True

    def receive(self) -> Message | None:
        """The next message; None if the other side has closed, was idle for too long, or sent no JSON object."""
        while b"\n" not in self._buffer:
            try:
                received = self._socket.recv(_CHUNK)
            except OSError:  # includes time-outs
                return None
            if not received or len(self._buffer) > _MAX_MESSAGE:
                return None
            self._buffer += received
        line, _, self._buffer = self._buffer.partition(b"\n")
        with contextlib.suppress(orjson.JSONDecodeError):
            message = orjson.loads(line)
            if isinstance(message, dict):
                return message
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
