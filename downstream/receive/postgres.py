"""The receiver in PostgreSQL: claim and effect in one transaction; and its threads for old claims and the outbox."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import urllib3

from brew.cli import printable
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Denied, KafkaFailure, Refused
from brew.fault_injection import CrashMoment, StoreCrash
from downstream.address import RequestOutcome, authorization, checked_http, idempotency_key, masked_url
from downstream.consume.handler import HandlerContext, LastingFailure, RetryLater
from downstream.http_pool import http_pool
from downstream.observed import to_stderr
from downstream.postgres import Connection, Database, DatabaseSettings, crash_before_commit, make_tables
from downstream.receive.receiver import BackgroundThread, Message, Receiver, ReceiverSettings

_CHUNK = 5000
_CLEAN_UP_S = 60.0

TABLES = """
CREATE TABLE IF NOT EXISTS processed_messages (
    message_id text NOT NULL,
    consumer_group text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, consumer_group)
);
CREATE INDEX IF NOT EXISTS processed_messages_by_age ON processed_messages (processed_at);
CREATE TABLE IF NOT EXISTS receiver_topics (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    topic_id text NOT NULL,
    PRIMARY KEY (consumer_group, topic)
);
CREATE TABLE IF NOT EXISTS receiver_points (
    consumer_group text NOT NULL,
    customer_id text NOT NULL,
    points bigint NOT NULL,
    PRIMARY KEY (consumer_group, customer_id)
);
CREATE TABLE IF NOT EXISTS receiver_effects (
    consumer_group text NOT NULL,
    message_id text NOT NULL,
    customer_id text NOT NULL,
    points bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS outbox (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_group text NOT NULL,
    message_id text NOT NULL,
    payload bytea NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamptz NOT NULL DEFAULT now(),
    sent_at timestamptz,
    refused text
);
CREATE INDEX IF NOT EXISTS outbox_open ON outbox (consumer_group, due_at) WHERE sent_at IS NULL AND refused IS NULL;
CREATE INDEX IF NOT EXISTS outbox_sent ON outbox (consumer_group, sent_at) WHERE sent_at IS NOT NULL;
"""
_TOPIC_ID = """
INSERT INTO receiver_topics AS known VALUES (%s, %s, %s) ON CONFLICT (consumer_group, topic) DO UPDATE
SET topic_id = CASE WHEN %s THEN excluded.topic_id ELSE known.topic_id END RETURNING topic_id
"""
# Waits for a message that another transaction is claiming: if that one fails, the claim is ours. Claims are made in id
# order, so that two receivers of the same messages cannot deadlock.
_CLAIM = """
INSERT INTO processed_messages (message_id, consumer_group)
SELECT id, %s FROM unnest(%s::text[]) AS id ORDER BY id
ON CONFLICT DO NOTHING RETURNING message_id
"""
# In the order of ids, as claims are made, so that two receivers can't wait for each other.
_RENEW = """
UPDATE processed_messages AS claim SET processed_at = now()
FROM (SELECT message_id FROM processed_messages
      WHERE consumer_group = %s AND message_id = ANY(%s) ORDER BY message_id FOR UPDATE) AS known
WHERE claim.consumer_group = %s AND claim.message_id = known.message_id
"""
# No unique index on effects: the claim guarantees that each exists once, and the check confirms it.
_EFFECT = """
WITH effect AS (
    INSERT INTO receiver_effects
    SELECT %s, * FROM unnest(%s::text[], %s::text[], %s::bigint[]) RETURNING consumer_group, customer_id, points
)
INSERT INTO receiver_points AS known
SELECT consumer_group, customer_id, sum(points) FROM effect GROUP BY 1, 2 ORDER BY 1, 2
ON CONFLICT (consumer_group, customer_id) DO UPDATE SET points = known.points + excluded.points
"""
_ENQUEUE = "INSERT INTO outbox (consumer_group, message_id, payload) SELECT %s, * FROM unnest(%s::text[], %s::bytea[])"


class RetentionCheck(BackgroundThread):
    """Calls ``check`` every minute: the topic's retention may be raised above that of the claims while they expire."""

    def __init__(self, check: Callable[[], object], every_s: float = 60.0) -> None:
        super().__init__("check of the topic's retention", every_s)
        self._check = check

    def round(self) -> bool:
        try:
            self._check()
        except (KafkaFailure, DeadlineExceeded, Denied) as error:  # a restart tells
            raise RetryLater(str(error)) from error
        return False


# A sent row stays as long as its claim, which may have been renewed since: the check counts rows of known messages.
_OLD = {
    "processed_messages": "processed_at < now() - make_interval(secs => %s)",
    "outbox": """sent_at < now() - make_interval(secs => %s) AND NOT EXISTS (
        SELECT FROM processed_messages AS claim
        WHERE claim.message_id = outbox.message_id AND claim.consumer_group = outbox.consumer_group)""",
}


class CleanUp(BackgroundThread):
    """Deletes this group's old claims and outbox rows, by the thousand: other groups' topics may retain longer."""

    def __init__(self, settings: DatabaseSettings, group: str, keep_s: float | None) -> None:
        super().__init__("clean-up", _CLEAN_UP_S)
        self._database, self._group, self._keep_s = Database(settings, "brew-clean-up"), group, keep_s

    def round(self) -> bool:
        if self._keep_s is None:
            return False
        removed = 0
        for table, old_enough in _OLD.items():
            chosen = f"consumer_group = %s AND {old_enough}"
            old = f"SELECT ctid FROM {table} WHERE {chosen} LIMIT {_CHUNK}"  # noqa: S608 - names of ours
            statement = f"DELETE FROM {table} WHERE ctid = ANY(ARRAY({old}))"  # noqa: S608 - the same
            with self._database.transaction(self._database.patience()) as connection:
                removed += connection.execute(statement.encode(), [self._group, self._keep_s]).rowcount
        return removed > 0

    def stop(self, deadline: Deadline) -> None:
        super().stop(deadline)
        self._database.close()


_BATCH = 10
_EVERY_S = 0.1
_LOOK_S = 0.05
_LONGEST_WAIT_S = 60.0
_TOLD = 5

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


@dataclass(frozen=True)
class CallSettings:
    """The receiver's URL, and the time-out of a request in seconds."""

    url: str = field(repr=False)  # may hold a password
    timeout_s: float = 1.5

    def __post_init__(self) -> None:
        checked_http(self.url, "--effect-url")


class Deliverer(BackgroundThread):
    """
    Sends the outbox's requests at least once, each with its message id as `Idempotency-Key`. A crash between the answer
    and the commit repeats a request; a receiver that knows the key ignores it. Failed rows are retried later and let
    others pass, so the order of messages is not kept.
    """

    def __init__(self, group: str, settings: DatabaseSettings, calls: CallSettings, crash: StoreCrash) -> None:
        super().__init__("outbox", _EVERY_S)
        self._group, self._calls, self._crash = group, calls, crash
        self._database = Database(settings, "brew-outbox")
        self._http = http_pool(calls.timeout_s)
        self._login = authorization(calls.url)
        self._requests = LastingFailure(f"requests to {masked_url(calls.url)}", to_stderr)
        self.sent = self.refused = 0

    def round(self) -> bool:
        # Unresponsive receivers must not use up the transaction's time, or no row would ever be marked.
        patience = self._database.patience()
        sending = Deadline(patience.budget_s / 2)
        ends: Counter[RequestOutcome] = Counter()
        with self._database.transaction(patience) as connection:
            taken = connection.execute(_TAKE, [self._group, _BATCH]).fetchall()
            for row in taken:
                if sending.expired() or self._stop.is_set():
                    break
                ends[self._send(connection, *row)] += 1
            if taken:
                self._crash.at(CrashMoment.BEFORE_COMMIT)
        self.sent += ends[RequestOutcome.SENT]
        self.refused += ends[RequestOutcome.REFUSED]
        return len(taken) == _BATCH

    def _send(
        self, connection: Connection, number: int, message_id: str, payload: bytes, attempts: int
    ) -> RequestOutcome:
        headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key(message_id), **self._login}
        try:
            status = self._http.request("POST", self._calls.url, body=bytes(payload), headers=headers).status
            reason = f"answered {status}"
        except urllib3.exceptions.ReadTimeoutError:
            status, reason = 0, f"no complete answer within {self._calls.timeout_s:g} s"
        except urllib3.exceptions.HTTPError as error:
            status, reason = 0, type(error).__name__  # its text may quote the URL's query
        outcome = RequestOutcome.of(status)
        if outcome is not RequestOutcome.LATER:
            self._requests.worked()
        if outcome is RequestOutcome.SENT:
            connection.execute(_SENT, [number])
        elif outcome is RequestOutcome.REFUSED:
            connection.execute(_REFUSED, [reason, number])
            if self.refused < _TOLD:
                to_stderr(printable(f"the request of message {message_id} was refused for good: {reason}"))
        else:
            self._requests.failed(reason)
            connection.execute(_LATER, [min(_LONGEST_WAIT_S, 0.2 * 2 ** min(attempts, 10)), number])
        return outcome

    def drain(self, deadline: Deadline, stop: threading.Event) -> None:
        """Return once nothing is left to send, or ``stop`` is set; `Refused` if no row was sent for so long."""
        settled = 0
        with closing(Database(self._database.settings, "brew-outbox-drain")) as watching:
            while not stop.is_set() and (left := self._left(watching)) != 0:
                self.check()
                if settled < self.sent + self.refused:
                    settled, deadline = self.sent + self.refused, Deadline(deadline.budget_s)
                if deadline.expired():
                    reason = self._requests.reason or self._failure.reason
                    last = f", at last: {reason}" if reason else ""
                    raise Refused(
                        f"{'an unknown number of' if left is None else left} outbox rows could not be sent to "
                        f"{masked_url(self._calls.url)}, and none was within {deadline.budget_s:g} s "
                        f"(--patience-s){last}; they stay in the outbox, and the next run sends them"
                    )
                stop.wait(_LOOK_S)

    def _left(self, database: Database) -> int | None:
        """Return how many rows are left; None if the database can't tell at the moment."""
        try:
            with database.transaction(database.patience()) as connection:
                [(left,)] = connection.execute(_OPEN, [self._group]).fetchall()
        except RetryLater:
            return None
        return int(left)

    def stop(self, deadline: Deadline) -> None:
        super().stop(deadline)
        self._database.close()
        self._http.clear()


class PostgresReceiver(Receiver):
    """
    Claims a batch and applies its effects (``outbox``: enqueues them) in one transaction; repeats have none. Claims are
    kept for ``keep_s`` seconds, or forever.
    """

    def __init__(
        self,
        receiver_settings: ReceiverSettings,
        settings: DatabaseSettings,
        keep_s: float | None = None,
        *,
        outbox: bool = False,
    ) -> None:
        super().__init__(receiver_settings)
        self._settings, self._outbox = settings, outbox
        self._database = Database(settings, "brew-receive")
        self._clean_up = CleanUp(settings, receiver_settings.group, keep_s)
        self.background.append(self._clean_up)

    def prepare(self) -> None:
        make_tables(self._database, self._settings.schema, TABLES)

    def claimed_topic_id(self, topic_id: str, deadline: Deadline, *, replace: bool) -> str:
        with self._database.transaction(deadline) as connection:
            row = connection.execute(
                _TOPIC_ID, [self.settings.group, self.settings.topic, topic_id, replace]
            ).fetchone()
        return topic_id if row is None else str(row[0])

    def claim(self, messages: Sequence[Message], context: HandlerContext) -> int:
        if not messages:
            return 0
        crash = self.settings.crash
        with self._database.transaction(context.deadline) as connection:
            fresh = self._fresh(connection, messages)
            crash.at(CrashMoment.AFTER_CLAIM)
            if fresh:
                self._effect(connection, fresh)
            context.check(*context.partitions)
            crash_before_commit(connection, crash)
        crash.at(CrashMoment.AFTER_COMMIT)
        return len(fresh)

    def _fresh(self, connection: Connection, messages: Sequence[Message]) -> list[Message]:
        ids, group = [message.message_id for message in messages], self.settings.group
        new = {row[0] for row in connection.execute(_CLAIM, [group, ids])}
        if known := [message_id for message_id in ids if message_id not in new]:
            # The topic may keep this record longer than the one that was claimed.
            connection.execute(_RENEW, [group, known, group])
        return [message for message in messages if message.message_id in new]

    def _effect(self, connection: Connection, fresh: Sequence[Message]) -> None:
        ids, customers, points, values, _ = (list(column) for column in zip(*fresh, strict=True))
        if self._outbox:
            connection.execute(_ENQUEUE, [self.settings.group, ids, values])
        else:
            connection.execute(_EFFECT, [self.settings.group, ids, customers, points])

    def close(self, deadline: Deadline) -> None:
        self._clean_up.stop(deadline)
        self._database.close()
