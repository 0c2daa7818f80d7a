"""The receiver in PostgreSQL and the outbox against real servers: redelivery, rivals, clean-up, failing receivers."""

from __future__ import annotations

import dataclasses
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import psycopg
import pytest
from confluent_kafka import TopicPartition
from harness import enriched
from harness.downstream import ReceiveStage, document, following, run
from harness.servers import Broker, Names

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.fault_injection import StoreCrash
from brew.kafka.clients import consumer
from brew.names import READ_COMMITTED
from downstream.receive.command import DemoServer
from downstream.receive.postgres import _OLD, CallSettings, Deliverer
from sandbox.store import Postgres

MESSAGES = 120


@pytest.fixture
def stage(broker: Broker, postgres: Postgres, names: Names) -> ReceiveStage:
    """A topic with messages, aborted ones between them, and none received yet."""
    enriched.make_topic(broker.bootstrap, names.output)
    enriched.write(broker.bootstrap, names.output, MESSAGES)
    schema = "r_" + names.stem.rsplit("-", 1)[1]
    return ReceiveStage(broker.bootstrap, names.output, names.group, postgres.url, schema)


@pytest.fixture
def sink() -> Iterator[DemoServer]:
    with DemoServer(fail_every=5) as server:
        thread = server.serving()
        yield server
        server.shutdown()
        thread.join(5)


def _value(stage: ReceiveStage, query: str) -> int:
    with psycopg.connect(stage.url, options=f"-c search_path={stage.schema}") as connection:
        return int(connection.execute(query.encode()).fetchone()[0])


def test_a_redelivered_message_does_nothing_and_the_receiver_moves_on(stage: ReceiveStage) -> None:
    """Everything read twice: one effect each, the second time none, and the position at the end both times."""
    first = stage.receive(stage.in_postgres())
    second = stage.receive(stage.in_postgres(again=True))
    assert (first.effects, first.repeated) == (MESSAGES, 0)
    assert (second.effects, second.repeated) == (0, MESSAGES)
    stage.proven(MESSAGES)
    assert stage.receive(stage.in_postgres()).messages == 0


def test_a_database_that_was_made_without_a_locale_loses_no_effect(stage: ReceiveStage) -> None:
    """Its claims came back as bytes, equal to no message's id: each was claimed, and none had an effect."""
    with psycopg.connect(stage.url, autocommit=True) as connection:
        name = f"{stage.schema}_ascii"
        connection.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'".encode())
    stage = dataclasses.replace(stage, url=f"{stage.url.rpartition('/')[0]}/{name}")
    assert stage.receive(stage.in_postgres()).effects == MESSAGES
    stage.proven(MESSAGES)


def test_a_user_who_may_make_no_schema_uses_the_one_that_exists(stage: ReceiveStage) -> None:
    """An administrator made it for this user, who was refused with `permission denied for database`."""
    user = f"u_{stage.schema}"
    with psycopg.connect(stage.url) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN".encode())
        connection.execute(f"CREATE SCHEMA {stage.schema} AUTHORIZATION {user}".encode())
    limited = dataclasses.replace(stage, url=stage.url.replace("//brew@", f"//{user}@"))
    assert limited.receive(limited.in_postgres()).effects == MESSAGES


@pytest.mark.parametrize(
    ("offset", "metadata", "refusal"),
    [(5, "topic-id=the-one-before", "topic-recreated: .* id the-one-before"), (5000, "", "offset-ahead: .* is 5000, ")],
)
def test_an_offset_that_is_not_of_this_log_is_refused(
    stage: ReceiveStage, offset: int, metadata: str, refusal: str
) -> None:
    """
    The brokers forget offsets with their topic, and a member that outlives it tells its own once more.

    Of a log that was truncated, a drain read nothing, and the next one skipped what was written up to the offset.
    """
    late = consumer(Connection(stage.bootstrap), stage.group, READ_COMMITTED)
    late.commit(offsets=[TopicPartition(stage.topic, 0, offset, metadata)], asynchronous=False)
    late.close()
    with pytest.raises(Refused, match=f"^{refusal}"):
        stage.receive(stage.in_postgres())


def test_a_recreated_topic_is_refused_because_its_ids_are_claimed(stage: ReceiveStage) -> None:
    """New messages at old positions would have no effect; with `--again` the earlier ones are known, as they should."""
    enriched.write_raw(stage.bootstrap, stage.topic, b'{"customer_id":"first"}')
    assert stage.receive(stage.in_postgres()).effects == MESSAGES + 1
    enriched.recreate_topic(stage.bootstrap, stage.topic, stage.group)
    enriched.write(stage.bootstrap, stage.topic, MESSAGES)
    for _ in range(2):
        with pytest.raises(Refused, match=r"^topic-recreated: .* with another --group; .* run once with --again"):
            stage.receive(stage.in_postgres())
    again = stage.receive(stage.in_postgres(again=True))
    assert (again.messages, again.effects) == (MESSAGES, 0)
    assert stage.receive(stage.in_postgres()).messages == 0


def test_two_receivers_of_the_same_messages_bring_about_one_effect_each(stage: ReceiveStage) -> None:
    """Static members on the same partitions, small batches that meet: the primary key decides, nobody is stuck."""
    members = (stage.in_postgres(), stage.in_postgres())
    with following(stage.loop(batch=7), members[0]) as a, following(stage.loop(batch=5), members[1]) as b:
        a.done()
        b.done()
    assert sum(member.received.effects for member in members) == MESSAGES
    stage.proven(MESSAGES)


def test_a_field_makes_two_records_one_message(stage: ReceiveStage) -> None:
    """With `field:order_id` the same order sent twice counts once; records without one count by their own place."""
    enriched.write(stage.bootstrap, stage.topic, MESSAGES, first=5000)  # other sources, the same orders
    poison = (None, b"not json", b'{"order_id":"a\\u0000b"}', b'{"order_id":"' + b"x" * 4000 + b'"}')
    enriched.write_raw(stage.bootstrap, stage.topic, *poison)
    by_field = "field:order_id"
    assert stage.receive(stage.in_postgres(message_id=by_field)).effects == MESSAGES + len(poison)
    assert stage.receive(stage.in_postgres(message_id=by_field, again=True)).effects == 0
    stage.proven(MESSAGES + len(poison), message_id=by_field)


def test_old_claims_are_cleaned_up_beside_the_work(stage: ReceiveStage) -> None:
    """Rows older than they have to be kept go; younger ones stay, and other groups' as long as those say."""
    stage.receive(stage.in_postgres())
    others = "INSERT INTO processed_messages VALUES ('old', 'another group', now() - interval '9 years')"
    with psycopg.connect(stage.url, options=f"-c search_path={stage.schema}") as connection:
        connection.execute(others)
        old = "UPDATE processed_messages SET processed_at = now() - interval '2 hours' WHERE message_id LIKE '%/1/%'"
        aged = connection.execute(old).rowcount
    assert aged == MESSAGES // 4
    with following(stage.loop(follow=True), stage.in_postgres(keep_s=3600.0)):
        deadline = Deadline(20)
        while _value(stage, "SELECT count(*) FROM processed_messages") > MESSAGES - aged + 1:
            deadline.check("the clean-up")
    assert _value(stage, "SELECT count(*) FROM processed_messages") == MESSAGES - aged + 1
    assert _value(stage, "SELECT count(*) FROM processed_messages WHERE consumer_group = 'another group'") == 1


def test_a_claim_is_kept_as_long_as_the_last_record_with_its_id(stage: ReceiveStage) -> None:
    """An order that was sent again days later outlived its claim: read again after that, it counted twice."""
    field = "field:order_id"
    stage.receive(stage.in_postgres(message_id=field))
    with psycopg.connect(stage.url, options=f"-c search_path={stage.schema}") as connection:
        connection.execute("UPDATE processed_messages SET processed_at = now() - interval '2 hours'")
    enriched.write(stage.bootstrap, stage.topic, MESSAGES, first=5000)  # other sources, the same orders
    assert stage.receive(stage.in_postgres(message_id=field)).effects == 0
    keeping = stage.in_postgres(keep_s=3600.0, message_id=field, again=True)
    while keeping._clean_up.round():
        pass
    assert stage.receive(keeping).effects == 0


def test_a_sent_row_is_kept_as_long_as_the_claim_of_its_message(stage: ReceiveStage, sink: DemoServer) -> None:
    """An order that was sent again days later renewed its claim only: the check called its effect lost."""
    how = {"outbox": True, "message_id": "field:order_id"}
    stage.receive(stage.in_postgres(**how))
    _deliver(stage, sink)
    _age(stage)
    enriched.write(stage.bootstrap, stage.topic, MESSAGES, first=5000)  # other sources, the same orders
    assert stage.receive(stage.in_postgres(**how)).effects == 0
    for left in (MESSAGES, 0):
        cleaning = stage.in_postgres(keep_s=3600.0)._clean_up
        while cleaning.round():
            pass
        cleaning.stop(Deadline(1))
        assert _value(stage, "SELECT count(*) FROM outbox") == left
        _age(stage)


def _age(stage: ReceiveStage) -> None:
    with psycopg.connect(stage.url, options=f"-c search_path={stage.schema}") as connection:
        connection.execute("UPDATE processed_messages SET processed_at = now() - interval '2 hours'")
        connection.execute("UPDATE outbox SET sent_at = now() - interval '2 hours'")


@pytest.mark.parametrize("table", _OLD)
def test_clean_up_finds_old_rows_by_an_index(stage: ReceiveStage, table: str) -> None:
    """A table of all messages of a fortnight must not be read as a whole every minute."""
    stage.receive(stage.in_postgres(outbox=True))
    with psycopg.connect(stage.url, options=f"-c search_path={stage.schema} -c enable_seqscan=off") as connection:
        old = f"SELECT ctid FROM {table} WHERE consumer_group = %s AND {_OLD[table]}"
        plan = connection.execute(f"EXPLAIN {old}", [stage.group, 3600.0]).fetchall()
    assert "Seq Scan" not in str(plan)


def test_claims_that_would_not_outlive_their_records_are_refused(stage: ReceiveStage) -> None:
    """The topic keeps a record for 7 days behind the youngest of its segment, and a segment takes up to 7 days."""
    done = run(stage.command("postgres", "--keep-days", "14"))
    assert (done.returncode, "raise --keep-days above 14, lower segment.ms" in done.stderr) == (3, True), done.stderr
    assert "retention.ms 7 days, segment.ms 7 days" in done.stderr
    assert run(stage.command("postgres", "--keep-days", "14.1")).returncode == 0


def test_a_topic_that_only_compacts_keeps_its_records_for_ever(
    broker: Broker, postgres: Postgres, names: Names
) -> None:
    """Its `retention.ms` says nothing: only claims that are kept for ever outlive its records."""
    enriched.make_topic(broker.bootstrap, names.output, **{"cleanup.policy": "compact"})
    stage = ReceiveStage(broker.bootstrap, names.output, names.group, postgres.url, "r_compacted")
    done = run(stage.command("postgres", "--keep-days", "9999"))
    assert (done.returncode, "give 0 to keep claims forever" in done.stderr) == (3, True), done.stderr
    assert run(stage.command("postgres", "--keep-days", "0")).returncode == 0


def test_the_outbox_sends_until_taken_and_the_key_makes_it_once(stage: ReceiveStage, sink: DemoServer) -> None:
    """Every fifth answer is 503, half of them behind the effect: more requests than messages, one effect each."""
    stage.receive(stage.in_postgres(outbox=True))
    stage.proven(MESSAGES, outbox=True)
    _deliver(stage, sink)
    counts = sink.counts()
    assert counts["requests"] > MESSAGES
    assert (counts["effects"], counts["duplicates"]) == (MESSAGES, 0)


def test_a_sent_request_whose_commit_is_lost_is_sent_again_with_its_key(stage: ReceiveStage, sink: DemoServer) -> None:
    """A crash between answer and commit, as an exception here: without keys the other side would count duplicates."""
    stage.receive(stage.in_postgres(outbox=True))

    class CrashAfterAnswer(StoreCrash):
        def at(self, moment: object) -> None:  # noqa: ARG002 - the method's shape
            raise KeyboardInterrupt

    deliverer = Deliverer(stage.group, stage.database, CallSettings(sink.url), CrashAfterAnswer())
    with pytest.raises(KeyboardInterrupt):
        deliverer.round()
    deliverer.stop(Deadline(1))
    before = sink.counts()["effects"]
    assert before > 0
    _deliver(stage, sink)
    assert sink.counts()["effects"] == MESSAGES
    assert sink.requests >= MESSAGES + before


def test_a_request_that_is_refused_for_good_stops_no_other(stage: ReceiveStage, sink: DemoServer) -> None:
    """A 4xx is written beside its row and not tried again; the others are sent."""
    stage.receive(stage.in_postgres(outbox=True))
    take, lock, refused = sink.take, threading.Lock(), []

    def refuse_some(key: str) -> int:
        with lock:
            if key.endswith("/0"):
                refused.append(key)
                return 422
        return take(key)

    sink.take = refuse_some
    _deliver(stage, sink)
    assert len(refused) == len(set(refused)) == 4
    assert _value(stage, "SELECT count(*) FROM outbox WHERE refused = 'answered 422' AND sent_at IS NULL") == 4
    assert sink.counts()["effects"] == MESSAGES - 4


def test_an_id_that_no_header_can_carry_is_sent_and_the_urls_login_with_it(
    stage: ReceiveStage, sink: DemoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a row ended the receiver at every start, and nothing behind it was sent."""
    enriched.write_raw(stage.bootstrap, stage.topic, '{"order_id":"\u2615"}'.encode(), b'{"order_id":"a\\nb"}')
    logins = set()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        logins.add(handler.headers["Authorization"])
        post(handler)

    post = sink.RequestHandlerClass.do_POST
    monkeypatch.setattr(sink.RequestHandlerClass, "do_POST", answer)
    stage.receive(stage.in_postgres(outbox=True, message_id="field:order_id"))
    deliverer = Deliverer(
        stage.group, stage.database, CallSettings(sink.url.replace("//", "//u:p%40ss@")), StoreCrash()
    )
    deliverer.start()
    deliverer.drain(Deadline(60), threading.Event())
    deliverer.stop(Deadline(5))
    assert sink.counts()["effects"] == MESSAGES + 2
    assert logins == {"Basic dTpwQHNz"}


def test_a_receiver_that_never_answers_does_not_keep_the_rows_behind_from_their_turn(stage: ReceiveStage) -> None:
    """What hangs longer than a transaction may take is still noted, and waits for its next try while others pass."""
    stage.receive(stage.in_postgres(outbox=True))
    quick = dataclasses.replace(stage.database, lock_s=0.2, statement_s=1.0)  # 3.2 s in all, and ten calls take 4 s
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        calls = CallSettings(f"http://127.0.0.1:{silent.getsockname()[1]}/", timeout_s=0.4)
        deliverer = Deliverer(stage.group, quick, calls, StoreCrash())
        assert deliverer.round()
        deliverer.stop(Deadline(1))
    assert 1 <= _value(stage, "SELECT count(*) FROM outbox WHERE attempts = 1") < 10


def _deliver(stage: ReceiveStage, sink: DemoServer) -> None:
    deliverer = Deliverer(stage.group, stage.database, CallSettings(sink.url), StoreCrash())
    deliverer.start()
    try:
        deliverer.drain(Deadline(30), threading.Event())
    finally:
        deliverer.stop(Deadline(5))


def test_the_command_receives_and_checks_itself(stage: ReceiveStage, sink: DemoServer) -> None:
    """As users run it: outbox and delivery in one program, group assignment, then the check."""
    report = document(run(stage.command("outbox", "--effect-url", sink.url, "--json")))
    assert (report["effects"], report["sent"]) == (MESSAGES, MESSAGES)
    assert sink.counts()["effects"] == MESSAGES
    assert document(run(stage.command("outbox", "--check", "--json")))["verdict"] == "proven"
