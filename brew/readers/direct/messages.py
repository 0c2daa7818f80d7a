"""What the lease coordinator and its workers say to each other, and the connection between them."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import asdict, dataclass
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
    All that a holder needs before its first grant; travels to the executors, so it holds values only.

    ``watched``: somebody wants to hear of each transaction when it begins, too; ``traced``: spans are made of them.
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
    One partition, from ``start`` on; up to ``goal``, or for ever.

    ``first_time``: there is no committed offset, and nothing came out. ``spared``: no crash on purpose strikes the
    first transaction, or a run whose workers die of it could not heal.
    """

    partition: int
    start: int
    targets: Targets
    goal: int | None = None
    first_time: bool = False
    spared: bool = False


def grant_message(grant: Grant) -> Message:
    return {"grant": asdict(grant)}


def parse_grant(message: Message) -> Grant | None:
    """The grant that a message holds, if it holds one."""
    found = message.get("grant")
    return None if found is None else Grant(**{**found, "targets": Targets(**found["targets"])})


def begun_message(partition: int) -> Message:
    """A transaction begins."""
    return {"begun": partition}


def outcome_message(outcome: Outcome) -> Message:
    return {"outcome": asdict(outcome)}


def parse_outcome(message: Message) -> Outcome | None:
    """The outcome that a message holds, if it holds one."""
    found = message.get("outcome")
    return None if found is None else Outcome(**{**found, "status": Status(found["status"])})


def left_message(partition: int, position: int, why: str = "") -> Message:
    """The holder has let go of a partition; ``why`` is empty unless it could not go on."""
    return {"left": {"partition": partition, "position": position, "why": why}}


_LONGEST = 1024 * 1024
_CHUNK = 65_536


class MessageConnection:
    """Messages both ways; `send` may be called from any thread, `receive` from one."""

    def __init__(self, connected: socket.socket, silence_s: float) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(silence_s)
        self._socket = connected
        self._lock = threading.Lock()
        self._held = b""

    @classmethod
    def to(cls, host: str, port: int, silence_s: float, deadline: Deadline) -> MessageConnection:
        """
        Connect; ``silence_s`` is how long the other side may say nothing.

        Raises:
            OSError: nobody listens there.
        """
        return cls(socket.create_connection((host, port), deadline.remaining_s()), silence_s)

    def send(self, message: Message) -> bool:
        """False when the line is dead: the reader of this line learns it, too."""
        with self._lock:
            try:
                self._socket.sendall(orjson.dumps(message) + b"\n")
            except OSError:
                self.close()
                return False
        return True

    def receive(self) -> Message | None:
        """The next message; None when the other side has gone, was silent for too long, or sends nonsense."""
        while b"\n" not in self._held:
            try:
                got = self._socket.recv(_CHUNK)
            except OSError:  # a time-out is one, too
                return None
            if not got or len(self._held) > _LONGEST:
                return None
            self._held += got
        text, _, self._held = self._held.partition(b"\n")
        with contextlib.suppress(orjson.JSONDecodeError):
            message = orjson.loads(text)
            if isinstance(message, dict):
                return message
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
