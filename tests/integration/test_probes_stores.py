"""What programs tell of themselves whose work needs a store beside Kafka: while it answers, is away, or says no."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from harness import enriched
from harness.downstream import LedgerStage, ReceiveStage, clean_environment
from harness.probed import Probed
from harness.programs import Running
from harness.servers import Broker, Names

from brew.observability.status import PartitionState, Status
from sandbox.process import free
from sandbox.store import Postgres, Redis

FIRST, MORE = 40, 12
STATIC = ("--partitions", "0,1,2,3", "--probe-port", "0", "--follow")
"""Without a group's assignment, which takes seconds."""


@pytest.fixture
def ledger(broker: Broker, postgres: Postgres, names: Names) -> LedgerStage:
    """Orders on a topic, and nothing booked yet."""
    enriched.make_topic(broker.bootstrap, names.output)
    enriched.write(broker.bootstrap, names.output, FIRST)
    schema = "p_" + names.stem.rsplit("-", 1)[1]
    return LedgerStage(broker.bootstrap, postgres.url, names.output, names.group, schema)


@contextlib.contextmanager
def probed(command: list[str]) -> Iterator[Probed]:
    with Running([*command, *STATIC], clean_environment()) as program:
        yield Probed(program)


def done(records: int) -> Callable[[Status], bool]:
    return lambda status: status.totals.records == records and all(p.lag == 0 for p in status.partitions)


def all_blocked(status: Status) -> bool:
    """All of it stands still for a store."""
    return {partition.state for partition in status.partitions} == {PartitionState.BLOCKED}


def test_who_loses_its_store_is_alive_and_not_ready_until_it_is_back(
    ledger: LedgerStage, postgres: Postgres, redis: Redis, names: Names
) -> None:
    """The ledger, and both kinds of receivers; a restart of theirs would bring no store back."""
    source = (ledger.bootstrap, ledger.topic)
    in_postgres = ReceiveStage(*source, names.topic("postgres"), postgres.url, ledger.schema + "_r")
    in_redis = ReceiveStage(*source, names.topic("redis"), redis=redis.url)
    commands = [
        (ledger.command(), "database:"),
        (in_postgres.command("postgres"), "database:"),
        (in_redis.command("redis-script"), "redis:"),
    ]
    with contextlib.ExitStack() as running:
        runs = [(running.enter_context(probed(command)), server) for command, server in commands]
        for run, _ in runs:
            status = run.until(done(FIRST), "all is worked on")
            assert {partition.state for partition in status.partitions} == {PartitionState.IDLE}
            assert (run.code("/livez"), run.code("/readyz"), run.code("/startupz")) == (200, 200, 200)
            assert run.metric(r"brew_records_total{") == FIRST
            assert run.metric("brew_consumer_lag{") == 0
        assert {p.partition: p.position for p in runs[0][0].status().partitions} == _booked(ledger)
        for store in (postgres, redis):
            store.kill()
        enriched.write(*source, MORE, first=FIRST)
        for run, server in runs:
            run.until(all_blocked, "all of it waits")
            assert (run.code("/livez"), run.code("/readyz")) == (200, 503)
            report = json.loads(run.ask("/readyz")[1])
            assert server in report["reason"], report
            assert report["unhealthy"] == []
            assert "a server has not answered" in run.status().partitions[0].reason
            assert run.metric(r'brew_partition_state{.*state="blocked"') == 4
            assert (run.metric("brew_live"), run.metric("brew_ready")) == (1, 0)
        for store in (postgres, redis):
            store.restart()
        for run, _ in runs:
            status = run.until(done(FIRST + MORE), "all is worked on again")
            assert (status.live.ok, status.ready.ok) == (True, True)
            assert status.totals.recovery_s is not None
            assert run.metric("brew_recoveries_total") >= 1
            run.ends()
    ledger.proven(FIRST + MORE)


def test_messages_that_come_again_are_counted(ledger: LedgerStage, postgres: Postgres, redis: Redis) -> None:
    """Read from the log's start by a group that knows all of them; the first time there were none."""
    source, group = (ledger.bootstrap, ledger.topic), ledger.group
    for stage, store in (
        (ReceiveStage(*source, f"{group}-postgres", postgres.url, ledger.schema + "_r"), "postgres"),
        (ReceiveStage(*source, f"{group}-redis", redis=redis.url), "redis-script"),
    ):
        for again, repeated in ((), 0), (("--again",), FIRST):
            with probed(stage.command(store, *again)) as run:
                run.until(done(FIRST), "all is worked on")
                assert run.metric(r"brew_duplicates_total ") == repeated
                assert ("brew_duplicates_total 0.0" in run.ask("/metrics")[1].decode()) == (repeated == 0)
                run.ends()
        stage.proven(FIRST)


def test_who_is_told_no_by_its_store_ends_by_itself(ledger: LedgerStage) -> None:
    """Waiting would help nobody: the table is gone."""
    with probed(ledger.command()) as run:
        run.until(done(FIRST), "all is booked")
        with psycopg.connect(ledger.url) as session:
            session.execute(f"DROP TABLE {ledger.schema}.ledger_entries".encode())
        enriched.write(ledger.bootstrap, ledger.topic, MORE, first=FIRST)
        ran = run.program.wait(20)
    assert ran.code == 3
    assert "refused, and a retry would not help" in ran.err


@pytest.mark.parametrize("kind", ["ledger", "postgres", "redis", "redis-script"])
def test_who_never_reaches_its_store_is_not_ready_and_gives_up(ledger: LedgerStage, kind: str) -> None:
    """A rollout with a wrong address stops there, and does not take the old ones down."""
    (port,) = free(1)
    database = f"postgresql://brew@127.0.0.1:{port}/brew"
    receive = ReceiveStage(ledger.bootstrap, ledger.topic, ledger.group, database, ledger.schema)
    in_redis = replace(receive, redis=f"redis://127.0.0.1:{port}/0")
    commands = {
        "ledger": replace(ledger, url=database).command,
        "postgres": partial(receive.command, kind),
        "redis": partial(in_redis.command, kind),
        "redis-script": partial(in_redis.command, kind),
    }
    command = commands[kind]()
    with probed([*command, "--patience-s", "5"]) as run:  # time to look before it gives up
        blocked = run.until(all_blocked, "all of it waits")
        assert (run.code("/livez"), run.code("/readyz")) == (200, 503)
        assert str(port) in blocked.ready.reason
        ran = run.program.wait(20)
    assert ran.code == 3
    assert "--patience-s" in ran.err


def _booked(stage: LedgerStage) -> dict[int, int]:
    with psycopg.connect(stage.url) as session:
        rows = session.execute(f"SELECT partition, next_offset FROM {stage.schema}.kafka_offsets".encode())
        return dict(rows.fetchall())
