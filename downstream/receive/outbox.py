"""The outbox: requests that were decided in a transaction, sent afterwards with an idempotency key until taken."""

from __future__ import annotations

import enum
import time
from collections import Counter
from dataclasses import dataclass, field

import urllib3

from downstream.address import checked_http, shown
from downstream.consume.crash import Crash, Moment
from downstream.postgres import Connection, Database, DatabaseSettings
from downstream.receive.background import Background
from protocol.deadline import Deadline
from protocol.errors import Refused

_BATCH = 10
_EVERY_S = 0.1
_LOOK_S = 0.05
_LONGEST_WAIT_S = 60.0
_AGAIN = {408, 425, 429}  # time-out, too early, too many (RFC 9110, RFC 8470, RFC 6585); other 4xx stay as they are

_TAKE = """
SELECT number, message_id, payload, attempts FROM outbox
WHERE consumer_group = %s AND sent_at IS NULL AND refused IS NULL AND due_at <= now()
ORDER BY number LIMIT %s FOR UPDATE SKIP LOCKED
"""
_SENT = "UPDATE outbox SET sent_at = now(), attempts = attempts + 1 WHERE number = %s"
_REFUSED = "UPDATE outbox SET refused = %s, attempts = attempts + 1 WHERE number = %s"
_LATER = """
UPDATE outbox SET attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => %s) WHERE number = %s
"""
_OPEN = "SELECT count(*) FROM outbox WHERE consumer_group = %s AND sent_at IS NULL AND refused IS NULL"


class _End(enum.Enum):
    """What became of one request."""

    SENT = enum.auto()
    REFUSED = enum.auto()
    LATER = enum.auto()


@dataclass(frozen=True)
class CallSettings:
    """Where requests go, and the seconds that one may take."""

    url: str = field(repr=False)  # may hold a password
    timeout_s: float = 1.5

    def __post_init__(self) -> None:
        checked_http(self.url, "--effect-url")


class Deliverer(Background):
    """
    Sends what the outbox holds: at least once, each with its message id as `Idempotency-Key`.

    A crash between the answer and the commit sends again; a receiver that knows the key does nothing then. Failing
    rows are tried later and let others pass, so the order of messages is not kept.
    """

    def __init__(self, group: str, settings: DatabaseSettings, calls: CallSettings, crash: Crash) -> None:
        super().__init__("outbox", _EVERY_S)
        self._group, self._calls, self._crash = group, calls, crash
        self._database = Database(settings, "brew-outbox")
        self._http = urllib3.PoolManager(maxsize=1, retries=False, timeout=calls.timeout_s)
        self.sent = self.refused = 0

    def round(self) -> bool:
        # Receivers that hang must not use up the transaction's time: nothing would be noted of any row, for ever.
        patience = self._database.patience()
        sending = Deadline(patience.budget_s / 2)
        ends: Counter[_End] = Counter()
        with self._database.transaction(patience) as connection:
            taken = connection.execute(_TAKE, [self._group, _BATCH]).fetchall()
            for row in taken:
                if sending.expired():
                    break
                ends[self._send(connection, *row)] += 1
            if taken:
                self._crash.at(Moment.BEFORE_COMMIT)
        self.sent += ends[_End.SENT]
        self.refused += ends[_End.REFUSED]
        return len(taken) == _BATCH

    def _send(self, connection: Connection, number: int, message_id: str, payload: bytes, attempts: int) -> _End:
        headers = {"Content-Type": "application/json", "Idempotency-Key": message_id}
        try:
            answer = self._http.request("POST", self._calls.url, body=bytes(payload), headers=headers)
        except urllib3.exceptions.HTTPError:
            status = 0
        else:
            status = answer.status
        if 200 <= status < 300:  # noqa: PLR2004 - success, by RFC 9110
            connection.execute(_SENT, [number])
            return _End.SENT
        if 400 <= status < 500 and status not in _AGAIN:  # noqa: PLR2004 - the sender's fault, by RFC 9110
            connection.execute(_REFUSED, [f"answered {status}", number])
            return _End.REFUSED
        connection.execute(_LATER, [min(_LONGEST_WAIT_S, 0.2 * 2 ** min(attempts, 10)), number])
        return _End.LATER

    def drain(self, deadline: Deadline) -> None:
        """
        Return once nothing is left to send.

        Raises:
            Refused: something is.
        """
        watching = Database(self._database.settings, "brew-outbox-drain")
        try:
            while left := self._left(watching):
                self.check()
                if deadline.expired():
                    raise Refused(
                        f"{left} outbox rows could not be sent to {shown(self._calls.url)} within "
                        f"{deadline.budget_s:g} s; they stay in the outbox, and the next run goes on with them"
                    )
                time.sleep(_LOOK_S)
        finally:
            watching.close()

    def _left(self, database: Database) -> int:
        with database.transaction(database.patience()) as connection:
            row = connection.execute(_OPEN, [self._group]).fetchone()
        return 0 if row is None else int(row[0])

    def stop(self, deadline: Deadline) -> None:
        super().stop(deadline)
        self._database.close()
        self._http.clear()
