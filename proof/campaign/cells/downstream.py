"""Downstream programs other than the ledger: receivers, with PostgreSQL and Redis, and totals."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Sequence
from functools import partial

import redis

from brew.errors import Refused
from brew.names import CrashPoint, ExitCode
from proof.campaign.cell import CellTable
from proof.campaign.cells import stores
from proof.campaign.cells.ledger import AROUND, BACK_S, BATCH, MOMENTS, ledger_on
from proof.campaign.cells.stores import DIES, REDIS, Consumer, Servers, ended, produce_orders
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment, StalledError

CELLS = CellTable(path="downstream", readers=(), limit_s=900.0)
BEFORE = (CrashPoint.MID_PRODUCE, CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS)
AFTER = (CrashPoint.COMMIT_IN_FLIGHT, CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT)
_TOTALS_BOUND_S = 20.0
killed = partial(CELLS, moment=AROUND, needed={"kills": 0})
three_kills = partial(CELLS, needed={"kills": 3}, bound_s=_TOTALS_BOUND_S)
_ORDERS, _COUNTED = 160, 200  # per round of receivers, of totals
_ROUNDS = 3
_BETWEEN = "between batches"
_SHORT_DAYS = "0.00001"  # 0.9 s
_RUN_OUT_S = 1.5
_TARGET, _CONTROL = "receiver", "receiver (control)"
_CLAIMED = "SELECT count(*) FROM processed_messages"


@killed("F29-receiver-control", "SIGKILL", _CONTROL, MOMENTS[1:2], "claim-afterwards", breaks="receiver-duplicate")
@killed("F29-receiver", "SIGKILL", _TARGET, MOMENTS, "", bound_s=BACK_S)
def receiver_killed(moments: Sequence[str], bug: str, stage: CellEnvironment) -> None:
    """Consumers die around the commit of claim and effect; in the control, between the commits of the two."""
    with ledger_on(stage, "--keep-days", "0", bug=bug, pattern="receive") as receiver:

        def claimed() -> int:
            with contextlib.suppress(Refused):
                return int(stores.query_row(receiver.url, _CLAIMED)[0])
            return -1

        stores.kill_repeatedly(receiver, moments, claimed, per_kill=int(BATCH / DIES))
        receiver.drain_and_check()
        stores.compare_receiver(receiver, receiver.url)


def _receiver(stage: CellEnvironment, url: str, store: str, *options: str) -> Consumer:
    return Consumer(stage, ("receive", "--store", store, "--redis", url, "--batch", str(BATCH), *options))


def _check(consumer: Consumer) -> None:
    """Drain, then compare effects with the output; record the findings and the number of effects."""
    stage = consumer.stage
    report = consumer.drain_and_check()
    outputs = stores.output_sums(stage).orders
    stage.notes.append(f"{report['effects']} effects of {outputs} outputs, {report['duplicates']} of them duplicates")


@CELLS("F32-redis", "SIGKILL of Redis", _TARGET, moment="before the script", needed={"store_kills": 2})
def redis_killed(stage: CellEnvironment) -> None:
    """Redis is killed while a receiver is about to call its script; it restarts with its log."""
    with Servers() as servers, _receiver(stage, servers.up(REDIS), "redis-script") as consumer:
        for _ in range(_ROUNDS):
            produce_orders(stage, _ORDERS)
            member = consumer.start(*stores.dying(stage, "before-commit", "stop"))
            if not stores.stopped(stage, member):
                continue
            servers.run("kill", REDIS)
            stage.fire("store_kills")
            member.signal(signal.SIGCONT)
            servers.run("restart", REDIS)
            ended(stage, member)
        _check(consumer)


@CELLS("F32-consumer", "SIGKILL", _TARGET, moment="around the script", marks="prove", needed={"kills": 0})
def script_killed(stage: CellEnvironment) -> None:
    """Consumers die before and after their script, repeatedly."""
    with Servers() as servers, _receiver(stage, servers.up(REDIS), "redis-script") as consumer:
        stores.kill_repeatedly(consumer, ("before-commit", "after-commit"), consumer.position, per_kill=50)
        _check(consumer)


@CELLS(
    *("F32-beside-control", "SIGKILL", _CONTROL),
    moment="between effect and `done`",
    needed={"kills": 0},
    breaks="receiver-duplicate",
)
def beside_the_effect(stage: CellEnvironment) -> None:
    """The control: the claim is separate from the effect, with deaths after the effect; its duplicates are counted."""
    weak = ("--claim-s", "0.3")
    with Servers() as servers, _receiver(stage, servers.up(REDIS), "redis", *weak) as consumer:
        stores.kill_repeatedly(consumer, ("before-commit",), consumer.position, per_kill=50, probability=0.02)
        _check(consumer)


@CELLS("F32-flushall", "FLUSHALL", _TARGET, moment=_BETWEEN, needed=("flushes", "losses_seen"))
def flushed(stage: CellEnvironment) -> None:
    """FLUSHALL removes claims and effects together: what was read is missing, and reading again restores just that."""
    with Servers() as servers, _receiver(stage, servers.up(REDIS), "redis-script") as consumer:
        consumer.work_off(_ORDERS)
        with redis.Redis.from_url(servers.url(REDIS)) as client:
            client.flushall()
        stage.fire("flushes")
        _lost_then_read_again(stage, consumer)


@CELLS(*("F32-failover", "an empty replica takes over", _TARGET), moment=_BETWEEN, needed=("fail_overs", "losses_seen"))
def failed_over(stage: CellEnvironment) -> None:
    """Redis dies, and an empty replica takes its place at another address."""
    with Servers() as first, Servers() as second, _receiver(stage, first.up(REDIS), "redis-script") as consumer:
        consumer.work_off(_ORDERS)
        first.run("kill", REDIS)
        stage.fire("fail_overs")
        # The same group, whose position in Kafka has not moved back.
        with _receiver(stage, second.up(REDIS), "redis-script") as moved:
            _lost_then_read_again(stage, moved)


def _lost_then_read_again(stage: CellEnvironment, consumer: Consumer) -> None:
    consumer.work_off(_ORDERS)
    lost = consumer.checked()["findings"].get("receiver-lost", 0)
    stage.fire("losses_seen", int(lost > 0))
    stage.notes.append(f"{lost} messages had lost their effect until they were read again")
    consumer.drain("--again")
    _check(consumer)


@CELLS(
    *("F32-forgetting", "eviction, short claims", _TARGET), moment="start", needed={"refusals": 2, "redeliveries": 1}
)
def forgetful(stage: CellEnvironment) -> None:
    """Settings that let Redis forget claims too early are refused: eviction, a log that lags, a short retention."""
    with Servers() as servers:
        url = servers.up(REDIS, **{"maxmemory-policy": "allkeys-lru", "appendfsync": "everysec"})
        with _receiver(stage, url, "redis-script") as consumer:
            produce_orders(stage, _ORDERS)
            _refused(stage, consumer.start(), "maxmemory-policy", "appendfsync")
            _refused(stage, consumer.start("--keep-days", _SHORT_DAYS), "--keep-days")
    with Servers() as servers, _receiver(stage, servers.up(REDIS), "redis-script") as consumer:
        consumer.drain()
        consumer.drain("--again")
        stage.fire("redeliveries")
        _check(consumer)


@CELLS(
    *("F32-expiry-control", "claims run out", _CONTROL),
    moment="before a redelivery",
    needed=("expiries",),
    breaks="receiver-duplicate",
)
def run_out(stage: CellEnvironment) -> None:
    """The control: claims that expire before their messages are redelivered, accepted on purpose; duplicates count."""
    short = ("--keep-days", _SHORT_DAYS, "--accept-weaker")
    with Servers() as servers, _receiver(stage, servers.up(REDIS), "redis-script", *short) as consumer:
        consumer.work_off(_ORDERS)
        stage.pause(_RUN_OUT_S)
        stage.fire("expiries")
        consumer.drain_and_check("--again")


def _refused(stage: CellEnvironment, program: Program, *words: str) -> None:
    """Check that the program ends with 3 and names the settings; raise `StalledError` if it ran."""
    ended(stage, program, ExitCode.REFUSED)
    if not all(word in program.last_output() for word in words):
        raise StalledError(f"refused without naming {', '.join(words)}: {program.last_output()}")
    stage.fire("refusals")


def _counting(stage: CellEnvironment, bug: str = "") -> Consumer:
    output, group = f"{stage.names.stem}.totals.v1", f"{stage.names.stem}.totals"
    words = ("totals", "--output", output, "--state-dir", str(stage.folder / "state"), "--max-offsets", "40")
    return Consumer(stage, words, (output, f"{group}.deltas", f"{group}.changelog"), bug, join=True)


def _check_totals(consumer: Consumer) -> None:
    """Drain and compare: with the program's own recomputation, and with the campaign's sums of the results."""
    stage = consumer.stage
    consumer.drain()
    for drift in consumer.checked("--recompute")["first"]:
        stage.find("state-drift" if drift["where"].startswith("state") else "changelog-drift", f"{drift}")
    wanted, results = stores.output_sums(stage), stores.totals(stage, consumer.made[0])
    stores.compare(stage, "changelog-drift", "orders and cents in the results", results, (wanted.orders, wanted.cents))
    orders, cents = results
    stage.notes.append(f"{orders} of {wanted.orders} orders and {cents} of {wanted.cents} cents in the results")


@three_kills(*("F33-before-commit", "SIGKILL", "totals", BEFORE), moment="before the changelog's commit", marks="prove")
@three_kills("F33-after-commit", "SIGKILL", "totals", AFTER, moment="behind the changelog's commit")
def totals_killed(points: tuple[CrashPoint, ...], stage: CellEnvironment, bug: str = "") -> None:
    """The program dies at a point and restores its state; in the control, between the commits of deltas and offsets."""
    with _counting(stage, bug) as consumer:
        if bug:  # before their first commit, the program would notice that offsets are missing
            consumer.work_off(_COUNTED)
        for number in range(1 if bug else max(_ROUNDS, stage.kills)):
            produce_orders(stage, _COUNTED)
            _die(consumer, points[number % len(points)], "orders" if bug else "deltas")
        _check_totals(consumer)


def _die(consumer: Consumer, point: CrashPoint, reading: str) -> None:
    """Run a program that dies, and another that drains the input; record the seconds between their ends."""
    stage = consumer.stage
    ended(stage, died := consumer.start("--crash-point", point, "--crash-in", reading), -signal.SIGKILL)
    stage.fire("kills")
    assert died.ended_at is not None
    after = consumer.drain()
    assert after.ended_at is not None
    stage.recovery_s.append(after.ended_at - died.ended_at)


@CELLS("F33-state", "local state wiped", "totals", moment="between runs", needed={"wipes": 3}, bound_s=_TOTALS_BOUND_S)
def state_wiped(stage: CellEnvironment) -> None:
    """The state directory is deleted: everything is restored from the changelog."""
    with _counting(stage) as consumer:
        for _ in range(_ROUNDS):
            consumer.work_off(_COUNTED)
            shutil.rmtree(stage.folder / "state")
            stage.fire("wipes")
            produce_orders(stage, _COUNTED)
            since = time.time()
            after = consumer.drain()
            assert after.ended_at is not None
            stage.recovery_s.append(after.ended_at - since)
        _check_totals(consumer)


_afterwards = partial(totals_killed, (CrashPoint.COMMIT_IN_FLIGHT,), bug="offsets-afterwards")
CELLS(
    *("F33-offsets-control", "SIGKILL", "totals (control)"),
    moment="commit-in-flight",
    needed=("kills",),
    breaks="changelog-drift",
)(_afterwards)
