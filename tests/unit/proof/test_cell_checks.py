"""What cells look at themselves: refusals, access, limits, stores, totals, claims, brokers; nothing runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.journal import Entry, Phase, Step
from brew.names import CrashPoint, ExitCode
from brew.offsets import LogOffsets, SourcePosition
from brew.records import ERROR_REASON
from proof.campaign import runner
from proof.campaign.cell import Cell, nothing
from proof.campaign.cells import access, broker, claims, downstream, kafka, payload, spark, stores, wire, writer
from proof.campaign.cells.payload import MAX_BYTES
from proof.campaign.cells.stores import Sums
from proof.campaign.cluster import ExternalCluster
from proof.campaign.programs import Programs, digest
from proof.campaign.runner import RunSettings
from proof.campaign.stage import CellEnvironment, StalledError
from proof.claims.history import History
from proof.wire import torn
from proof.wire.late import Attempt, AttemptState, RecordPlacement, Try, tally

Patch = pytest.MonkeyPatch


@pytest.fixture
def stage(tmp_path: Path) -> CellEnvironment:
    cell = Cell("T-quiet", "T", "nothing", "nobody", "never", nothing)
    return CellEnvironment(cell, 1, ExternalCluster("nowhere:1"), tmp_path, Programs(tmp_path), Deadline(20))


def ended(code: int | None, text: str = "") -> Any:
    """A program that has ended, or that never does."""
    wait = {} if code is not None else {"side_effect": DeadlineExceeded("the end")}
    program = Mock(wait=Mock(return_value=code, **wait), last_output=lambda: text, printed=lambda: "")
    program.name, program.pid, program.ended_at = "writer-1", 7, 1.0
    program.ending = f"writer-1 ended with {code}: {text}"
    return program


def names(stage: CellEnvironment) -> list[str]:
    return [finding["name"] for finding in stage.findings]


@pytest.mark.parametrize(
    ("code", "text", "end", "only", "holds"),
    [
        (ExitCode.REFUSED, "offsets-vanished: restore", 5, None, True),
        (ExitCode.REFUSED, "no broker answers", 5, None, False),
        (ExitCode.DONE, "offsets-vanished: restore", 5, None, False),
        (ExitCode.REFUSED, "offsets-vanished: restore", 6, None, False),
        (ExitCode.REFUSED, "offsets-vanished: restore", 6, 1, False),
        (ExitCode.REFUSED, "offsets-vanished: restore", 6, 0, True),
    ],
)
def test_a_refusal_is_for_its_reason_and_writes_nothing(
    code: int, text: str, end: int, only: int | None, holds: bool, stage: CellEnvironment, monkeypatch: Patch
) -> None:
    """Partition 1 of the output ends at 5 before the run; only the partition that is refused may be watched."""
    ends = iter([5, end])
    monkeypatch.setattr(kafka, "_ends", lambda _: {"out": {0: LogOffsets(0, 9, 9), 1: LogOffsets(0, next(ends), 9)}})
    monkeypatch.setattr(stage, "writer", lambda *_: ended(code, text))
    with nullcontext() if holds else pytest.raises(StalledError):
        kafka.refused(stage, "offsets-vanished", only=only)
    assert stage.fired["refusals"] == holds


NAMED = "TOPIC_AUTHORIZATION_FAILED for User:pipeline: Write on topic out"


@pytest.mark.parametrize(
    ("code", "text", "left", "found", "healed"),
    [
        (ExitCode.REFUSED, NAMED, 0, [], True),
        (ExitCode.VIOLATION, NAMED, 0, ["unnamed-refusal"], False),
        (ExitCode.REFUSED, "AUTHORIZATION failed", 0, ["unnamed-refusal"], False),
        (ExitCode.REFUSED, NAMED, 1, ["left-open"], True),
        (None, NAMED, 0, ["access-unnoticed"], True),
    ],
)
def test_lost_access_ends_a_writer_that_names_it_and_leaves_nothing_open(
    code: int | None, text: str, left: int, found: list[str], healed: bool, stage: CellEnvironment, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(access, "_TIMED_OUT_S", 1e-9)
    monkeypatch.setattr(stage, "open_transactions", lambda: ["a transaction"] * left)
    writer, heal = ended(code, text), Mock()
    access._refused(stage, writer, "AUTHORIZATION", "User:pipeline", "Write on topic ", heal=heal)
    assert (names(stage), heal.called, writer.abort.called) == (found, healed, code is None)
    assert stage.fired["named_errors"] == (found in ([], ["left-open"]))


BIG = b"x" * (MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("reason", "parsed", "committed", "found"),
    [
        ("too-large", False, 1, []),
        ("too-large", False, 0, ["stuck-offset"]),
        ("too-large", True, 1, ["parsed-over-limit"]),
        ("not-json", False, 1, ["wrong-limit"]),
        (None, False, 1, ["wrong-limit"]),
    ],
)
def test_each_payload_is_held_against_its_own_dead_letter(
    reason: str | None, parsed: bool, committed: int, found: list[str], stage: CellEnvironment, monkeypatch: Patch
) -> None:
    letter = [(ERROR_REASON, (reason or "").encode()), *SourcePosition("in", 0, 0).headers()]
    rows = {stage.names.input: [(0, 0, None, BIG, [], 1)]}
    rows[stage.names.dead_letter] = [(0, 7, None, BIG, letter, 1)] if reason else []
    group = {"partitions": [{"partition": 0, "committed": committed, "end": 1}]}
    monkeypatch.setattr(payload.log_summary, "describe_group", lambda *_: group)
    monkeypatch.setattr(stage, "records", rows.__getitem__)
    payload._compare(stage, {digest(BIG)} if parsed else set())
    assert (names(stage), stage.fired["parsed"]) == (found, parsed)
    assert [stage.fired[name] for name in filter(None, [reason])] == [1] * (reason is not None)


@pytest.mark.parametrize("findings", [[], ["partition 3 has 2 owners"]])
def test_races_are_no_better_than_their_own_judge(
    findings: list[str], stage: CellEnvironment, monkeypatch: Patch
) -> None:
    counts = {"messages": 9, "wins": {"c0": 3, "c1": 5}, "rounds": 4, "owned_after_s": {"p50": 0.1, "max": 0.2}}
    program = Mock(report=lambda _deadline: {"findings": findings, **counts})
    monkeypatch.setattr(stage.programs, "python", lambda *_: program)
    claims.races(stage)
    assert (names(stage), dict(stage.fired)) == (["two-owners"] * len(findings), {"rounds": 4, "winners": 2})


@pytest.mark.parametrize(
    ("printed", "code", "found"),
    [
        ('["a", 1, {"0": 0}]\n["b", 1, {"0"', 0, []),
        ('["b", 1, {"0": 0}]\n', 0, ["two-owners"]),
        ('["a", 1, {"0": 0}]\n', 1, ["member-ended"]),
    ],
)
def test_members_are_judged_by_what_they_held_and_how_they_ended(
    printed: str, code: int, found: list[str], stage: CellEnvironment, monkeypatch: Patch
) -> None:
    """A line that a kill cut off says nothing."""
    history = History()
    claim = {"type": "ClaimingPartition", "partition": 0, "client_id": "a", "interval_ms": 1000}
    history.add(0, 0, json.dumps(claim).encode())
    monkeypatch.setattr(claims, "ClaimsFollower", lambda *_: SimpleNamespace(history=history))
    program = ended(code)
    program.printed = lambda: printed
    monkeypatch.setattr(stage.programs, "python", lambda *_: program)
    members = claims.ClaimMembers(stage)
    members.start()
    members.end()
    members.judge()
    assert (names(stage), stage.fired["views"], program.terminate.called) == (found, 1, True)


@pytest.mark.parametrize(
    ("code", "text", "holds"),
    [(3, "maxmemory-policy, appendfsync", True), (3, "maxmemory-policy", False), (0, "", False)],
)
def test_settings_that_forget_claims_are_refused_each_by_its_name(
    code: int, text: str, holds: bool, stage: CellEnvironment
) -> None:
    with nullcontext() if holds else pytest.raises(StalledError):
        downstream._refused(stage, ended(code, text), "maxmemory-policy", "appendfsync")
    assert stage.fired["refusals"] == holds


@pytest.mark.parametrize(
    ("drifts", "results", "found"),
    [
        ([], (2, 100), []),
        (["state of partition 0"], (2, 100), ["state-drift"]),
        (["changelog of partition 0"], (2, 100), ["changelog-drift"]),
        ([], (2, 99), ["changelog-drift"]),
        ([], (3, 100), ["changelog-drift"]),
    ],
)
def test_totals_are_compared_by_themselves_and_by_the_campaign(
    drifts: list[str], results: tuple[int, int], found: list[str], stage: CellEnvironment, monkeypatch: Patch
) -> None:
    report = {"first": [{"where": where} for where in drifts]}
    consumer: Any = SimpleNamespace(stage=stage, drain=Mock(), checked=lambda _option: report, made=("totals",))
    monkeypatch.setattr(stores, "output_sums", lambda _stage: Sums(2, 100, 3))
    monkeypatch.setattr(stores, "totals", lambda *_: (results[0], Decimal(results[1])))
    downstream._check_totals(consumer)
    assert names(stage) == found


@pytest.mark.parametrize(("findings", "seen"), [({}, 0), ({"receiver-lost": 2}, 1)])
def test_a_store_that_forgot_has_to_be_seen_to_have_lost_something(
    findings: dict[str, int], seen: int, stage: CellEnvironment, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(downstream, "_check", check := Mock())
    consumer: Any = Mock(checked=lambda: {"findings": findings})
    downstream._lost_then_read_again(stage, consumer)
    assert (stage.fired["losses_seen"], check.called) == (seen, True)


def outputs(stage: CellEnvironment, monkeypatch: Patch, *answers: tuple[int, ...]) -> Any:
    """The output has two orders of 100 cents and three cups in all; the database answers so."""
    orders = [{"total_cents": 60, "quantity": 1}, {"total_cents": 40, "quantity": 2}]
    rows = [(0, number, b"k", json.dumps(order).encode(), [], 1) for number, order in enumerate(orders)]
    answered = iter(answers)
    monkeypatch.setattr(stage, "records", lambda _topic: rows)
    monkeypatch.setattr(stores, "query_row", lambda *_: next(answered))
    return SimpleNamespace(stage=stage)


@pytest.mark.parametrize(
    ("rows", "balances", "found"),
    [
        ((2, 100), (2, 100), []),
        ((1, 100), (2, 100), ["ledger-missing"]),
        ((3, 100), (2, 100), ["ledger-duplicate"]),
        ((2, 99), (2, 100), ["ledger-drift"]),
        ((2, 100), (2, 99), ["ledger-drift"]),
        ((2, 100), (1, 100), ["ledger-drift"]),
    ],
)
def test_the_campaigns_sums_find_what_a_ledger_lacks(
    rows: tuple[int, ...], balances: tuple[int, ...], found: list[str], stage: CellEnvironment, monkeypatch: Patch
) -> None:
    """Beside the ledger's own check, which may be as wrong as the ledger."""
    stores.compare_ledger(outputs(stage, monkeypatch, rows, balances), "")
    assert names(stage) == found


@pytest.mark.parametrize(
    ("effects", "points", "found"),
    [
        ((2, 2), 3, []),
        ((1, 1), 3, ["receiver-lost"]),
        ((3, 2), 3, ["receiver-duplicate"]),
        ((2, 2), 2, ["receiver-lost"]),
        ((2, 2), 4, ["receiver-duplicate"]),
    ],
)
def test_the_campaigns_sums_find_what_a_receiver_lacks(
    effects: tuple[int, ...], points: int, found: list[str], stage: CellEnvironment, monkeypatch: Patch
) -> None:
    stores.compare_receiver(outputs(stage, monkeypatch, effects, (points,)), "")
    assert names(stage) == found


def test_the_findings_of_a_stores_own_check_are_the_cells(stage: CellEnvironment) -> None:
    report = {"findings": {"ledger-drift": 2, "ledger-missing": 1}, "examples": ["ledger-drift: 1 cent"]}
    stores.add_check_findings(stage, report)
    evidence = {finding["name"]: finding["evidence"] for finding in stage.findings}
    assert evidence == {"ledger-drift": "2, the first: 1 cent", "ledger-missing": "1, the first: no example"}


def test_totals_are_the_latest_of_each_tier(stage: CellEnvironment, monkeypatch: Patch) -> None:
    def row(key: bytes, orders: int, cents: str) -> tuple[Any, ...]:
        return 0, 0, key, json.dumps({"orders": orders, "sum_cents": cents}).encode(), [], 1

    rows = [row(b"tier/gold", 1, "10"), row(b"store/1", 9, "90"), row(b"tier/gold", 2, "25"), row(b"tier/tin", 1, "5")]
    monkeypatch.setattr(stage, "records", lambda _topic: rows)
    assert stores.totals(stage, "results") == (3, Decimal(30))


@pytest.mark.parametrize("fails", [False, True])
def test_a_frame_that_the_proxy_could_not_read_is_a_doubt(
    fails: bool, stage: CellEnvironment, monkeypatch: Patch
) -> None:
    """Such a connection ended, whatever the cell was about."""
    proxy = Mock(bootstrap="proxy:1", failures=["connection 3 ended"])
    monkeypatch.setattr(wire, "WireProxy", lambda *_, **__: nullcontext(proxy))
    with pytest.raises(OSError, match="no disk") if fails else nullcontext(), wire.between(stage):
        assert stage.bootstrap == "proxy:1"
        if fails:
            raise OSError("no disk")
    assert (stage.bootstrap, stage.doubts) == ("nowhere:1", ["the proxy could not read a frame: connection 3 ended"])


CLEAN, TORN = Attempt("a", ["a"], None, AttemptState.COMMITTED), Attempt("b", ["b"], None, AttemptState.GIVEN_UP)


@pytest.mark.parametrize(
    ("writer", "tries", "verdict", "fired", "found"),
    [
        ("strict", [Try(0, "s", [CLEAN], 47)], "proven", {"late_frames": 10, "broken": 0}, []),
        ("strict", [Try(0, "s", [CLEAN])], "inconclusive", {"late_frames": 9, "broken": 0}, []),
        ("strict", [Try(0, "s", [TORN], 47)], "violated", {"late_frames": 10, "broken": 1}, ["torn-txn"]),
        ("reuse", [Try(0, "s", [TORN], 47)], "violated", {"late_frames": 10, "broken": 1}, ["torn-txn"]),
        ("reuse", [Try(0, "s", [CLEAN], 47)], "inconclusive", {"late_frames": 10, "broken": 0}, []),
    ],
)
def test_the_proxys_experiments_are_results(
    writer: str,
    tries: list[Try],
    verdict: str,
    fired: dict[str, int],
    found: list[str],
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    """A kill stands for ten tries; each has to have a late frame that was answered."""
    log = {key: RecordPlacement(5, 1, 0, visible=True) for key in "ab"}
    made = torn.Result(writer, tally(tries, log), tries, log, [], 1.0)
    monkeypatch.setattr(wire, "experiment", lambda *_, **__: made)
    name = "F11-end-txn-strict" if writer == "strict" else "F11-end-txn-control"
    (cell,) = (cell for cell in wire.CELLS if cell.name == name)
    result = runner.run(cell, 1, ExternalCluster("nowhere:1"), RunSettings(tmp_path, kills=1))
    assert (result.verdict, result.fired, result.needed) == (verdict, fired, {"late_frames": 10})
    assert [anomaly["name"] for anomaly in result.anomalies] == found
    assert result.as_expected is (verdict == ("proven" if writer == "strict" else "violated"))


@pytest.mark.parametrize(
    ("tries", "broken", "unclear", "verdicts"),
    [
        (10, 0, 0, ("proven", "inconclusive")),
        (10, 0, 1, ("inconclusive", "inconclusive")),
        (10, 1, 1, ("violated", "inconclusive")),
        (100, 94, 0, ("violated", "inconclusive")),
        (100, 95, 0, ("violated", "violated")),
        (0, 0, 0, ("proven", "inconclusive")),
    ],
)
def test_a_control_is_believed_from_its_95th_broken_try_of_100_and_ours_breaks_with_the_first(
    tries: int, broken: int, unclear: int, verdicts: tuple[str, str]
) -> None:
    counted = torn.Tally(tries, tries - broken - unclear, broken, unclear, Counter(), Counter(), [], [])
    results = [torn.Result(writer, counted, [], {}, [], 1.0) for writer in ("strict", "reuse")]
    assert tuple(result.verdict for result in results) == verdicts


def commits(*moments: float, partition: int = 1) -> list[Entry]:
    return [Entry(at, "writer", 7, Step.COMMIT, Phase.DONE, {"partition": partition}) for at in moments]


@pytest.fixture
def calls(stage: CellEnvironment, monkeypatch: Patch) -> Mock:
    """The brokers of a cell and its waits: a fault begins at 100 s and is healed at 120 s."""
    calls = Mock(brokers=[1, 2, 3], heal=lambda: 120.0)
    vars(stage)["sandbox"] = calls
    monkeypatch.setattr(broker, "running", lambda _stage: nullcontext())
    monkeypatch.setattr(broker, "in_transaction", lambda *_: 100.0)
    for name in ("moved", "whole"):
        monkeypatch.setattr(broker, name, getattr(calls, name))
    for name in ("pause", "recovered", "await_commits"):
        monkeypatch.setattr(stage, name, getattr(calls, name))
    return calls


@pytest.mark.parametrize(("entries", "holds"), [(commits(99, 103), True), (commits(103.1), False)])
def test_nothing_is_acknowledged_by_brokers_that_are_dead(
    entries: list[Entry], holds: bool, stage: CellEnvironment, calls: Mock
) -> None:
    """A request from before their death may be answered for three more seconds."""
    stage.journals.entries = entries
    with nullcontext() if holds else pytest.raises(StalledError, match="1 transactions were acknowledged with 2 of"):
        broker.killed_at_once(2, 12.0, stage)
    assert calls.restart.called is holds


@pytest.mark.parametrize(
    ("entries", "held_up"),
    [
        ([], 1),
        (commits(102.9, 120.1), 1),
        (commits(110, partition=2), 1),
        (commits(103.1), 0),
        (commits(119.9), 0),
    ],
)
def test_a_cut_holds_up_its_own_partition_until_it_is_healed(
    entries: Sequence[Entry], held_up: int, stage: CellEnvironment, calls: Mock
) -> None:
    stage.journals.entries = [*entries]
    broker.cut_off("", False, stage)
    assert stage.fired["commits_held_up"] == held_up
    calls.recovered.assert_called_once_with(120.0, [1])


def test_leaders_that_stay_are_not_counted_as_moved(stage: CellEnvironment, monkeypatch: Patch) -> None:
    """A storm whose reassignments have no effect shows nothing."""
    looks = iter([{("in", 0): 1, ("in", 1): 2}, {("in", 0): 3}, {("in", 1): 2, ("out", 0): 1}])
    clock = iter([0.0, 1.0, 2.0, 99.0])
    vars(stage)["sandbox"] = Mock(brokers=[1, 2, 3])
    monkeypatch.setattr(broker, "time", SimpleNamespace(monotonic=lambda: next(clock), time=lambda: 0.0))
    monkeypatch.setattr(broker, "running", lambda _stage: nullcontext())
    monkeypatch.setattr(broker, "_leaders", lambda _stage: dict(next(looks)))
    for name in ("move_leaders", "whole"):
        monkeypatch.setattr(broker, name, Mock())
    for name in ("pause", "recovered"):
        monkeypatch.setattr(stage, name, Mock())
    broker.storm(stage)
    assert (stage.fired["storms"], stage.fired["leaders_moved"]) == (2, 1)


@pytest.mark.parametrize(("code", "commits", "holds"), [(1, 4, True), (0, 4, False), (1, 5, False)])
def test_a_run_without_a_local_disk_neither_ends_well_nor_commits(
    code: int, commits: int, holds: bool, stage: CellEnvironment, monkeypatch: Patch
) -> None:
    looks, codes = iter([4, commits]), iter([code, 0])
    monkeypatch.setattr(stage, "orders", Mock())
    monkeypatch.setattr(stage, "writer", lambda *_: ended(next(codes)))
    monkeypatch.setattr(stage, "commits", lambda: next(looks))
    with nullcontext() if holds else pytest.raises(StalledError):
        spark.no_local_disk(stage)
    assert stage.fired["full_disks"] == holds


def test_a_drivers_partitions_are_those_of_its_last_second(stage: CellEnvironment) -> None:
    """What it worked on before may have been another driver's when it died."""
    lines = [commits(1.0, partition=0), commits(4.6, partition=1), commits(5.5, partition=2), commits(9.0, partition=3)]
    stage.journals.entries = [entry for (entry,) in lines[:3]] + [entry._replace(pid=8) for entry in lines[3]]
    program: Any = Mock(all_pids=lambda: {7})
    assert claims._lately(stage, program) == {1, 2}
    assert claims.works(stage, program) == {0, 1, 2}


@pytest.mark.parametrize(
    ("codes", "kills", "recovered", "seeded"),
    [
        ([-9, -9, 0], 2, [1.0, 1.0], 1),
        ([-9, 0, -9, 0], 2, [1.0, 1.0], 2),
        ([0, -9, -9, 0], 2, [1.0, 1.0], 2),
        ([-9, 1], 1, None, 1),
        ([-6], 0, None, 1),
    ],
)
def test_members_die_until_enough_have_and_the_next_one_recovers(
    codes: list[int],
    kills: int,
    recovered: list[float] | None,
    seeded: int,
    stage: CellEnvironment,
    monkeypatch: Patch,
) -> None:
    """One that drains first gets more orders; one that ends by itself in another manner is a stall."""
    stage.kills = 2
    programs = [ended(code) for code in codes]
    for number, program in enumerate(programs):
        program.code, program.ended_at = Mock(return_value=codes[number]), float(number)
    starts = iter(programs)
    consumer: Any = Mock(stage=stage, start=lambda *_: next(starts))
    monkeypatch.setattr(stores, "produce_orders", produced := Mock())
    monkeypatch.setattr(stores, "_first_move", lambda _stage, program, *_: program.ended_at)
    with nullcontext() if recovered else pytest.raises(StalledError, match="instead of crashing"):
        stores.kill_repeatedly(consumer, ["after-commit"], lambda: 0, per_kill=10)
    assert (stage.fired["kills"], produced.call_count) == (kills, seeded)
    assert not recovered or (stage.recovery_s, next(starts, None)) == (recovered, None)


@pytest.mark.parametrize(("codes", "kills", "seeded"), [([-9, -9], 2, 1), ([-9, 0, -9], 2, 2), ([-9, 3], 1, None)])
def test_a_writer_dies_until_it_has_often_enough_and_a_last_one_recovers(
    codes: list[int], kills: int, seeded: int | None, stage: CellEnvironment, monkeypatch: Patch
) -> None:
    stage.kills = 2
    starts = iter([ended(code) for code in codes])
    for name in ("orders", "drain"):
        monkeypatch.setattr(stage, name, Mock())
    monkeypatch.setattr(stage, "writer", lambda *_: next(starts))
    with nullcontext() if seeded else pytest.raises(StalledError, match="instead of crashing"):
        writer.crash_loop(CrashPoint.AFTER_FLUSH, stage)
    assert (stage.fired["kills"], len(stage.killed)) == (kills, kills)
    assert not seeded or (stage.orders.call_count, stage.drain.call_count) == (seeded, 1)


@pytest.mark.parametrize(("peak_kib", "doubts"), [(600 * 1024, 0), (600 * 1024 + 1, 1)])
def test_a_writer_that_takes_more_than_600_mib_is_a_doubt(
    peak_kib: int, doubts: int, stage: CellEnvironment, monkeypatch: Patch
) -> None:
    program = ended(0)
    program.code = Mock(side_effect=[None, 0])
    monkeypatch.setattr(payload.cluster_admin, "set_config", Mock())
    vars(stage.cluster)["admin"] = None
    monkeypatch.setattr(payload, "Writer", lambda *_: nullcontext(Mock()))
    monkeypatch.setattr(payload, "watching", lambda *_: nullcontext())
    monkeypatch.setattr(payload, "payloads", lambda *_: iter(()))
    monkeypatch.setattr(payload, "parsed", lambda _folder: set())
    monkeypatch.setattr(payload, "_compare", Mock())
    monkeypatch.setattr(payload, "_peak_kib", lambda _pid: peak_kib)
    monkeypatch.setattr(stage, "writer", lambda *_: program)
    monkeypatch.setattr(stage, "pause", Mock())
    payload.poison(5, stage)
    assert (len(stage.doubts), stage.fired["payloads"]) == (doubts, 5)
