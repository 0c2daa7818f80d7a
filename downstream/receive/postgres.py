"""The receiver in PostgreSQL: claim and effect in one transaction; exactly once for effects in this database."""

from __future__ import annotations

from collections.abc import Sequence

from brew.deadline import Deadline
from brew.fault_injection import CrashMoment
from downstream.consume.handler import HandlerContext
from downstream.postgres import Connection, Database, DatabaseSettings, commit_and_die, make_tables
from downstream.receive.outbox import ClaimRetention, CleanUp
from downstream.receive.receiver import Message, Receiver, ReceiverSettings

TABLES = """
CREATE TABLE IF NOT EXISTS processed_messages (
    message_id text NOT NULL,
    consumer_group text NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, consumer_group)
);
CREATE INDEX IF NOT EXISTS processed_messages_by_age ON processed_messages (processed_at);
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
"""
# A message that another transaction is claiming is waited for: if that one fails, the claim is ours. In the order of
# ids, so that two receivers that are given the same messages can't wait for each other.
_CLAIM = """
INSERT INTO processed_messages (message_id, consumer_group)
SELECT id, %s FROM unnest(%s::text[]) AS id ORDER BY id
ON CONFLICT DO NOTHING RETURNING message_id
"""
# No unique index on effects: that each is there once is the claim's work, and the check's to confirm.
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


class PostgresReceiver(Receiver):
    """
    Claim and effect of a batch in one transaction, or claim and outbox rows with ``outbox``.

    A redelivered message is not inserted, has no effect, and stops nobody.
    """

    def __init__(
        self, ground: ReceiverSettings, settings: DatabaseSettings, keeping: ClaimRetention, *, outbox: bool = False
    ) -> None:
        super().__init__(ground)
        self._settings, self._outbox = settings, outbox
        self._database = Database(settings, "brew-receive")
        self._clean_up = CleanUp(settings, ground.group, keeping)
        self.beside.append(self._clean_up)

    def prepare(self) -> None:
        make_tables(self._database, self._settings.schema, TABLES)

    def claim(self, found: Sequence[Message], lease: HandlerContext) -> int:
        if not found:
            return 0
        crash = self.ground.crash
        with self._database.transaction(lease.deadline) as connection:
            fresh = self._fresh(connection, found)
            crash.at(CrashMoment.AFTER_CLAIM)
            if fresh:
                self._effect(connection, fresh)
            for partition in lease.partitions:
                lease.check(partition)
            crash.at(CrashMoment.BEFORE_COMMIT)
            if crash.due(CrashMoment.COMMIT_IN_FLIGHT):
                commit_and_die(connection, crash)
        crash.at(CrashMoment.AFTER_COMMIT)
        return len(fresh)

    def _fresh(self, connection: Connection, found: Sequence[Message]) -> list[Message]:
        claimed = connection.execute(_CLAIM, [self.ground.group, [one.message_id for one in found]])
        new = {row[0] for row in claimed}
        return [one for one in found if one.message_id in new]

    def _effect(self, connection: Connection, fresh: Sequence[Message]) -> None:
        ids, customers, points, values, _ = (list(column) for column in zip(*fresh, strict=True))
        if self._outbox:
            connection.execute(_ENQUEUE, [self.ground.group, ids, values])
        else:
            connection.execute(_EFFECT, [self.ground.group, ids, customers, points])

    def close(self, deadline: Deadline) -> None:
        self._clean_up.stop(deadline)
        self._database.close()
