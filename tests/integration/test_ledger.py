"""The ledger against real servers: restarts, restored dumps, rivals, rebalances, servers that die."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import threading
import time

import psycopg
import pytest
from harness import enriched
from harness.downstream import LedgerStage, document, drain, following, run
from harness.programs import ROOT, until
from harness.servers import Broker, Names

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.clients import admin
from brew.kafka.cluster_admin import delete_records, set_config
from brew.kafka.log_reader import LogRecord
from downstream.claims.admin import Filter, Watcher
from downstream.consume.handler import (
    AssignedPartition,
    ClaimsSettings,
    HandlerContext,
    LoopSettings,
    PartitionBatch,
    RetryLater,
)
from downstream.ledger import check as ledger_check
from downstream.ledger import command as ledger_handler
from downstream.ledger.check import check
from downstream.ledger.command import TABLES, Ledger, LedgerHandler, OffsetRow, Start
from downstream.postgres import Database, DatabaseSettings, make_tables
from sandbox.store import Postgres
from tests.kills.bugs import advance_unguarded

ORDERS = 400
POISON = (
    None,
    b"not json",
    b"[]",
    b'{"customer_id":"a\\u0000b","loyalty_tier":"gold","loyalty_discount":0.15,"total_cents":5}',
    b'{"customer_id":"' + b"c" * 4000 + b'","loyalty_tier":"gold","loyalty_discount":0.15,"total_cents":5}',
    b'{"customer_id":"c","loyalty_tier":"gold","loyalty_discount":0.15,"total_cents":123456789012345678901}',
    b'{"customer_id":"c","loyalty_tier":"gold","loyalty_discount":0.15,"total_cents":0.1000000000000000055}',
    b'{"customer_id":"c","loyalty_tier":"gold","loyalty_discount":0.15,"total_cents":1e400}',
    b'{"customer_id":"c","loyalty_tier":"tin","loyalty_discount":0.15,"total_cents":5}',
    b'{"customer_id":7,"loyalty_tier":"bronze","loyalty_discount":0.05,"total_cents":5}',
)

ODD_NAME = '{"customer_id":"\u2615","loyalty_tier":"gold","loyalty_discount":0.15,"total_cents":5}'.encode()


@pytest.fixture
def stage(broker: Broker, postgres: Postgres, names: Names) -> LedgerStage:
    """A topic with orders, aborted ones between them, and nothing booked yet."""
    enriched.make_topic(broker.bootstrap, names.output)
    enriched.write(broker.bootstrap, names.output, ORDERS)
    return _ledger_of(broker, postgres, names)


def _ledger_of(broker: Broker, postgres: Postgres, names: Names) -> LedgerStage:
    schema = "l_" + names.stem.rsplit("-", 1)[1]
    return LedgerStage(broker.bootstrap, postgres.url, names.output, names.group, schema)


def _sql(stage: LedgerStage, *statements: str) -> None:
    with psycopg.connect(stage.url, options=f"-c search_path={stage.schema}") as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_of_two_ledgers_that_begin_at_once_in_the_same_tables_one_is_refused(stage: LedgerStage) -> None:
    """Each would find no rows of another's, and their entries could not be told apart."""
    quick = dataclasses.replace(stage.database, lock_s=0.3)
    assignment = AssignedPartition(stage.topic, "id", 0, None, 0, 10)
    first, second = (Database(settings, "test") for settings in (stage.database, quick))
    make_tables(first, stage.schema, TABLES)
    with first.transaction(Deadline(9)) as connection:
        Ledger("one", stage.topic).make(connection, [assignment])
        with pytest.raises(RetryLater, match="lock timeout"), second.transaction(Deadline(9)) as rival:
            Ledger("two", stage.topic).make(rival, [assignment])
    with pytest.raises(Refused, match="its own tables"), second.transaction(Deadline(9)) as rival:
        Ledger("two", stage.topic).make(rival, [assignment])
    first.close()
    second.close()


def test_every_visible_order_is_one_row_and_the_money_is_conserved(stage: LedgerStage) -> None:
    """Aborted orders are not booked, poison has a row and stops nobody, and a second run has nothing to do."""
    enriched.write_raw(stage.bootstrap, stage.topic, *POISON)
    booked = stage.book().booked
    assert (booked.entries, booked.problems) == (ORDERS + len(POISON), 6)
    stage.proven(ORDERS + len(POISON))
    assert stage.book().booked.entries == 0


def _database_of(stage: LedgerStage, encoding: str) -> DatabaseSettings:
    name = f"{stage.schema}_{encoding.lower()}"
    with psycopg.connect(stage.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'".encode())
    return dataclasses.replace(stage.database, url=f"{stage.url.rpartition('/')[0]}/{name}")


def test_a_database_that_was_made_without_a_locale_keeps_every_order(stage: LedgerStage) -> None:
    """`initdb` gives it the encoding SQL_ASCII, of which the client reads bytes unless it names its own encoding."""
    enriched.write_raw(stage.bootstrap, stage.topic, ODD_NAME)
    ascii_only = _database_of(stage, "SQL_ASCII")
    for booked in (ORDERS + 1, 0):
        assert stage.book(stage.handler(database=ascii_only)).booked.entries == booked
    result = check(stage.loop(), ascii_only)
    assert (dict(result.findings), result.rows, result.booked) == ({}, ORDERS + 1, result.total)


def test_a_database_that_can_not_store_a_name_is_refused_with_the_remedy(stage: LedgerStage) -> None:
    enriched.write_raw(stage.bootstrap, stage.topic, ODD_NAME)
    with pytest.raises(Refused, match=r"no equivalent in encoding .LATIN1.; name a database with encoding UTF8"):
        stage.book(stage.handler(database=_database_of(stage, "LATIN1")))


def test_a_check_takes_longer_than_a_users_time_outs(stage: LedgerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are meant for short transactions; a check sorts all rows, and reads the topic inside its transaction."""
    stage.book()
    user = f"{stage.schema}_hurried"
    with psycopg.connect(stage.url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN SUPERUSER".encode())
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(f"ALTER ROLE {user} SET {setting} = 50".encode())

    def slow(record: LogRecord) -> ledger_check._Expected:
        if record.offset() == 0:
            time.sleep(0.3)
        return expected(record)

    expected = ledger_check._expected
    monkeypatch.setattr(ledger_check, "_expected", slow)
    hurried = dataclasses.replace(stage.database, url=stage.url.replace("//brew@", f"//{user}@"))
    assert dict(check(stage.loop(), hurried).findings) == {}


def test_a_restored_dump_raises_the_alarm_and_nothing_is_missing(stage: LedgerStage) -> None:
    """Kafka is ahead of a database that was set back: the database's offset is the one that counts."""
    _book_more_and_restore(stage)
    handler = stage.book()
    assert [alarm.split(":")[0] for alarm in handler.booked.alarms] == ["ledger-rollback"] * 4
    stage.proven(2 * ORDERS)


def test_the_larger_of_both_offsets_loses_rows(stage: LedgerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published pattern, in place of ours: after a restore it goes on where Kafka stands, and the check sees it."""
    _book_more_and_restore(stage)

    def larger(row: OffsetRow, assignment: AssignedPartition) -> Start:
        return Start(max(row.next_offset, assignment.committed or 0))

    monkeypatch.setattr(ledger_handler, "start", larger)
    monkeypatch.setattr(ledger_handler.Ledger, "require", lambda *_: None)
    monkeypatch.setattr(ledger_handler.Ledger, "advance", advance_unguarded)
    stage.book()
    enriched.write(stage.bootstrap, stage.topic, 40, seed=3, first=3000)
    stage.book()
    assert stage.check().findings["ledger-missing"] == ORDERS


def _book_more_and_restore(stage: LedgerStage) -> None:
    stage.book()
    tables = ("kafka_offsets", "ledger_entries", "ledger_balances")
    _sql(stage, *(f"CREATE TABLE dump_{table} AS TABLE {table}" for table in tables))
    enriched.write(stage.bootstrap, stage.topic, ORDERS, seed=2, first=1000)
    stage.book()
    _sql(stage, *(f"TRUNCATE {table}; INSERT INTO {table} TABLE dump_{table}" for table in tables))


def test_two_members_on_the_same_partitions_book_each_order_once(stage: LedgerStage) -> None:
    """Nobody keeps static members apart but the locked row and the guarded update."""
    first, second = stage.handler(), stage.handler()
    with following(stage.loop(batch=20), first) as first_loop, following(stage.loop(batch=30), second) as second_loop:
        first_loop.done()
        second_loop.done()
    assert first.booked.entries + second.booked.entries == ORDERS
    stage.proven(ORDERS)


def test_without_lock_and_guard_two_members_book_twice(stage: LedgerStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with the position written as if nobody else were there: the check names the double rows."""
    monkeypatch.setattr(ledger_handler.Ledger, "require", lambda *_: None)
    monkeypatch.setattr(ledger_handler.Ledger, "advance", advance_unguarded)
    barrier = threading.Barrier(2, timeout=20)
    assigned = LedgerHandler.assigned

    def assigned_together(
        handler: LedgerHandler, assignments: list[AssignedPartition], deadline: Deadline
    ) -> dict[int, int]:
        positions = dict(assigned(handler, assignments, deadline))
        barrier.wait()
        return positions

    monkeypatch.setattr(LedgerHandler, "assigned", assigned_together)
    with following(stage.loop(), stage.handler()) as a, following(stage.loop(), stage.handler()) as b:
        a.done()
        b.done()
    assert stage.check().findings["ledger-duplicate"] == ORDERS


def test_members_that_come_and_go_while_working_leave_no_double_row(stage: LedgerStage) -> None:
    """Group assignment: the second member takes half of the partitions in the middle of the work, and leaves again."""

    class Member(LedgerHandler):
        def __init__(self) -> None:
            super().__init__(stage.database, stage.group, stage.topic, lambda _: None, ledger_handler.StoreCrash())
            self.has_partitions = threading.Event()

        def assigned(self, assignments: list[AssignedPartition], deadline: Deadline) -> dict[int, int]:
            self.has_partitions.set()
            return dict(super().assigned(assignments, deadline))

        def handle(self, slices: list[PartitionBatch], context: HandlerContext) -> None:
            super().handle(slices, context)
            time.sleep(0.005)  # work that takes its time, so that the rebalances meet it

    first, second = Member(), Member()
    loop = stage.loop(partitions=None, batch=3, follow=True)
    with following(loop, first) as first_loop:
        until(lambda: first.booked.entries > 0, "the first one books")
        with following(loop, second) as second_loop:
            assert second.has_partitions.wait(30)
            enriched.write(stage.bootstrap, stage.topic, ORDERS, seed=2, first=1000)
            until(lambda: second.booked.entries >= 20, "the second one books")
            second_loop.stop.set()
            second_loop.done()
        until(lambda: first.booked.entries + second.booked.entries == 2 * ORDERS, "all are booked")
        first_loop.stop.set()
        first_loop.done()
    stage.proven(2 * ORDERS)


def test_a_stopped_member_holds_its_lock_for_a_while_and_overlaps_with_nobody(stage: LedgerStage) -> None:
    """SIGSTOP inside the transaction: the next member waits for the lock and goes on; the zombie books nothing."""
    times = ["--batch", "50", "--idle-timeout-s", "3", "--lock-timeout-s", "0.5"]
    dying = ["--partitions", "0,1,2,3", "--crash-point", "before-commit", "--crash-how", "stop", "--json"]
    asleep = threading.Event()

    class Next(LedgerHandler):
        """Has joined before the other one sleeps, so that it comes while the lock is held, however slow its start."""

        def assigned(self, assignments: list[AssignedPartition], deadline: Deadline) -> dict[int, int]:
            assert asleep.wait(60)
            return dict(super().assigned(assignments, deadline))

    database = dataclasses.replace(stage.database, lock_s=0.5)
    handler = Next(database, stage.group, stage.topic, lambda _: None, ledger_handler.StoreCrash())
    with (
        following(stage.loop(), handler) as running,
        subprocess.Popen(stage.command(*times, *dying), cwd=ROOT, stdout=subprocess.PIPE, text=True) as stopped,
    ):
        try:
            os.waitpid(stopped.pid, os.WUNTRACED)  # returns once it has stopped
            asleep.set()
            assert running.done().postponed >= 1
            assert handler.booked.entries == ORDERS
            os.kill(stopped.pid, signal.SIGCONT)
            out, _ = stopped.communicate(timeout=30)
            assert '"entries": 0' in out
        finally:
            stopped.kill()
    stage.proven(ORDERS)


def test_a_server_that_dies_and_comes_back_is_waited_for(stage: LedgerStage, postgres: Postgres) -> None:
    """A backend killed inside the transaction, then the whole server: both end in `RetryLater`, no order is lost."""
    done = threading.Event()

    class Killer(LedgerHandler):
        def _book(self, connection: psycopg.Connection, slices: list[PartitionBatch], entries: list[object]) -> None:
            super()._book(connection, slices, entries)
            if self.booked.entries >= 100 and not done.is_set():
                done.set()
                os.kill(connection.info.backend_pid, signal.SIGKILL)  # the server restarts all of its backends
                connection.execute("SELECT 1")

    handler = Killer(stage.database, stage.group, stage.topic, lambda _: None, ledger_handler.StoreCrash())
    with following(stage.loop(batch=50), handler) as running:
        assert done.wait(20)
        postgres.kill()
        postgres.restart()
        assert running.done().postponed >= 1
    stage.proven(ORDERS)


def test_a_silent_server_is_cut_off_at_the_deadline(stage: LedgerStage, postgres: Postgres) -> None:
    """SIGSTOP of the server: nothing answers, no time-out of its own fires, and the member still does not hang."""
    stage.book()
    handler = stage.handler()
    handler.assigned([], Deadline(5))
    postgres.pause()
    try:
        began = time.monotonic()
        with pytest.raises(RetryLater), handler._database.transaction(Deadline(0.5)) as connection:
            connection.execute("SELECT 1")
        assert time.monotonic() - began < 5  # ten times the deadline, as set on 2026-11-21
    finally:
        postgres.resume()
        handler.close(Deadline(1))


def test_the_command_ends_cleanly_on_sigterm_and_checks_itself(stage: LedgerStage) -> None:
    """`--follow` until SIGTERM: within 10 s, with exit code 0; `--check` then says proven, and 1 once a row is gone."""
    with subprocess.Popen(
        stage.command("--follow", "--json"), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            until(lambda: _rows(stage) == ORDERS, "all are booked")
            program.terminate()
            program.wait(10)
        finally:
            program.kill()
    assert program.returncode == 0
    assert document(run(stage.command("--check", "--json")))["verdict"] == "proven"
    _sql(stage, "DELETE FROM ledger_entries WHERE ctid = (SELECT min(ctid) FROM ledger_entries)")
    checked = run(stage.command("--check", "--json"))
    assert (checked.returncode, document(checked)["findings"]) == (1, {"ledger-missing": 1})


def _rows(stage: LedgerStage) -> int:
    with psycopg.connect(stage.url) as connection:
        if connection.execute("SELECT to_regclass(%s)", [f"{stage.schema}.ledger_entries"]).fetchone() == (None,):
            return 0
        return int(connection.execute(f"SELECT count(*) FROM {stage.schema}.ledger_entries").fetchone()[0])


def test_tables_of_another_group_are_refused(stage: LedgerStage) -> None:
    """Two ledgers in the same tables could not be told apart."""
    stage.book()
    other = dataclasses.replace(stage, group=stage.group + "-other")
    for use in (other.book, other.check):
        with pytest.raises(Refused, match="ledger of group"):
            use()


# Members that take partitions by claim: `--ownership claims`.


def by_claim(stage: LedgerStage, names: Names, client: str, *, follow: bool = True) -> LoopSettings:
    claims = ClaimsSettings(names.topic("claims"), client, 0.5)
    return stage.loop(partitions=None, follow=follow, claims=claims)


def test_a_recreated_topic_is_refused_by_the_ledger_and_by_its_check(stage: LedgerStage) -> None:
    """Its orders have the offsets of booked ones: in the same tables, the check would take them for duplicates."""
    stage.book()
    enriched.recreate_topic(stage.bootstrap, stage.topic)
    for use in (stage.book, stage.check):
        with pytest.raises(Refused, match=r"^topic-recreated: .* another --group and another --schema"):
            use()


def test_a_topic_that_is_recreated_and_filled_under_a_ledger_that_follows_is_refused(stage: LedgerStage) -> None:
    """The client library goes on at the old offset: the new orders below it were skipped, those above booked."""
    handler = stage.handler()
    with following(stage.loop(follow=True), handler) as running:
        until(lambda: handler.booked.entries == ORDERS, "the first topic's orders")
        enriched.recreate_topic(stage.bootstrap, stage.topic)
        enriched.write(stage.bootstrap, stage.topic, 2 * ORDERS, first=ORDERS)
        # It is told before, if it asks the new log while that is still shorter.
        with pytest.raises(Refused, match=r"^topic-recreated: .* when this program started|or the topic was recreated"):
            running.done()
    assert handler.booked.entries == ORDERS


def test_records_that_retention_deleted_are_no_fault_of_the_ledger(stage: LedgerStage) -> None:
    """Their rows and sums stay; a balance that someone changed and a second row are still found."""
    stage.book()
    client = admin(Connection(stage.bootstrap))
    delete_records(client, stage.topic, {0: 60, 2: 1}, Deadline(20))
    result = stage.check()
    assert (dict(result.findings), result.rows, result.records + result.expired) == ({}, ORDERS, ORDERS)
    assert result.expired > 0
    assert result.booked == result.total
    first = 'SELECT * FROM ledger_entries WHERE partition = 0 ORDER BY "offset" LIMIT 1'
    _sql(
        stage,
        f"INSERT INTO ledger_entries {first}",
        "UPDATE ledger_balances SET cents = cents + 1 WHERE customer_id = 'c-00034'",
    )
    assert set(stage.check().findings) == {"ledger-duplicate", "ledger-drift"}


def test_records_that_compaction_removed_are_no_fault_of_the_ledger(
    broker: Broker, postgres: Postgres, names: Names
) -> None:
    """Their rows and sums stay."""
    quick = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001"}
    enriched.make_topic(broker.bootstrap, names.output, **quick)
    stage = _ledger_of(broker, postgres, names)
    order = {"customer_id": "c", "loyalty_tier": "gold", "loyalty_discount": 0.5, "total_cents": 100}
    for cents in range(4):
        time.sleep(0.2)  # each in a segment of its own
        enriched.write_raw(stage.bootstrap, stage.topic, json.dumps(order | {"total_cents": cents}).encode())
    stage.book()
    assert (stage.check().findings, stage.check().rows) == ({}, 4)
    set_config(admin(Connection(broker.bootstrap)), names.output, {"cleanup.policy": "compact"}, Deadline(20))
    until(lambda: stage.check().records < 4, "compaction", 120)
    result = stage.check()
    assert (dict(result.findings), result.rows, result.records + result.expired) == ({}, 4, 4)
    assert result.booked == result.total


def test_two_ledgers_share_a_topic_by_claim_and_each_order_is_booked_once(stage: LedgerStage, names: Names) -> None:
    """One begins, the other gets its share, one leaves; more orders come all the while."""
    with following(by_claim(stage, names, "a"), stage.handler()) as a:
        until(lambda: a.loop.result.records >= ORDERS, "the first one books all")
        watcher = Watcher(Connection(stage.bootstrap), names.topic("claims"))

        def owners() -> list[str | None]:
            watcher.read_new()
            return [row.owner for row in watcher.snapshot(Filter()).rows]

        with following(by_claim(stage, names, "b"), stage.handler()) as b:
            until(lambda: sorted(map(str, owners())) == ["a", "a", "b", "b"], "both have their share")
            enriched.write(stage.bootstrap, stage.topic, ORDERS, first=ORDERS)
            until(lambda: a.loop.result.records + b.loop.result.records >= 2 * ORDERS, "both book")
            a.stop.set()
            a.done()
            until(lambda: owners() == ["b"] * 4, "the other one has all")
        watcher.close()
    assert stage.proven(2 * ORDERS).rows == 2 * ORDERS


def test_a_draining_member_ends_also_where_others_hold_everything(stage: LedgerStage, names: Names) -> None:
    """It waits until what a dead member held would be stale, and then as long as any member of a group."""
    with following(by_claim(stage, names, "a"), stage.handler()) as a:
        until(lambda: a.loop.result.records >= ORDERS, "the first one books all")
        idle = drain(
            stage.loop(partitions=(0,), settle_s=0.2, claims=ClaimsSettings(names.topic("claims"), "a2", 0.15)),
            stage.handler(),
        )
    assert idle.records == 0
    stage.proven(ORDERS)


def test_the_command_takes_partitions_by_claim(stage: LedgerStage, names: Names) -> None:
    """From its options to the rows."""
    options = ("--ownership", "claims", "--claims", names.topic("claims"), "--client-id", "ledger-1")
    report = document(run(stage.command(*options, "--heartbeat-interval-s", "0.5", "--json")))
    assert report["entries"] == ORDERS
    stage.proven(ORDERS)
