"""Ledger and receivers: entries, guards of positions, claims, and what their checks find; no servers."""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import repeat
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import psycopg
import pytest
import redis
import urllib3
from harness.programs import until
from harness.records import FakeRecord as Record
from hypothesis import given
from hypothesis import strategies as some

from brew.cli import exit_code_of
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Denied, KafkaFailure, Refused, UsageError
from brew.fault_injection import CrashMoment, StoreCrash
from brew.offsets import Committed, LogOffsets, SourcePosition
from downstream import check as downstream_check
from downstream import postgres
from downstream.__main__ import downstream
from downstream.check import Findings, TopicSnapshot
from downstream.consume import handler as consuming
from downstream.consume.handler import (
    AssignedPartition,
    HandlerContext,
    LoopSettings,
    NotOwned,
    PartitionBatch,
    RetryLater,
)
from downstream.consume.loop import LoopResult
from downstream.ledger import check as ledger_check
from downstream.ledger.check import Money, _expected
from downstream.ledger.command import Ledger, LedgerHandler, OffsetRow, Start, ledger_command, start
from downstream.ledger.entry import Entry, Problem, entry
from downstream.postgres import Database, DatabaseSettings, _remedy
from downstream.receive import check as receive_check
from downstream.receive import command
from downstream.receive import postgres as outbox
from downstream.receive import receiver as receiving
from downstream.receive.check import CheckResult
from downstream.receive.postgres import CallSettings, Deliverer, RetentionCheck
from downstream.receive.receiver import BackgroundThread, Receiver, ReceiverSettings, identifier, messages, points_grant
from downstream.receive.redis import RedisReceiver, RedisScriptReceiver, RedisSettings

ORDER = {"customer_id": "c-1", "order_id": "o-1", "total_cents": 980, "loyalty_tier": "gold", "loyalty_discount": 0.15}


def _assigned(committed: int | None = None, committed_topic_id: str | None = None) -> AssignedPartition:
    return AssignedPartition("t", "id", 3, committed, 10, 90, committed_topic_id, committed)


@pytest.mark.parametrize("committed", [None, 0, 20, 49, 50, 51])
def test_kafkas_offset_never_moves_the_ledger(committed: int | None) -> None:
    """Without an alarm behind the database, equal or missing; ahead of it, the larger of the two would lose rows."""
    begin = start(OffsetRow(3, 50, "id"), _assigned(committed))
    alarm = "ledger-rollback: Kafka's offset of t[3] is 51 and the database is at 50" if committed == 51 else "None"
    assert begin.offset == 50
    assert str(begin.alarm).startswith(alarm)


def test_a_position_that_was_claimed_before_the_work_is_no_rollback() -> None:
    """`--flow at-most-once`: the database was away, or the process died, between the claim and the commit."""
    assert start(OffsetRow(3, 50, "id"), replace(_assigned(50), committed=60)) == Start(50)
    assert start(OffsetRow(3, 49, "id"), replace(_assigned(50), committed=60)).alarm is not None


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (OffsetRow(3, 9, "id"), "input-lost"),
        (OffsetRow(3, 91, "id"), "offset-ahead"),
        (OffsetRow(3, 50, "other"), "topic-recreated"),
    ],
)
def test_a_position_that_is_none_of_this_log_is_refused(row: OffsetRow, name: str) -> None:
    with pytest.raises(Refused, match=f"^{name}: "):
        start(row, _assigned())
    assert [start(OffsetRow(3, offset, "id"), _assigned()).offset for offset in (10, 90)] == [10, 90]


def test_a_position_above_an_end_that_was_asked_for_before_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members of one group during a rolling restart: the other one books while this one waits for its rows."""
    handler = LedgerHandler(DatabaseSettings("postgresql://h/d", "s"), "g", "t", lambda _: None, cast("Any", None))
    rows = {3: OffsetRow(3, 95, "id")}
    monkeypatch.setattr(handler, "_made", True)
    monkeypatch.setattr(handler, "_database", MagicMock())
    monkeypatch.setattr(handler, "_ledger", Mock(lock=lambda *_: rows))
    for at in (95, 97):
        rows[3] = OffsetRow(3, at, "id")
        with pytest.raises(RetryLater, match=f"partition 3 is at {at}, above the log's end"):
            handler.assigned([_assigned()], Deadline(5))
    with pytest.raises(Refused, match=r"^offset-ahead: "):
        handler.assigned([_assigned()], Deadline(5))
    assert handler.assigned([replace(_assigned(), last_stable=97)], Deadline(5)) == {3: 97}


def _entry(order: object, **changed: object) -> Entry:
    value = order if isinstance(order, bytes | None) else json.dumps({**ORDER, **changed}).encode()
    return entry(3, 17, value, SourcePosition("orders", 1, 5).headers())


_TINY = "1e-99999999999999999999"


@pytest.mark.parametrize("cents", ["980", "98.5"])
@pytest.mark.parametrize(
    "change",
    [
        ("}", f', "more": {_TINY}}}'),
        ('"c-1"', str(2**64 - 1)),
        ('"c-1"', str(-(2**63))),
        ('"c-1"', str(2**64)),
        ('"c-1"', "-0"),
        ('"c-1"', "1e0"),
        ('"c-1"', "1.5e1"),
        ("}", ', "more": NaN}'),
        ("}", ', "more": 1e400}'),
        ("}", ', "more": "\\ud800"}'),
        ('"c-1"', '"\\ud800"'),
        ("{", "\ufeff{"),
        ("0.15", "0.1500000000000000001"),
        ("0.15", "0.150"),
        ("0.15", "1500000000.00000001e-10"),
        ("0.15", "1e-400"),
    ],
)
def test_the_ledger_and_its_check_read_odd_records_alike(cents: str, change: tuple[str, str]) -> None:
    """Two parsers, one answer: neither stops at a record, and the check finds no fault where there is none."""
    value = json.dumps(ORDER).replace("980", cents).replace(*change).encode()
    booked, expected = entry(3, 17, value, None), _expected(Record(17, value=value))
    assert expected.books == (booked.problem is None)
    if expected.books:
        assert tuple(expected)[:4] == (booked.customer_id, booked.tier, booked.cents, booked.discount)


def test_an_order_becomes_a_row_with_exact_numbers() -> None:
    """The quick parser takes 1,024 levels and the exact one fewer: between the two lies no end of the ledger."""
    row = _entry(ORDER)
    assert row == Entry(3, 17, "orders/1/5", "o-1", "c-1", "gold", Decimal(980), Decimal("0.15"), None)
    value = json.dumps({**ORDER, "total_cents": 98.5}).replace("}", ', "more": ' + "[" * 1010 + "]" * 1010 + "}")
    assert _entry(value.encode()).problem is Problem.BAD_AMOUNT


NO_AMOUNT = ["1234567890123456789012345678901", "1e30", '"5"', "true", "null"]


@pytest.mark.parametrize("value", ["0.1", "0.10000000000000000555", "123456789012345678901234567890", "-5", *NO_AMOUNT])
def test_an_amount_keeps_every_digit_or_is_none(value: str) -> None:
    text = json.dumps({name: one for name, one in ORDER.items() if name != "total_cents"})
    result = _entry(f'{text[:-1]}, "total_cents": {value}}}'.encode())
    cents, problem = (None, Problem.BAD_AMOUNT) if value in NO_AMOUNT else (Decimal(value), None)
    assert (result.cents, result.problem) == (cents, problem)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"customer_id": ""}, Problem.NO_CUSTOMER),
        ({"customer_id": None}, Problem.NO_CUSTOMER),
        ({"customer_id": "c" * 256}, None),
        ({"customer_id": "c" * 257}, Problem.NO_CUSTOMER),
        ({"customer_id": 7}, None),
        ({"customer_id": {"a": 1}}, Problem.NO_CUSTOMER),
        ({"loyalty_tier": "tin"}, Problem.BAD_TIER),
        ({"loyalty_tier": ["gold"]}, Problem.BAD_TIER),
        ({"loyalty_discount": None}, Problem.BAD_AMOUNT),
    ],
)
def test_what_cannot_be_booked_says_why(changed: dict[str, object], problem: Problem | None) -> None:
    assert _entry(ORDER, **changed).problem == problem


@given(some.binary(max_size=200) | some.none())
def test_no_record_is_an_error(value: bytes | None) -> None:
    result = entry(0, 0, value, [("source.topic", b"\x00"), ("source.partition", b"1" * 5000), ("source.offset", b"1")])
    assert result.problem is not None
    assert not any("\x00" in text for text in result if isinstance(text, str))


def test_partitions_that_are_named_can_not_be_claimed() -> None:
    """Of a with --partitions 0,1 and b with 2,3, each took its share of its own, one: nobody read the other two."""
    words = ["--database", "postgresql://h/d", "--bootstrap", "127.0.0.1:1", "--partitions", "0,1"]
    with pytest.raises(UsageError, match=r"^--partitions names what .*, and with --ownership claims"):
        ledger_command.main([*words, "--ownership", "claims"], standalone_mode=False)


def test_a_wait_longer_than_the_poll_interval_is_refused() -> None:
    settings = DatabaseSettings("postgresql://h/d", "ledger", lock_s=3, statement_s=29.9, idle_s=20)
    settings.check(30)
    with pytest.raises(UsageError, match=r"--statement-timeout-s is 29\.9 s"):
        settings.check(29.9)
    with pytest.raises(UsageError, match=r"--lock-timeout-s is 0\.0009 s and must be at least 0\.001 s"):
        DatabaseSettings("postgresql://h/d", "ledger", lock_s=0.0009).check(30)  # 0 ms, which would mean no time-out
    DatabaseSettings("postgresql://h/d", "ledger", lock_s=0.001).check(30)
    with pytest.raises(UsageError, match="--schema"):
        DatabaseSettings("postgresql://h/d", "no; drop")
    assert "postgresql" not in repr(settings)


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ('FATAL:  password authentication failed for user "brew"', True),
        ("fe_sendauth: no password supplied", True),
        ('FATAL:  database "nodb" does not exist', True),
        ('FATAL:  role "nobody" does not exist', True),
        ('FATAL:  no pg_hba.conf entry for host "::1", user "brew", database "brew", no encryption', True),
        ('FATAL:  permission denied for database "brew"', True),
        ("Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?", False),
        ("FATAL:  the database system is starting up", False),
        ("FATAL:  sorry, too many clients already", False),
        ("connection timeout expired", False),
    ],
)
def test_a_refused_login_ends_the_program_and_an_absent_server_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, answer: str, refused: bool
) -> None:
    def connect(*_given: object, **_more: object) -> None:
        raise psycopg.OperationalError(f'connection failed: connection to server at "h", port 5432 failed: {answer}')

    monkeypatch.setattr(psycopg, "connect", connect)
    database = Database(DatabaseSettings("postgresql://h/d", "ledger"), "test")
    expected = "; correct user, password and database name in --database" if refused else "^database: connection failed"
    with pytest.raises(Refused if refused else RetryLater, match=expected), database.transaction(Deadline(5)):
        pass
    database.close()


def test_a_session_whose_options_a_pooler_drops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables were made in the schema `public`, whatever --schema was, and no wait had an end."""
    session = MagicMock(closed=False)
    session.fileno.return_value = 0
    session.execute.return_value.fetchall.return_value = [("public",)]
    monkeypatch.setattr(psycopg, "connect", connect := Mock(return_value=session))
    database = Database(DatabaseSettings("postgresql://h/d", "ledger", 3, 10, 0.001), "test")
    with pytest.raises(Refused, match="search_path is 'public' instead of 'ledger'"), database.transaction(Deadline(5)):
        pass
    session.close.assert_called_once()
    options = "-c lock_timeout=3000 -c statement_timeout=10000 -c idle_in_transaction_session_timeout=1"
    assert connect.call_args.kwargs["options"] == f"{options} -c search_path=ledger"
    database.close()


def test_a_database_that_takes_no_writes_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-by, and a managed server whose disk is full, answer alike: the message told neither."""
    session = MagicMock(closed=False)
    session.transaction.return_value.__exit__.return_value = False
    session.fileno.return_value = 0
    database = Database(DatabaseSettings("postgresql://h/d", "ledger"), "test")
    monkeypatch.setattr(database, "_open", lambda _deadline: session)
    with pytest.raises(Refused, match=r"; name the primary in --database"), database.transaction(Deadline(5)):
        raise psycopg.errors.ReadOnlySqlTransaction("cannot execute INSERT in a read-only transaction")
    with database.transaction(Deadline(5)):
        pass
    with pytest.raises(RetryLater, match=r"; name the primary in --database"), database.transaction(Deadline(5)):
        raise psycopg.errors.ReadOnlySqlTransaction("after a fail-over, before the address leads to the new primary")
    assert session.close.call_count == 2, "only a new session reaches the new primary"
    database.close()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (psycopg.errors.NumericValueOutOfRange("bigint out of range"), r" \(SQL state 22003; the server's log has"),
        (psycopg.errors.UndefinedColumn('column "until" does not exist'), "; name another --schema: these tables are"),
        (psycopg.DataError("text fields cannot contain NUL bytes"), "NUL bytes; correct the cause, or name another"),
        (psycopg.OperationalError("the connection is lost"), "; check that the server runs and answers"),
    ],
)
def test_each_refusal_of_the_database_says_what_to_do(error: psycopg.Error, remedy: str) -> None:
    """An unknown SQL state had no advice, and an error of the client library the one about an absent server."""
    assert re.search(remedy, f"{error}{_remedy(error)}")


class _SilentPostgres(socketserver.StreamRequestHandler):
    """Accepts a session, as a pooler does, and answers nothing more."""

    def handle(self) -> None:
        self.rfile.read(int.from_bytes(self.rfile.read(4)) - 4)
        for kind, content in ((b"R", bytes(4)), (b"S", b"client_encoding\0UTF8\0"), (b"Z", b"I")):
            self.wfile.write(kind + (len(content) + 4).to_bytes(4) + content)
        self.rfile.read()


def test_a_session_whose_server_never_answers_ends_with_its_deadline() -> None:
    """Its first question, about durability, was asked outside of the deadline: the program hung, and lost its turn."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _SilentPostgres) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        url = f"postgresql://u@127.0.0.1:{server.server_address[1]}/d?sslmode=disable&gssencmode=disable"
        database, refusals = Database(DatabaseSettings(url, "ledger"), "test"), list[RetryLater]()

        def ask() -> None:
            with pytest.raises(RetryLater) as refusal, database.transaction(Deadline(0.2)):
                pass
            refusals.append(refusal.value)

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(20)
        server.shutdown()
        assert "database: " in str(refusals)
        database.close()


def test_a_session_that_has_answered_in_time_is_not_cut_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """It idles until the next batch, and its number may be another file's by then."""
    monkeypatch.setattr(postgres, "_cut", cut := Mock())
    session = cast("Any", Mock(fileno=lambda: 7))
    with postgres._cut_after(Deadline(20), session):
        pass
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
    cut.assert_not_called()
    with postgres._cut_after(Deadline(1e-9), session):
        until(lambda: cut.called, "the cut")
    cut.assert_called_once_with(7)


@pytest.mark.parametrize(
    ("answer", "expected", "text"),
    [
        (redis.AuthenticationError("Authentication required."), Refused, "; correct user and password in --redis"),
        (redis.ReadOnlyError("You can't write against a read only replica."), Refused, "; name the primary in --redis"),
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), RetryLater, "loading"),
        (redis.ConnectionError("Connection refused"), RetryLater, "Connection refused"),
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), RetryLater, "NOREPLICAS"),
        (redis.ResponseError("MISCONF Errors writing to the AOF file: No space left"), RetryLater, "MISCONF"),
        (redis.ResponseError("BUSY Redis is busy running a script."), RetryLater, "BUSY"),
        (redis.exceptions.MasterDownError("Link with MASTER is down"), RetryLater, "MASTER is down"),
        (redis.ResponseError("WRONGTYPE a key that holds NOREPLICAS"), Refused, "the key that another program changed"),
    ],
)
def test_a_login_that_redis_refuses_ends_the_program_and_an_absent_redis_is_waited_for(
    answer: redis.RedisError, expected: type[Exception], text: str
) -> None:
    receiver = RedisScriptReceiver(ReceiverSettings("g", "t", identifier("source")), RedisSettings("redis://h:1/0"))
    with pytest.raises(expected, match=text), receiver._errors_mapped():
        raise answer


class FakeRedis(socketserver.ThreadingTCPServer):
    """Answers each command with OK, or as ``answers`` say, and remembers them; drops the connection at None."""

    daemon_threads = True

    def __init__(self, **answers: bytes | None) -> None:
        super().__init__(("127.0.0.1", 0), _FakeRedisHandler)
        self.answers: dict[str, bytes | None] = {"HELLO": b"-ERR unknown command", **answers}
        self.config = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}
        self.commands: list[str] = []
        threading.Thread(target=self.serve_forever, args=[0.01], daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)

    @property
    def settings(self) -> RedisSettings:
        return RedisSettings(f"redis://127.0.0.1:{self.server_address[1]}/0?protocol=2")


class _FakeRedisHandler(socketserver.StreamRequestHandler):
    server: FakeRedis

    def handle(self) -> None:
        while line := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2].decode() for _ in range(int(line[1:]))]
            self.server.commands.append(words[0])
            answer = self.server.answers.get(words[0], b"+OK")
            if words[0] == "CONFIG" and answer == b"+OK":
                answer = "\r\n".join(f"${len(word)}\r\n{word}" for word in (words[2], self.server.config[words[2]]))
                answer = b"*2\r\n" + answer.encode()
            if answer is None:
                return
            self.wfile.write(answer + b"\r\n")


def scripted(server: FakeRedis, **more: Any) -> RedisScriptReceiver:
    settings = ReceiverSettings("g", "t", identifier("source"), tell=more.pop("tell", lambda _: None))
    return RedisScriptReceiver(settings, server.settings, **more)


def test_a_database_that_redis_does_not_have_is_refused_by_its_own_name() -> None:
    """A connection selects its database first: the refusal of that one is not one of CONFIG GET."""
    with FakeRedis(SELECT=b"-ERR DB index is out of range") as server:
        settings = RedisSettings(server.settings.url.replace("/0", "/99"))
        receiver = RedisScriptReceiver(ReceiverSettings("g", "t", identifier("source")), settings, accept_weaker=True)
        with pytest.raises(Refused, match=r"DB index is out of range; correct --redis \(REDIS_URL\)"):
            receiver.prepare()


MESSAGE = [receiving.Message("m", "c", 1, b"")]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "maxmemory-policy is 'allkeys-lru', must be 'noeviction'"),
        ({"appendfsync": "everysec", "appendonly": "no"}, "appendonly is 'no', must be 'yes'; appendfsync is"),
        (None, "CONFIG GET is not allowed"),
    ],
)
def test_the_settings_of_redis_are_checked_again_when_another_server_answers(
    changed: dict[str, str] | None, found: str
) -> None:
    """After a fail-over the receiver went on with a server that evicts claims: they were checked at the start only."""
    with FakeRedis(EVALSHA=None) as server:
        receiver = scripted(server)
        receiver.prepare()
        with pytest.raises(RetryLater):
            receiver.claim(MESSAGE, leased([]))  # its connection is cut
        server.config |= changed or {}
        server.answers |= {"EVALSHA": b":1", **({} if changed else {"CONFIG": b"-NOPERM no permissions"})}
        with pytest.raises(Refused, match=f"^Redis can lose claims: {found}"):
            receiver.claim(MESSAGE, leased([]))
        assert server.commands.count("EVALSHA") == 1
        receiver.close(Deadline(1))


def test_an_accepted_weakness_of_redis_is_told_once_and_another_one_when_it_comes() -> None:
    told: list[str] = []
    with FakeRedis(EVALSHA=None) as server:
        server.config["appendonly"] = "no"
        receiver = scripted(server, accept_weaker=True, tell=told.append)
        receiver.prepare()
        server.config["appendfsync"] = "everysec"
        for _ in range(3):
            with pytest.raises(RetryLater):
                receiver.claim(MESSAGE, leased([]))
        receiver.close(Deadline(1))
    expected = ["appendonly is 'no', must be 'yes'", "appendfsync is 'everysec', must be 'always'"]
    assert told == [f"at least once only: {setting}" for setting in expected]


def test_an_effect_waits_for_a_disk_that_filled_up_after_its_claim() -> None:
    """The library puts the command before a pipeline's error: the receiver ended with "a retry would not help"."""
    with FakeRedis(HINCRBY=b"-MISCONF Errors writing to the AOF file: No space left", EXEC=b"-EXECABORT") as server:
        receiver = RedisReceiver(ReceiverSettings("g", "t", identifier("source")), server.settings)
        receiver.prepare()
        with pytest.raises(RetryLater, match="pipeline caused error: MISCONF"):
            receiver.claim([receiving.Message("m", "MISCONF", 1, b"")], leased([]))
        server.answers["HINCRBY"] = b"-WRONGTYPE Operation against a key"
        with pytest.raises(Refused, match="the key that another program changed"):
            receiver.claim([receiving.Message("m", "MISCONF", 1, b"")], leased([]))
        receiver.close(Deadline(1))


def test_a_redis_that_became_a_replica_is_waited_for_over_a_new_connection() -> None:
    """A fail-over ended the receiver, though its address led to the new primary; a replica at the start is refused."""
    with FakeRedis(SET=b"-READONLY You can't write against a read only replica.", GET=b"$2\r\nid") as server:
        receiver = scripted(server)
        with pytest.raises(Refused, match="name the primary in --redis"):
            receiver.claimed_topic_id("id", Deadline(5), replace=False)
        server.answers["SET"] = b"+OK"
        assert receiver.claimed_topic_id("id", Deadline(5), replace=False) == "id"
        server.answers["SET"] = b"-READONLY You can't write against a read only replica."
        with pytest.raises(RetryLater, match="name the primary in --redis"):
            receiver.claimed_topic_id("id", Deadline(5), replace=False)
        server.answers["SET"] = b"+OK"
        assert receiver.claimed_topic_id("id", Deadline(5), replace=False) == "id"
        assert server.commands.count("CONFIG") == 6, "the first three settings, and those of the second connection"
        receiver.close(Deadline(1))


def test_a_lease_ends_with_its_deadline_or_its_partition() -> None:
    now = [0.0]
    context = leased([], deadline=Deadline(10, lambda: now[0]))
    now[0] = 9.9
    context.check(3)
    with pytest.raises(NotOwned, match="4"):
        context.check(4)
    now[0] = 10.0
    with pytest.raises(NotOwned, match="10 s without a poll"):
        context.check(3)


def test_crashes_are_drawn_alike_from_equal_seeds_and_never_without_a_moment() -> None:
    drawn = [
        [StoreCrash(CrashMoment.AFTER_COMMIT, 0.3, seed).due(CrashMoment.AFTER_COMMIT) for seed in range(400)]
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert 80 < sum(drawn[0]) < 160
    assert not StoreCrash().due(CrashMoment.AFTER_COMMIT)
    assert not StoreCrash(CrashMoment.AFTER_COMMIT).due(CrashMoment.BEFORE_COMMIT)
    with pytest.raises(UsageError, match="--crash-prob"):
        StoreCrash(CrashMoment.AFTER_COMMIT, 1.1)


def test_each_name_is_counted_and_has_examples_of_its_own() -> None:
    findings = Findings()
    assert (findings.judged()["verdict"], findings.lines("all is well")) == ("proven", ["proven: all is well"])
    for number in range(20):
        findings.found("often", f"number {number}")
    findings.found("once", "the only one", 7)
    report = findings.judged(rows=3)
    assert (report["verdict"], report["rows"], report["findings"]) == ("violated", 3, {"often": 20, "once": 7})
    assert report["examples"] == [*(f"often: number {n}" for n in range(5)), "once: the only one"]
    assert findings.lines("all is well")[-1] == "20 often, 7 once"


# The ledger's two guards.


BATCH = PartitionBatch(3, 50, 60, [])


@pytest.mark.parametrize(("stands", "free"), [(49, False), (50, True), (51, False), (None, False)])
def test_a_batch_is_booked_where_the_database_stands_exactly_at_its_start(stands: int | None, free: bool) -> None:
    rows = {} if stands is None else {3: OffsetRow(3, stands, "id")}
    with contextlib.nullcontext() if free else pytest.raises(RetryLater, match="another process moved it"):
        Ledger("g", "t").require(rows, [BATCH])


@pytest.mark.parametrize(("moved", "free"), [(0, False), (1, False), (2, True)])
def test_every_position_of_a_batch_moves_or_none_does(moved: int, free: bool) -> None:
    connection = SimpleNamespace(execute=lambda *_statement: SimpleNamespace(rowcount=moved))
    with contextlib.nullcontext() if free else pytest.raises(RetryLater, match=f"{2 - moved} of 2 positions"):
        Ledger("g", "t").advance(connection, [BATCH, PartitionBatch(4, 0, 1, [])])


# The ledger's check.

HALF_OFF = {"customer_id": "c", "loyalty_tier": "gold", "total_cents": 100, "loyalty_discount": 0.5}


def booked(offset: int, cents: int = 100, *, books: bool = True) -> tuple[Any, ...]:
    return (offset, "c", "gold", Decimal(cents), Decimal("0.5"), books)


def compared(
    stands: int, records: Sequence[Record], rows: Iterable[tuple[Any, ...]], removed: Sequence[int] = ()
) -> tuple[Any, Any]:
    checked, balances = ledger_check.CheckResult(), defaultdict[tuple[str, str], Money](Money)
    comparison = ledger_check._PartitionComparison(checked, balances, 3, stands, removed.__contains__)
    comparison.compare(-1, iter(records), iter(rows))
    return checked, balances


@pytest.mark.parametrize(
    ("rows", "findings"),
    [
        ([0, 1, 2], {}),
        ([0, 2], {"ledger-missing": 1}),
        ([0, 1, 1, 2], {"ledger-duplicate": 1}),
        ([0, 1, 2, 3], {"ledger-drift": 1}),
        ([0, 1], {"ledger-missing": 1}),
        ([0, 1, 2, 4], {"ledger-drift": 1}),
        ([-1, 0, 1, 2], {"ledger-drift": 1}),
    ],
)
def test_the_ledger_has_one_row_for_each_record_below_its_position(rows: list[int], findings: dict[str, int]) -> None:
    records = [Record(n, value=json.dumps(HALF_OFF).encode()) for n in range(4)]
    checked, balances = compared(3, records, map(booked, rows))
    assert dict(checked.findings) == findings
    assert (checked.records, checked.waiting, checked.rows) == (3, 1, len(rows))
    assert balances == {("c", "gold"): Money(3, Decimal(300), Decimal("150.0"))}


@pytest.mark.parametrize(
    ("rows", "expired", "findings"),
    [
        ([0, 1, 2, 3], 2, {}),
        ([0, 2, 2, 3], 2, {"ledger-duplicate": 1}),
        ([1, 2, 3], 2, {"ledger-missing": 1}),
        ([0, 1, 2, 3, 4], 2, {"ledger-drift": 1}),
        ([0, 1, 2, 3, 9], 2, {"ledger-drift": 1}),
    ],
)
def test_rows_of_records_that_compaction_removed_keep_their_sums(
    rows: list[int], expired: int, findings: dict[str, int]
) -> None:
    """Those are below the position: 1 and 2. At 4 an aborted record still is, and 9 is not read yet."""
    records = [Record(n, value=json.dumps(HALF_OFF).encode()) for n in (0, 3, 5)]
    checked, _ = compared(6, records, map(booked, sorted([*rows, 5])), [1, 2, 9])
    assert dict(checked.findings) == findings
    assert (checked.expired, checked.rows) == (expired, len(rows) + 1)


def test_a_retention_that_is_raised_under_a_running_receiver_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims went on expiring, and what `--again` read later had its effect twice. An outage proves nothing."""
    monkeypatch.setattr(receiving, "_PAUSE_S", 0.001)
    answers: list[Exception] = [KafkaFailure("no leader"), DeadlineExceeded("no answer"), Denied("no right")]

    def check() -> None:
        if not answers:
            raise Refused("a message could be redelivered after its claim was deleted")
        raise answers.pop(0)

    checked = RetentionCheck(check, 0.001)
    checked.start()
    checked._thread.join(5)
    with pytest.raises(Refused, match="redelivered"):
        checked.check()


@pytest.mark.parametrize(("weaker", "keep_days", "checked"), [(False, 10, 1), (True, 10, 0), (False, 0, 0)])
def test_the_command_checks_the_retention_while_claims_expire(
    weaker: bool, keep_days: float, checked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Claiming()
    monkeypatch.setattr(command, "_reach_and_keep_s", lambda *_: keep_days * DAY or None)
    monkeypatch.setattr(command, "_receiver", lambda *_: receiver)
    monkeypatch.setattr(command, "_run", lambda *_: LoopResult())
    words = ["receive", "--database", "postgresql://h/d", "--keep-days", str(keep_days), "--json"]
    assert exit_code_of(downstream, "downstream", [*words, *(["--accept-weaker"] if weaker else [])]) == 0
    assert [type(one) for one in receiver.background] == [RetentionCheck] * checked


@pytest.mark.parametrize("compacted", [True, False])
def test_an_aborted_record_that_is_still_there_was_not_removed(
    compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstream_check, "scan", lambda *_: iter([[Record(0), Record(4)], [Record(7)]]))
    settings = LoopSettings(Connection("b:1"), "g", "t")
    removed = TopicSnapshot(settings, "id", {3: LogOffsets(0, 9, 9)}, {}, compacted).removed(3)
    assert [removed(offset) for offset in (1, 2, 4, 5, 7, 8)] == [
        compacted and offset not in {4, 7} for offset in (1, 2, 4, 5, 7, 8)
    ]


@pytest.mark.parametrize(
    ("value", "row"), [(HALF_OFF, booked(0, 101)), (HALF_OFF, booked(0, books=False)), ({}, booked(0))]
)
def test_a_row_that_differs_from_its_record_is_found(value: dict[str, object], row: tuple[Any, ...]) -> None:
    checked, balances = compared(1, [Record(value=json.dumps(value).encode())], [row])
    assert dict(checked.findings) == {"ledger-drift": 1}
    assert bool(balances) == bool(value)


# The receivers' check.


@pytest.mark.parametrize(
    ("count", "below", "findings"),
    [
        (0, True, {"receiver-lost": 1}),
        (1, True, {}),
        (2, True, {"receiver-duplicate": 1}),
        (4, True, {"receiver-duplicate": 3}),
        (0, False, {}),
        (1, False, {}),
        (2, False, {"receiver-duplicate": 1}),
    ],
)
def test_a_message_has_one_effect_and_above_the_position_one_at_most(
    count: int, below: bool, findings: dict[str, int]
) -> None:
    checked = receive_check.CheckResult()
    receive_check._judge(checked, "m", count, below=below)
    assert dict(checked.findings) == findings
    assert (checked.effects, checked.duplicates) == (count, max(0, count - 1))


@pytest.mark.parametrize(
    ("points", "deleted", "findings"),
    [
        ({"a": 3}, False, {}),
        ({"a": 4}, False, {"receiver-duplicate": 1}),
        ({"a": 2}, False, {"receiver-lost": 1}),
        ({}, False, {"receiver-lost": 1}),
        ({"a": 3, "b": 1}, False, {"receiver-duplicate": 1}),
        ({"a": 2}, True, {"receiver-lost": 1}),
        ({"a": 3}, True, {}),
        ({"a": 4}, True, {}),
    ],
)
def test_points_are_compared_from_either_side(points: dict[str, int], deleted: bool, findings: dict[str, int]) -> None:
    """Retention deletes messages and not their points: more than the log explains may be right, fewer can not."""
    checked = receive_check.CheckResult()
    receive_check._compare_points(checked, [("a", 1), ("a", 2)], points, deleted=deleted)
    assert dict(checked.findings) == findings


# What a receiver is given.


def test_of_several_records_with_one_id_the_first_counts() -> None:
    first = Record(value=b'{"quantity":2,"customer_id":"c"}', source=7)
    records = [first, Record(1, source=7), Record(2), Record(3)]
    received = messages("t", records, identifier("source"))
    assert [one.message_id for one in received] == ["in/0/7", "@t/3/2", "@t/3/3"]
    assert received[0].points == 2


def test_each_output_of_one_input_is_a_message_of_its_own() -> None:
    """A function that returns a list writes several records with one source position; the index tells them apart."""
    outputs = [Record(n, headers=SourcePosition("in", 0, 7, n).headers()) for n in range(3)]
    ids = ["in/0/7", "in/0/7#1", "in/0/7#2"]
    assert [one.message_id for one in messages("t", [*outputs, *outputs], identifier("source"))] == ids
    assert [entry(3, one.offset(), b"{}", one.headers()).source for one in outputs] == ids


def test_a_record_whose_headers_can_not_be_read_has_the_id_of_its_own_position() -> None:
    """The receiver refuses it, and says how to leave it out; afterwards the check reads it."""
    record = Record(5)
    record.headers = Mock(side_effect=SystemError("returned a result with an exception set"))
    assert identifier("source")("t", record) == "@t/3/5"


def test_an_id_that_an_index_can_not_take_is_a_digest_and_a_customers_name_has_limits() -> None:
    """`f:` and 254 characters make 256, one more is one too many; a name has 1 to 256."""
    for length, whole in ((254, True), (255, False)):
        [message] = messages("t", [Record(value=json.dumps({"f": "x" * length}).encode())], identifier("field:f"))
        assert (message.message_id == "f:" + "x" * length) is whole
    values = [json.dumps({"customer_id": "c" * length}).encode() for length in (0, 1, 256, 257)]
    assert [points_grant(value)[0] != "-" for value in values] == [False, True, True, False]


def test_a_field_that_is_nested_too_deep_to_be_an_id_stops_no_other_message() -> None:
    """The parser reads more levels than it writes: such a record has its own position as its id."""
    values = [b'{"f":%s1%s}' % (b"[" * depth, b"]" * depth) for depth in (100, 1000)]
    records = [Record(number, value=value) for number, value in enumerate(values)]
    ids = [message.message_id for message in messages("t", records, identifier("field:f"))]
    assert ids == ["f:" + "[" * 100 + "1" + "]" * 100, f"@t/{records[1].partition()}/1"]


def test_two_numbers_of_more_than_64_bits_are_two_ids() -> None:
    """Both became one double: the second order had no effect, and the check found nothing missing."""
    numbers = ("18446744073709551616", "18446744073709551617", "1.50", "7")
    records = [Record(place, value=b'{"f":%b}' % number.encode()) for place, number in enumerate(numbers)]
    ids = [message.message_id for message in messages("t", records, identifier("field:f"))]
    assert ids == ["f:18446744073709551616", "f:18446744073709551617", "f:1.5", "f:7"]


class Claiming(Receiver):
    """Knows the ids that it was given; ``away`` says that its store is."""

    def __init__(self, message_id: str = "source", **settings: Any) -> None:
        super().__init__(ReceiverSettings("g", "t", identifier(message_id), **settings))
        self.known: set[str] = set()
        self.claimed: list[receiving.Message] = []
        self.away = False

    def claim(self, messages: Sequence[receiving.Message], context: HandlerContext) -> int:  # noqa: ARG002
        if self.away:
            raise RetryLater("the store is away", 0.1)
        self.claimed += messages
        fresh = {one.message_id for one in messages} - self.known
        self.known |= fresh
        return len(fresh)


def leased(reports: list[Mapping[int, int]], deadline: Deadline | None = None) -> HandlerContext:
    return HandlerContext(deadline or Deadline(10), frozenset({3}), lambda _: None, lambda _: None, reports.append)


def test_a_position_is_told_behind_the_effects_and_not_when_they_failed() -> None:
    """The round is done again; what is redelivered counts as repeated and has no second effect."""
    receiver, reports = Claiming(), list[Mapping[int, int]]()
    batch = [PartitionBatch(3, 0, 2, [Record(0, source=0), Record(1, source=1)])]
    receiver.away = True
    with pytest.raises(RetryLater):
        receiver.handle(batch, leased(reports))
    assert (reports, receiver.received.messages) == ([], 0)
    receiver.away = False
    for _ in range(2):
        receiver.handle(batch, leased(reports))
    assert reports == [{3: 2}, {3: 2}]
    assert (receiver.received.messages, receiver.received.effects, receiver.received.repeated) == (4, 2, 2)


def test_nothing_is_claimed_of_a_partition_that_is_not_ours_any_more() -> None:
    receiver, reports = Claiming(), list[Mapping[int, int]]()
    batch = [PartitionBatch(p, 0, 1, [Record(0, source=p)]) for p in (3, 4)]
    with pytest.raises(NotOwned):
        receiver.handle(batch, leased(reports))
    assert (reports, receiver.known) == ([], set())


@pytest.mark.parametrize(("again", "starts"), [(True, [10, 10, 15]), (False, [20, 20, 20])])
def test_all_is_read_again_once_and_not_with_every_assignment(again: bool, starts: list[int]) -> None:
    """
    The group's offset is still the one from before: a store that was away for a moment ended the reading.

    A rebalance gives the partition back, too: it goes on where this process was.
    """
    receiver = Claiming(again=again)
    assignment = AssignedPartition("t", "id", 3, committed=20, first=10, last_stable=90)
    batch = [PartitionBatch(3, 10, 15, [Record(10, source=0)])]
    begun = [receiver.assigned([assignment], Deadline(10))[3]]
    receiver.away = True
    with pytest.raises(RetryLater):
        receiver.handle(batch, leased([]))
    receiver.away = False
    begun.append(receiver.assigned([assignment], Deadline(10))[3])
    receiver.handle(batch, leased([]))
    begun.append(receiver.assigned([assignment], Deadline(10))[3])
    assert begun == starts
    if again:
        with pytest.raises(Refused, match=r"^input-lost: .* was read again up to 15, .* before 16; .* with --again"):
            receiver.assigned([AssignedPartition("t", "id", 3, 20, 16, 90)], Deadline(10))


@pytest.mark.parametrize("how", ["revoked", "lost"])
def test_what_another_member_read_meanwhile_is_not_missed_by_the_one_that_reads_again(how: str) -> None:
    """The partition returns after retention deleted records that the other member had read; its offset shows it."""
    receiver = Claiming(again=True)
    assert receiver.assigned([AssignedPartition("t", "id", 3, 20, 10, 90)], Deadline(10)) == {3: 10}
    receiver.revoked([3], Deadline(10)) if how == "revoked" else receiver.lost([3])
    assert receiver.assigned([AssignedPartition("t", "id", 3, 60, 60, 90)], Deadline(10)) == {3: 60}
    with pytest.raises(Refused, match="input-lost"):
        receiver.assigned([AssignedPartition("t", "id", 3, 60, 61, 90)], Deadline(10))


def test_reading_goes_on_at_the_groups_offset_or_begins_at_the_logs_first() -> None:
    """Of a topic that was made again, an offset below the new log's end would skip records without a word."""
    assert [consuming.start(_assigned(committed)) for committed in (None, 10, 90)] == [10, 10, 90]
    for metadata in (consuming.metadata("id"), ""):  # others who set the offset say nothing of a topic
        assert consuming.start(_assigned(50, consuming.topic_id_in(Committed(50, metadata)))) == 50
    with pytest.raises(Refused, match=r"^topic-recreated: .* id other, .* now has id id;"):
        consuming.start(_assigned(50, consuming.topic_id_in(Committed(50, consuming.metadata("other")))))
    with pytest.raises(Refused, match=r"^input-lost: the group's offset of .* is 9, .* set the group's offset to 10"):
        consuming.start(_assigned(9, "id"))
    above = replace(_assigned(93), end=92)  # others may have set it to the end, above an open transaction
    assert consuming.start(replace(above, committed=92)) == 92
    with pytest.raises(Refused, match=r"^offset-ahead: the group's offset of t\[3\] is 93, and its log ends at 92"):
        consuming.start(above)


@pytest.mark.parametrize(("committed", "topic_id"), [(9, "id"), (50, "other")])
def test_a_claimed_position_is_not_moved_by_the_groups_offset(committed: int, topic_id: str) -> None:
    """The advice was to set Kafka's offset, which a member by claim does not read."""
    claimed = replace(_assigned(committed, topic_id), claimed=True)
    advice = "run `brew claims set-position --partitions 3 --to offset --offset 10` with --group and --topic"
    with pytest.raises(Refused, match=f"the claimed position .*, (or )?{advice}$"):
        consuming.start(claimed)


class Broken(BackgroundThread):
    """Ends at once."""

    def __init__(self) -> None:
        super().__init__("broken", 1)

    def round(self) -> bool:
        raise Refused("the outbox's table is gone")

    def drain(self, _deadline: object) -> None: ...


def test_a_thread_beside_the_receiver_does_not_end_in_silence() -> None:
    """Else a program that follows would go on claiming messages whose requests nobody sends."""
    receiver, broken = Claiming(), Broken()
    receiver.background.append(broken)
    with contextlib.suppress(Refused):  # it may have ended by now
        receiver.tick(leased([]))
    broken._thread.join(5)
    with pytest.raises(Refused, match="table is gone"):
        receiver.tick(leased([]))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the threads beside the receiver tell."""
    told: list[str] = []
    for module in (receiving, outbox):
        monkeypatch.setattr(module, "to_stderr", told.append, raising=False)
    return told


def delivering(url: str) -> Deliverer:
    calls = CallSettings(url)
    return Deliverer("g", DatabaseSettings("postgresql://h/d", "receive"), calls, StoreCrash())


@pytest.mark.parametrize("answer", [503, None])
def test_requests_that_keep_failing_are_told_and_one_that_works_between_ends_it(
    told: list[str], monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    """A program that followed sent nothing for hours, and said nothing."""
    now = [0.0]
    monkeypatch.setattr(consuming, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    deliverer, connection = delivering("http://user:secret@h:1/x?token=secret"), MagicMock()
    request = Mock(return_value=SimpleNamespace(status=answer))
    if answer is None:
        request.side_effect = urllib3.exceptions.ConnectTimeoutError("to /x?token=secret")
    monkeypatch.setattr(deliverer._http, "request", request)
    for now[0] in (0, 9.9, 10, 10.1, 69.9, 70):
        deliverer._send(connection, 1, "m", b"", 0)
    why = "answered 503" if answer else "ConnectTimeoutError"
    assert told == [f"requests to http://h:1/x: still failing, will be tried again: {why}"] * 2
    request.side_effect, request.return_value = None, SimpleNamespace(status=200)
    deliverer._send(connection, 1, "m", b"", 0)
    request.return_value = SimpleNamespace(status=503)
    deliverer._send(connection, 1, "m", b"", 0)
    assert len(told) == 2


def test_a_request_that_is_refused_for_good_is_told(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as by a login that has run out: each message is then without its effect."""
    deliverer = delivering("http://h:1/x")
    monkeypatch.setattr(deliverer._http, "request", lambda *_, **__: SimpleNamespace(status=401))
    for deliverer.refused in range(7):
        deliverer._send(MagicMock(), 1, f"m{deliverer.refused}", b"", 0)
    assert told == [f"the request of message m{n} was refused for good: answered 401" for n in range(5)]


@pytest.mark.parametrize(
    ("status", "attempts", "marked"),
    [
        (204, 0, (outbox._SENT, [1])),
        (404, 0, (outbox._REFUSED, ["answered 404", 1])),
        (503, 0, (outbox._LATER, [0.2, 1])),
        (429, 3, (outbox._LATER, [1.6, 1])),
        (302, 99, (outbox._LATER, [60.0, 1])),
        (None, 0, (outbox._LATER, [0.2, 1])),
    ],
)
@pytest.mark.usefixtures("told")
def test_each_answer_leaves_its_own_mark_on_a_row(
    status: int | None, attempts: int, marked: tuple[str, list[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is marked as sent is never sent again, and one that is refused is its message's last."""
    deliverer, connection = delivering("http://h:1/x"), MagicMock()
    error = urllib3.exceptions.ReadTimeoutError(cast("Any", None), "/x", "no answer")
    request = Mock(return_value=SimpleNamespace(status=status), side_effect=None if status else error)
    monkeypatch.setattr(deliverer._http, "request", request)
    deliverer._send(connection, 1, "m", b"{}", attempts)
    connection.execute.assert_called_once_with(*marked)
    assert request.call_args.kwargs["headers"]["Idempotency-Key"] == "m"


@pytest.mark.parametrize("fails", [False, True])
def test_a_claim_beside_its_effect_is_done_after_it_or_given_back(fails: bool) -> None:
    """Done before, a crash would lose the effect; and all times are milliseconds."""
    client, effect = Mock(), Mock(side_effect=OSError("no effect") if fails else None)
    settings = RedisSettings("redis://h:1/0", keep_s=60.5, claim_s=2.5)
    receiver = RedisReceiver(ReceiverSettings("g", "t", identifier("source")), settings, effect)
    receiver._client, receiver._give_back = client, client.give_back
    client.attach_mock(effect, "effect")
    with pytest.raises(OSError, match="no effect") if fails else contextlib.nullcontext():
        assert receiver.claim(MESSAGE, leased([])) == 1
    claimed, applied, ended = client.mock_calls
    assert (claimed.args[0], claimed.kwargs) == ("receive:g:claim:m", {"nx": True, "px": 2500})
    assert applied.args == (MESSAGE[0],)
    expected = ("give_back", (), {"keys": ["receive:g:claim:m"], "args": [claimed.args[1]]})
    assert tuple(ended) == (expected if fails else ("set", ("receive:g:claim:m", b"done"), {"px": 60500}))


def test_a_claim_in_a_script_has_the_time_and_the_points_of_each_message() -> None:
    receiver = RedisScriptReceiver(
        ReceiverSettings("g", "t", identifier("source")), RedisSettings("redis://h:1/0", keep_s=60.5)
    )
    receiver._script = script = Mock(return_value=b"2")
    assert receiver.claim([*MESSAGE, receiving.Message("n", "d", 3, b"")], leased([])) == 2
    keys = ["points", "claim:m", "effect:m", "claim:n", "effect:n"]
    script.assert_called_once_with(keys=[f"receive:g:{key}" for key in keys], args=[60500, "c", 1, "d", 3])


@pytest.mark.parametrize(("stopped", "sent"), [(True, 1), (False, 2)])
def test_a_round_of_the_outbox_ends_with_the_request_that_runs_when_it_is_to_stop(
    monkeypatch: pytest.MonkeyPatch, stopped: bool, sent: int
) -> None:
    """
    Ten requests to a receiver that hangs outlast SIGTERM's 9 s: killed before the commit, all were sent again.

    So they would be after the end of their transaction's 15 s: half of them is for requests.
    """
    now = [0.0]
    monkeypatch.setattr(outbox, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    deliverer, session = delivering("http://h:1/x"), MagicMock()
    session.__enter__.return_value.execute.return_value.fetchall.return_value = [(n, f"m{n}", b"", 0) for n in range(9)]
    monkeypatch.setattr(deliverer._database, "transaction", lambda _deadline: session)

    def request(*_: object, **__: object) -> SimpleNamespace:
        now[0] += 4
        if stopped:
            deliverer._stop.set()
        return SimpleNamespace(status=200)

    monkeypatch.setattr(deliverer._http, "request", request)
    assert not deliverer.round()
    assert deliverer.sent == sent


def test_a_drain_of_the_outbox_waits_for_its_database_and_tells_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended at once when the database was away for a moment, with rows that could have been sent."""
    deliverer, answers = delivering("http://h:1/x"), iter([RetryLater("database: away"), 3, 0])

    def transaction(_database: Database, _deadline: Deadline) -> Any:
        answer = next(answers)
        if isinstance(answer, RetryLater):
            raise answer
        session = MagicMock()
        session.__enter__.return_value.execute.return_value.fetchall.return_value = [(answer,)]
        return session

    monkeypatch.setattr(Database, "transaction", transaction)
    stop = threading.Event()
    deliverer.drain(Deadline(9), stop)
    deliverer._requests.reason = "answered 503"
    answers = iter([3])
    with pytest.raises(Refused, match=r"^3 outbox rows .*, at last: answered 503; they stay"):
        deliverer.drain(Deadline(1e-9), stop)
    answers = iter([RetryLater("database: away")])
    with pytest.raises(Refused, match=r"^an unknown number of outbox rows"):
        deliverer.drain(Deadline(1e-9), stop)
    answers, waiting = repeat(3), threading.Timer(0.05, stop.set)
    waiting.start()
    deliverer.drain(Deadline(60), stop)
    assert stop.is_set(), "SIGTERM ends it"


def test_a_drain_of_the_outbox_lasts_as_long_as_its_rows_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended after a minute, with 3, if more rows were left than a slow receiver takes in a minute."""
    now = [0.0]
    monkeypatch.setattr(outbox, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    deliverer = delivering("http://h:1/x")

    def left(_database: Database) -> int:
        now[0] += 50
        deliverer.sent += deliverer.sent < 3
        return 4 - deliverer.sent

    monkeypatch.setattr(deliverer, "_left", left)
    with pytest.raises(Refused, match=r"^1 outbox rows .*, and none was within 60 s \(--patience-s\); they stay"):
        deliverer.drain(Deadline(60, lambda: now[0]), threading.Event())
    assert (deliverer.sent, now[0]) == (3, 250)


def test_a_thread_whose_store_stays_away_says_so(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "_PAUSE_S", 0.001)
    monkeypatch.setattr(consuming, "_LASTS_S", 0.001)

    class Away(Broken):
        def round(self) -> bool:
            raise RetryLater("database: away")

    thread = Away()
    thread.start()
    until(lambda: told, "a line")
    thread.stop(Deadline(5))
    assert told == ["broken: still failing, will be tried again: database: away"]


def test_the_command_listens_to_the_thread_that_delivers(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver, broken = Claiming(), Broken()

    def consume(*given: Any) -> str:
        assert given[2].background == [broken], "from before the loop begins"
        given[4].set()
        return "consumed"

    monkeypatch.setattr(command, "consume", consume)
    assert command._run(SimpleNamespace(follow=False), receiver, broken, {}) == "consumed"


@pytest.mark.parametrize(
    ("quantity", "points"),
    [
        (None, 1),
        (b"1", 1),
        (b"2147483647", 2**31 - 1),
        *((bad, 0) for bad in (b"0", b"-1", b"-3", b"2147483648", b"1.5", b'"3"', b"true", b"null", b"[]")),
        (b"[" * 999 + b"]" * 999, 0),
    ],
)
def test_only_a_whole_number_of_cups_gives_points(quantity: bytes | None, points: int) -> None:
    customer, granted, refused = points_grant(
        b'{"customer_id":"c-1"%b}' % (b"" if quantity is None else b',"quantity":' + quantity)
    )
    assert (customer, granted) == ("c-1", points)
    assert bool(refused) is (points == 0)


def test_a_bad_quantity_is_counted_and_told() -> None:
    printed: list[str] = []
    receiver = Claiming("field:order_id", tell=printed.append)
    receiver.recorder = Mock()
    values = [b'{"order_id":"o-%d","customer_id":"c-1","quantity":%d}' % (n, n - 1) for n in range(3)]
    records = [Record(offset, value=value) for offset, value in enumerate(values)]
    receiver.handle([PartitionBatch(3, 0, 3, records)], leased([]))
    assert [one.points for one in receiver.claimed] == [0, 0, 1]
    assert receiver.received.rejected == 2
    receiver.recorder.rejected.assert_called_once_with(receiving.BAD_QUANTITY, 2)
    assert [one.split(" gives")[0] for one in printed] == ["message order_id:o-0", "message order_id:o-1"]


def test_the_check_names_what_was_rejected_and_calls_no_promise_broken() -> None:
    checked = CheckResult(messages=1, effects=1)
    checked.reject("order_id:o-1", "quantity is '-3'")
    assert (checked.document()["verdict"], checked.document()["rejected"]) == ("proven", 1)
    assert "bad-quantity: message order_id:o-1 gives no points: quantity is '-3'" in checked.text()


DAY = 86_400.0


def test_claims_have_to_outlive_retention_and_segment_together() -> None:
    """A segment's first record stays until its last one is old; records that stay for ever need claims that do."""
    week, shown = (7 * DAY, 3 * DAY, "t"), r"10 days \(retention.ms 7 days, segment.ms 3 days\)"
    with pytest.raises(Refused, match=f"for 10 days, and 't' keeps .* {shown}"):
        command.longer_than_records(10, *week)
    assert command.longer_than_records(10.5, *week) == 10.5 * DAY
    with pytest.raises(Refused, match="give 0 to keep claims forever"):
        command.longer_than_records(9999, None, 3 * DAY, "t")
    assert command.longer_than_records(0, None, 3 * DAY, "t") is None


@pytest.mark.parametrize(
    ("records", "effects", "points", "findings"),
    [
        ([(8, "a", 2)], {"a": 1}, 2, {}),
        ([(8, "a", 2)], {}, 2, {"receiver-lost": 1}),
        ([(9, "a", 2)], {}, 0, {}),
        ([(9, "a", 2)], {"a": 1}, 9, {}),
        ([(9, "a", 2)], {"a": 2}, 4, {"receiver-duplicate": 1}),
        ([(8, "a", 2), (9, "a", 2)], {}, 2, {"receiver-lost": 1}),
        ([(8, "a", 2), (8, "b", 2)], {"a": 1, "b": 1}, 3, {"receiver-lost": 1}),
        ([(7, "a", 2), (8, "a", 2)], {"a": 1}, 3, {"receiver-duplicate": 1}),
        ([(7, "a", 2), (8, "a", 3)], {"a": 1}, 9, {}),
    ],
)
def test_messages_below_the_position_have_their_effects_and_points(
    records: list[tuple[int, str, int]],
    effects: dict[str, int],
    points: int,
    findings: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The group stands at 9; offset, id and cups of each record. One id is one message, below if any of its records is.

    Points are compared once nothing waits, and only if records of one id agree on them.
    """
    made = [Record(at, value=json.dumps(ORDER | {"id": name, "quantity": n}).encode()) for at, name, n in records]
    topic = Mock(logs={3: LogOffsets(0, 10, 10)}, committed={3: Committed(9, "")}, compacted=False)
    topic.records.return_value = made
    monkeypatch.setattr(receive_check, "topic_snapshot", lambda _settings: topic)
    counts = {f"id:{name}": count for name, count in effects.items()}
    store = Mock(counts=lambda names: [counts.get(name, 0) for name in names], points=lambda: {"c-1": points})
    settings = LoopSettings(Connection("b:1"), "g", "t")
    assert dict(receive_check.check(settings, identifier("field:id"), store).findings) == findings


@pytest.mark.parametrize(("committed", "effects", "refused"), [(None, 0, True), (None, 1, False), (0, 0, False)])
def test_a_check_of_another_group_or_store_compares_nothing(
    committed: int | None, effects: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = None if committed is None else Committed(committed, "")
    topic = Mock(logs={3: LogOffsets(0, 10, 10)}, committed={3: at}, compacted=False)
    topic.records.return_value = [Record(5, source=1)]
    monkeypatch.setattr(receive_check, "topic_snapshot", lambda _settings: topic)
    store = Mock(counts=lambda names: [effects for _ in names])
    with pytest.raises(Refused, match=r"^nothing to compare: ") if refused else contextlib.nullcontext():
        receive_check.check(LoopSettings(Connection("b:1"), "g", "t"), identifier("source"), store)


@pytest.mark.parametrize("compacted", [True, False])
def test_points_of_messages_that_compaction_removed_are_no_finding(
    compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(5, value=json.dumps(ORDER | {"quantity": 2}).encode())
    topic = Mock(logs={3: LogOffsets(0, 9, 9)}, committed={3: Committed(9, None)}, compacted=compacted)
    topic.records.return_value = [Mock(wraps=record, partition=lambda: 3)]
    monkeypatch.setattr(receive_check, "topic_snapshot", lambda _settings: topic)
    effects = Mock(counts=lambda names: [1 for _ in names], points=lambda: {"c-1": 7})
    settings = LoopSettings(Connection("b:1"), "g", "t")
    checked = receive_check.check(settings, lambda _topic, _record: "t/3/5", effects)
    assert dict(checked.findings) == ({} if compacted else {"receiver-duplicate": 1})
