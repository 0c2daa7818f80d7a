"""`brew doctor` decides from values: what hangs, what lingers, who waits, and what ends it."""

from __future__ import annotations

import io
import json
import re
import time
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from rich.console import Console

from brew.cli import exit_code_of, printable
from brew.cluster import (
    ONGOING,
    TRANSACTIONS_TOPIC,
    CoordinatorTransaction,
    PartitionTransaction,
    Place,
    ReadBounds,
    Unknown,
)
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Fatal
from brew.kafka import transactions_admin
from brew.names import ExitCode, SinkTransactionalId, TransactionalId
from operations import doctor, hanging_transactions
from operations.hanging_transactions import Diagnosis, Kind, diagnose, select_to_abort
from operations.ui import page
from pipeline.__main__ import cli

NOW_MS = 10_000_000
OLDER_THAN_S = 60
HELD = PartitionTransaction("out", 2, 90, 7, 3, NOW_MS - 1000)


def known(state: str = ONGOING, age_s: float = 5.0, timeout_s: float = 120.0, **more: object) -> CoordinatorTransaction:
    began = int(NOW_MS - age_s * 1000)
    places = frozenset({("out", 2), ("__consumer_offsets", 5)})
    transaction = CoordinatorTransaction("g:in:2", state, 7, 3, int(timeout_s * 1000), began, places)
    return replace(transaction, **more)


def named(transactional_id: str) -> CoordinatorTransaction:
    return known(transactional_id=transactional_id)


OLD = replace(HELD, last_ms=NOW_MS - 900_000 - 300_001)
WITHIN = "within its timeout"
ENDED = "its coordinator has no such open transaction ('g:in:2' is {}): no timeout ends it"
ENDING = "its markers are being written"
UNTOLD = "no coordinator reports it: it is hanging, or this user lacks Describe on its transactional id"
NOBODYS = "no coordinator knows the producer, and its last record is 1200 s old: no timeout ends it"


@pytest.mark.parametrize(
    ("held", "owner", "kind", "why"),
    [
        (HELD, known(), "open", WITHIN),
        (HELD, known(began_ms=None), "open", WITHIN),
        (HELD, known(age_s=60.0), "open", WITHIN),
        (HELD, known(age_s=60.1), "lingering", "open for longer than 60 s; its timeout ends it in 60 s"),
        (HELD, known(age_s=90, timeout_s=900), "lingering", "open for longer than 60 s; its timeout ends it in 810 s"),
        (HELD, known(age_s=120), "lingering", "open for longer than 60 s; its timeout ends it in 0 s"),
        (HELD, known(age_s=121), "lingering", "open for longer than its timeout of 120 s"),
        (HELD, known(age_s=30.1, timeout_s=30), "lingering", "open for longer than its timeout of 30 s"),
        (HELD, known("PrepareCommit", age_s=500), "open", f"PrepareCommit: {ENDING}"),
        (HELD, known("PrepareAbort", age_s=500), "open", f"PrepareAbort: {ENDING}"),
        (HELD, known("PrepareEpochFence", producer_epoch=4), "open", f"PrepareEpochFence: {ENDING}"),
        (HELD, known("CompleteCommit"), "hanging", ENDED.format("CompleteCommit")),
        (HELD, known("Empty"), "hanging", ENDED.format("Empty")),
        (HELD, known(places=frozenset({("out", 1)})), "hanging", ENDED.format(ONGOING)),
        (HELD, known(producer_epoch=4), "hanging", ENDED.format(ONGOING)),
        (HELD, None, "unknown", UNTOLD),
        (replace(OLD, last_ms=OLD.last_ms + 1), None, "unknown", UNTOLD),
        (OLD, None, "hanging", NOBODYS),
        (OLD, known(producer_id=8), "hanging", NOBODYS),
    ],
)
def test_what_a_leader_holds_is_judged_by_its_coordinator(
    held: PartitionTransaction, owner: CoordinatorTransaction | None, kind: str, why: str
) -> None:
    """Hanging is what the coordinator has ended, or never knew; only what it has open has an age."""
    cases = diagnose([held], [owner] if owner else [], OLDER_THAN_S, NOW_MS)
    (case,) = [one for one in cases if one.producer_id == held.producer_id and one.holds]
    assert (case.kind, case.why, case.holds) == (kind, why, (held,))
    assert case.producer_epoch == (owner.producer_epoch if kind == "open" and owner else 3)
    mine = owner if owner is not None and owner.producer_id == held.producer_id else None
    aged = mine is not None and mine.began_ms is not None and kind in {"open", "lingering"}
    assert (case.known, case.age_s is not None) == (mine, aged)


def test_partitions_of_one_transaction_make_one_case_and_the_sick_come_first() -> None:
    other = PartitionTransaction("out", 1, 5, 7, 3, NOW_MS)
    orphan = PartitionTransaction("out", 3, 5, 9, 0, NOW_MS)
    owner = known(places=frozenset({("out", 1), ("out", 2)}))
    ended = known("Empty", transactional_id="x", producer_id=9)
    cases = diagnose([HELD, other, orphan], [owner, ended], OLDER_THAN_S, NOW_MS)
    assert [(one.kind, one.holds) for one in cases] == [(Kind.HANGING, (orphan,)), (Kind.OPEN, (other, HELD))]


def test_cases_are_told_worst_first_then_oldest_first() -> None:
    held = [replace(HELD, producer_id=p) for p in (1, 2, 3, 4, 5, 6, 7)]
    ages = {3: 70, 4: 90, 5: 0.5, 6: 0.5}
    owners = [known("Empty", producer_id=1), *(known(producer_id=p, age_s=age_s) for p, age_s in ages.items())]
    owners.append(known(producer_id=7, began_ms=None))
    order = [(one.kind.value, one.producer_id) for one in diagnose(held[::-1], owners, OLDER_THAN_S, NOW_MS)]
    assert order[:4] == [("hanging", 1), ("lingering", 4), ("lingering", 3), ("unknown", 2)]
    assert order[4:] == [("open", 5), ("open", 6), ("open", 7)]


def test_the_newest_record_of_a_transaction_says_whether_it_may_still_live() -> None:
    """In whichever partition it lies; one that holds nothing back yet is told too, as pending offsets can wait."""
    old, young = replace(HELD, last_ms=0), replace(HELD, partition=3)
    (case,) = diagnose([old, young], [], OLDER_THAN_S, NOW_MS)
    assert (case.kind, case.holds) == (Kind.UNKNOWN, (old, young))
    (case,) = diagnose([], [known(age_s=70)], OLDER_THAN_S, NOW_MS)
    assert (case.kind, case.holds, case.transactional_id) == (Kind.LINGERING, (), "g:in:2")
    assert diagnose([], [known("CompleteAbort")], OLDER_THAN_S, NOW_MS) == []


def test_an_id_that_goes_on_elsewhere_is_a_case_of_its_own() -> None:
    """What hangs under its older epoch is another one."""
    newer = known(producer_epoch=4)
    hanging, ongoing = diagnose([HELD], [newer], OLDER_THAN_S, NOW_MS)
    assert (hanging.kind, hanging.holds, hanging.names) == (Kind.HANGING, (HELD,), ("out/2/7",))
    assert (ongoing.kind, ongoing.holds, ongoing.producer_epoch) == (Kind.OPEN, (), 4)
    assert ongoing.names == ("g:in:2",)
    assert Diagnosis(Kind.HANGING, "", 7, 3, (), newer).names == ("g:in:2",)


def case(
    kind: Kind = Kind.LINGERING, owner: CoordinatorTransaction | None = None, *holds: PartitionTransaction
) -> Diagnosis:
    return Diagnosis(kind, "why", 7, 3, holds or (HELD,), owner)


def test_what_only_seemed_to_hang_is_dropped_at_a_second_look() -> None:
    """A transaction that ended between two questions looks like a hanging one."""
    hanging, open_one = case(Kind.HANGING), case(Kind.OPEN, known())
    assert hanging_transactions.confirm_hanging([hanging, open_one], []) == [open_one]
    assert hanging_transactions.confirm_hanging([hanging, open_one], [HELD]) == [hanging, open_one]
    assert hanging_transactions.confirm_hanging([hanging], [replace(HELD, first_offset=91)]) == []
    assert hanging_transactions.confirm_hanging([hanging], [replace(HELD, last_ms=NOW_MS)]) == [hanging]


def test_a_pipelines_id_names_its_group_and_input_partition() -> None:
    assert case(Kind.OPEN, known()).owner == TransactionalId("g", "in", 2)
    assert case(Kind.OPEN, named("flink-7")).owner is None
    assert case(Kind.UNKNOWN).owner is case(Kind.UNKNOWN).sink is case(Kind.UNKNOWN).position is None
    sink = case(Kind.OPEN, named("revenue:out:sink"))
    assert (sink.owner, sink.sink) == (None, SinkTransactionalId("revenue", "out"))
    assert case(Kind.OPEN, known()).names == ("g:in:2", "out/2/7")
    assert case(Kind.HANGING, known(producer_epoch=4)).names == ("out/2/7",)


def test_who_waits_is_told_by_where_groups_stand() -> None:
    """A group at the first open offset gets nothing; one before it will come up to it; nobody asked about the other."""
    groups = {"b": {("out", 2): 90}, "a": {("out", 2): 91}, "c": {("out", 2): 89}, "other": {("out", 1): 99}}
    two = case(Kind.OPEN, known(), HELD, replace(HELD, partition=3))
    first, second = hanging_transactions.blocked_partitions(two, {("out", 2): ReadBounds(90, 91)}, groups)
    assert list(first.values()) == ["out", 2, 90, 1, ["a", "b"], ["c"]]
    assert list(second.values()) == ["out", 3, 90, 0, [], []]
    (behind,) = hanging_transactions.blocked_partitions(case(), {("out", 2): ReadBounds(80, 80)}, {})
    assert behind["offsets_waiting"] == 0
    sink = case(Kind.OPEN, named("revenue:out:sink"), replace(HELD, partition=0))
    groups = {"ledger": {("out", 0): 90}, "revenue": {("out", 0): 4}}
    (entry,) = hanging_transactions.blocked_partitions(sink, {("out", 0): ReadBounds(90, 130)}, groups)
    assert (entry["groups_at_it"], entry["groups_on_the_way"]) == (["ledger"], []), "a sink's own group never waits"


def test_what_is_ended_is_named_or_sick_and_not_within_its_own_time_out() -> None:
    """A name ends anything; `--all` what hangs or is overdue, and what is young where the caller says so."""
    open_one, sick, unknown = case(Kind.OPEN, known()), case(Kind.HANGING), case(Kind.UNKNOWN)
    assert select_to_abort([open_one, sick, unknown], [], everything=True) == [sick]
    assert select_to_abort([open_one], ["g:in:2"], everything=False) == [open_one]
    assert select_to_abort([unknown], ["out/2/7"], everything=False) == [unknown]
    healthy, young, at_its_end, overdue = (
        diagnose([HELD], [known(age_s=age_s, timeout_s=900)], OLDER_THAN_S, NOW_MS) for age_s in (59, 61, 900, 900.1)
    )
    assert [one.kind for one in young] == [Kind.LINGERING]
    assert select_to_abort([*young, *at_its_end, *overdue], [], everything=True) == overdue
    assert select_to_abort([*healthy, *young], [], everything=True, young=True) == young
    assert [one.overdue for one in (*young, *at_its_end, *overdue)] == [False, False, True]
    for untold in (replace(case(Kind.LINGERING, known()), age_s=None), replace(case(Kind.LINGERING), age_s=10**9)):
        assert (untold.overdue, select_to_abort([untold], [], everything=True)) == (False, [])


@pytest.mark.parametrize(
    ("now", "same"),
    [
        (known(), True),
        (known("PrepareAbort"), True),
        (known("CompleteCommit"), False),
        (known(producer_epoch=4), False),
        (known(producer_id=8), False),
        (known(age_s=4.999), False),
        (None, False),
    ],
)
def test_a_transaction_is_the_same_while_producer_epoch_and_start_are(
    now: CoordinatorTransaction | None, *, same: bool
) -> None:
    """An owner that has committed and begun anew goes on under the same id, and often under the same epoch."""
    assert hanging_transactions.same_transaction(case(Kind.LINGERING, known()), now) is same


def test_a_marker_is_written_only_for_what_still_is_nobodys() -> None:
    """A coordinator that has it open by now will end it; another first offset is another transaction."""
    hanging, ended = case(Kind.HANGING, known("Empty")), known("Empty")
    newer = replace(HELD, last_ms=NOW_MS, coordinator_epoch=9)
    for held, owners in (([HELD], [ended]), ([HELD], []), ([HELD], [known(producer_epoch=4)]), ([newer], [ended])):
        assert hanging_transactions.still_hanging(hanging, held, owners) == held
    assert hanging_transactions.still_hanging(hanging, [HELD], [known(producer_id=8)]) == [HELD]
    assert hanging_transactions.still_hanging(hanging, [HELD], [known()]) == []
    assert hanging_transactions.still_hanging(hanging, [replace(HELD, first_offset=91)], [ended]) == []
    assert hanging_transactions.still_hanging(hanging, [], [ended]) == []


def test_one_that_can_not_be_ended_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is accounted for: ended, over by itself, left alone, or failed with what to do next."""
    refused = "no answer"
    first, second, third, fourth = (case(Kind.LINGERING, named(name)) for name in "abcd")

    def end(_connection: Connection, one: Diagnosis, _deadline: Deadline) -> bool:
        if one is second:
            raise DeadlineExceeded(refused)
        return one is first

    monkeypatch.setattr(doctor, "abort_transaction", end)
    reported: list[str] = []
    cases, nowhere = [first, second, third, fourth], Connection("nowhere:1")
    report = doctor.abort_transactions(
        nowhere, cases, lambda one: one is not fourth, lambda one, _: reported.append(one.names[0])
    )
    assert reported == ["a", "b", "c"]
    document = report.document()
    assert (document["ended"], document["over"], document["left"]) == (["a"], ["c"], ["d"])
    (failed,) = document["failed"]
    assert (failed["transaction"], refused in failed["error"], "try again" in failed["error"]) == ("b", True, True)
    assert report.unhealthy(cases) == [second, fourth]


@pytest.mark.parametrize(
    ("diagnosis", "now", "looks", "did"),
    [
        (case(Kind.LINGERING, known()), known(), [[HELD], []], (True, ["fence g:in:2"])),
        (case(Kind.LINGERING, known()), known("PrepareAbort"), [[HELD], []], (False, [])),
        (case(Kind.LINGERING, known()), known(producer_epoch=4), [], (False, [])),
        (case(Kind.LINGERING, known()), None, [], (False, [])),
        (case(Kind.HANGING), None, [[HELD], [HELD], [replace(HELD, first_offset=95)]], (True, ["marker"])),
        (case(Kind.HANGING), None, [[], []], (False, [])),
        (case(Kind.LINGERING, known()), known(), [[HELD]] * 2, DeadlineExceeded),
    ],
)
def test_an_abort_asks_again_ends_only_what_is_the_same_and_waits_for_its_end(
    diagnosis: Diagnosis,
    now: CoordinatorTransaction | None,
    looks: list[list[PartitionTransaction]],
    did: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fence of one that is ending, or of its owner's next one, would only hit the owner."""
    done, left = list[str](), [*looks]
    transactions = SimpleNamespace(
        named=lambda _names: [now] if now else [],
        of_producers=lambda _ids: [],
        held=lambda _places: left.pop(0),
        write_abort_marker=lambda _held: done.append("marker"),
    )
    monkeypatch.setattr(doctor, "_LOOK_S", 0.01)
    monkeypatch.setattr(doctor, "open_transactions_admin", lambda *_: nullcontext(transactions))
    monkeypatch.setattr(doctor, "fence", lambda _connection, name, _deadline: done.append(f"fence {name}"))
    if did is DeadlineExceeded:
        with pytest.raises(DeadlineExceeded, match="end of the transaction"):
            doctor.abort_transaction(Connection("k:1"), diagnosis, Deadline(0.001))
    else:
        assert (doctor.abort_transaction(Connection("k:1"), diagnosis, Deadline(5)), done) == did
        assert left == []


def test_a_fence_without_an_answer_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call lasted up to 30 s, and SIGTERM and Ctrl-C waited for its end."""
    waits: list[float] = []

    def init_transactions(timeout: float) -> None:
        waits.append(timeout)
        if len(waits) < 30:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "", False, True, False))

    client = SimpleNamespace(init_transactions=init_transactions)
    monkeypatch.setattr(transactions_admin, "producer", lambda *_given, **_settings: client)
    transactions_admin.fence(Connection("k:1"), "g:in:2", Deadline(30))
    assert (len(waits), max(waits)) == (30, 3.0)


NOTHING = doctor.TransactionsSnapshot((), {}, {}, ())
YOUNG = replace(case(Kind.LINGERING, named("young")), age_s=70.0)
OVERDUE = replace(case(Kind.LINGERING, named("overdue")), age_s=130.0)


@pytest.mark.parametrize(
    ("words", "code", "aborted"),
    [
        ([], ExitCode.VIOLATION, []),
        (["--all", "--yes"], ExitCode.VIOLATION, ["overdue"]),
        (["--all", "--yes", "--older-than", "60"], ExitCode.VIOLATION, ["overdue"]),
        (["--all", "--yes", "--group", "g"], ExitCode.VIOLATION, ["overdue"]),
        (["--all", "--yes", "--older-than", "60", "--group", "g"], ExitCode.DONE, ["young", "overdue"]),
        (["--transaction", "young", "--yes"], ExitCode.VIOLATION, ["young"]),
        (["--transaction", "other", "--yes"], ExitCode.REFUSED, []),
        (["--all"], ExitCode.VIOLATION, []),
        (["--all", "--json"], ExitCode.USAGE, []),
        (["--all", "--yes", "--topic", "out", "--group", "fails"], ExitCode.REFUSED, ["overdue"]),
    ],
)
def test_only_what_was_named_or_agreed_to_is_aborted(
    words: list[str], code: ExitCode, aborted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who says no to each question. What is left decides the exit code; a failure comes first."""
    done = list[str]()

    def abort(_connection: Connection, one: Diagnosis, _deadline: Deadline) -> bool:
        done.append(one.names[0])
        if "fails" in words:
            raise DeadlineExceeded("no answer")
        return True

    monkeypatch.setattr(doctor, "connected", lambda _bootstrap: Connection("k:1"))
    monkeypatch.setattr(doctor, "examine", lambda *_: replace(NOTHING, cases=(YOUNG, OVERDUE)))
    monkeypatch.setattr(doctor, "abort_transaction", abort)
    monkeypatch.setattr(doctor.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(doctor.click, "confirm", lambda _question: False)
    assert exit_code_of(cli, "brew", ["doctor", *(["--abort"] if words else []), *words]) == code
    assert done == aborted


@pytest.mark.parametrize(
    ("assumed", "words", "aborted"),
    [
        (True, ["--all"], []),
        (True, ["--transaction", "out/2/7"], ["out/2/7"]),
        (False, ["--all"], ["out/2/7"]),
    ],
)
def test_what_hangs_only_by_an_assumed_limit_is_aborted_only_by_name(
    assumed: bool,
    words: list[str],
    aborted: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A marker in a transaction that its coordinator still has open would tear it; that limit may be far longer."""
    done = list[str]()
    monkeypatch.setattr(doctor, "connected", lambda _bootstrap: Connection("k:1"))
    monkeypatch.setattr(doctor, "examine", lambda *_: replace(NOTHING, cases=(case(Kind.HANGING),), assumed=assumed))
    monkeypatch.setattr(doctor, "abort_transaction", lambda _connection, one, _deadline: not done.append(one.names[0]))
    code = exit_code_of(cli, "brew", ["doctor", "--abort", "--yes", *words])
    assert (code, done) == (ExitCode.DONE if aborted else ExitCode.VIOLATION, aborted)
    assert aborted or "rests on an assumed transaction.max.timeout.ms; run as a user with DescribeConfigs" in " ".join(
        capsys.readouterr().out.split()
    )


def test_one_group_is_asked_about_by_its_own_transactions() -> None:
    mine, other, nobodys = case(Kind.OPEN, known()), case(Kind.OPEN, named("h:in:2")), case(Kind.HANGING)
    assert [doctor._belongs(one, "g") for one in (mine, other, nobodys)] == [True, False, False]


def test_the_groups_whose_positions_an_abort_moves_are_asked_first_and_those_left_out_are_told() -> None:
    """Without its own group's offset, "after an abort" said that it reads again from its first offset."""
    names, cases = ["a", "b", "h"], [case(Kind.LINGERING, named("h:in:2"))]
    note = "offsets of 1 of 3 groups, which may wait, too; set --groups to 3 to read all"
    assert doctor._groups_to_ask(names, cases, 2) == (["h", "a"], [note])
    assert doctor._groups_to_ask(names, cases, 3) == (["h", "a", "b"], [])
    assert doctor._groups_to_ask(["a"], cases, 3) == (["a"], [])


HIDDEN = "; the aborted copies stay in the log, hidden from read_committed readers"
NEVER = "no known position goes back; the records become aborted, hidden from read_committed readers"


@pytest.mark.parametrize(
    ("transaction", "text"),
    [
        (known(), f"group g reads in[2] again from offset 17 at its next attempt{HIDDEN}"),
        (named("h:in:2"), f"group h reads in[2] again from its first offset at its next attempt{HIDDEN}"),
        (case(Kind.OPEN, named("flink-7")), "its owner is fenced, and has to restart from its last committed position"),
        (named("g:in:sink"), f"sink g writes batch 4 again at its query's next attempt{HIDDEN}"),
        (named("h:in:sink"), f"sink h writes its first batch again at its query's next attempt{HIDDEN}"),
        (case(Kind.HANGING, known("Empty")), NEVER),
        (case(Kind.HANGING, known(producer_epoch=4)), NEVER),
        (case(Kind.UNKNOWN), NEVER),
    ],
)
def test_a_fence_ends_what_a_coordinator_has_open_and_says_what_is_read_again(transaction: Any, text: str) -> None:
    """The rest takes a marker by hand, with Kafka's own command, for whoever has the rights that this client lacks."""
    diagnosis = transaction if isinstance(transaction, Diagnosis) else case(Kind.LINGERING, transaction)
    assert hanging_transactions.aborted_by_fence(diagnosis) is (text != NEVER)
    assert hanging_transactions.reprocessed_after_abort(diagnosis, {"g": {("in", 2): 17, ("in", 0): 4}}) == text
    assert hanging_transactions.kafka_abort_command("k:9092", HELD) == (
        "kafka-transactions.sh --bootstrap-server k:9092 abort --topic out --partition 2 --start-offset 90"
    )


DOUBTS = "1 transaction that no coordinator reports and 2 partitions that could not be read"
UNOWNED = "1 hanging transaction without a known owner (run without --group and GROUP_ID to see it)"
MAY = "may describe all topics and transactional ids"


@pytest.mark.parametrize(
    ("snapshot", "code", "text"),
    [
        (NOTHING, ExitCode.DONE, "no hanging or lingering transaction\n"),
        (
            replace(NOTHING, unavailable=("offsets of 2 groups",)),
            ExitCode.DONE,
            "no hanging or lingering transaction\n",
        ),
        (
            replace(NOTHING, cases=(case(Kind.UNKNOWN), case(Kind.OPEN, known())), unread=2),
            ExitCode.REFUSED,
            f"no hanging or lingering transaction known, but {DOUBTS}; run it again, as a user that {MAY}\n",
        ),
        (
            replace(NOTHING, unowned=1),
            ExitCode.REFUSED,
            f"no hanging or lingering transaction known, but {UNOWNED}; run it again, as a user that {MAY}\n",
        ),
        (replace(NOTHING, cases=(case(Kind.HANGING),), unread=2), ExitCode.VIOLATION, ""),
    ],
)
def test_what_could_not_be_judged_is_not_called_healthy(
    snapshot: doctor.TransactionsSnapshot,
    code: ExitCode,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended with 0, and said "no hanging or lingering transaction" below a panel of one that may be hanging."""
    monkeypatch.setattr(doctor, "connected", lambda _bootstrap: Connection("k:1"))
    monkeypatch.setattr(doctor, "examine", lambda *_what: snapshot)
    assert exit_code_of(cli, "brew", ["doctor"]) == code
    assert capsys.readouterr().out.endswith(text)
    monkeypatch.setenv("GROUP_ID", "g")  # as in a pod of ours, where it looked as if no other program's was there
    assert exit_code_of(cli, "brew", ["doctor"]) == code
    of_group = "transaction of group g (--group, GROUP_ID: others are left out)"
    assert capsys.readouterr().out.endswith(text.replace("transaction", of_group, 1))
    assert exit_code_of(cli, "brew", ["doctor", "--json"]) == code
    assert bool(json.loads(capsys.readouterr().out)["doubts"]) is bool(snapshot.unread or snapshot.unowned)


def test_a_command_to_run_next_can_be_copied_whatever_the_names_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A transactional id, or a group, may hold anything: spaces, or what a shell would run."""
    (case,) = diagnose([HELD], [named("a b; ls")], OLDER_THAN_S, NOW_MS)
    doctor._advise([case], [])
    assert "--transaction 'a b; ls'`" in " ".join(capsys.readouterr().out.split())
    view: Any = SimpleNamespace(names=SimpleNamespace(bootstrap="k:1", input="in", group="a b; ls"))
    row: Any = SimpleNamespace(state="stuck")
    assert page.command(row, view) == "brew lag --bootstrap k:1 --input in --group 'a b; ls'"


@pytest.mark.parametrize(
    ("orphan", "chosen", "kind"),
    [("orphan", [], Kind.HANGING), (TRANSACTIONS_TOPIC, ["out", "secret", "t"], Kind.UNKNOWN)],
)
def test_a_partition_that_can_not_be_read_hides_no_others_transactions(
    orphan: str, chosen: list[str], kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The leader refuses a whole request for one topic without Read; the refusal names the right. Without all
    coordinators, a transaction that none reports may be about to be committed, and `--abort --all` would have torn it.
    """

    def list_offsets(asked: Any, *, isolation_level: IsolationLevel, **_more: Any) -> dict[Any, Future[Any]]:
        answers: dict[Any, Future[Any]] = {tp: Future() for tp in asked}
        found = SimpleNamespace(offset=3 if isolation_level is IsolationLevel.READ_COMMITTED else 9)
        for answer in answers.values():
            answer.set_result(found)
        return answers

    class Leaders:
        def held(self, places: list[Place]) -> list[PartitionTransaction]:
            if any(topic == "secret" for topic, _ in places):
                raise Fatal("describe producers: [Error 29] TopicAuthorizationFailedError")
            # "t" holds nothing any more at the second look, which has the three places that could be asked.
            seen = [place for place in places if len(places) < 3 or place[0] != "t"]
            return [replace(held.get(place, HELD), topic=place[0], partition=place[1]) for place in seen]

        def ongoing(self) -> list[CoordinatorTransaction]:
            return []

        def of_producers(self, _ids: object) -> list[CoordinatorTransaction]:
            return [known("Empty"), known("Empty", transactional_id="x", producer_id=8)]

        def readers(self, *_what: object) -> tuple[dict[str, Any], dict[str, str]]:
            return {}, {}

    partitions = {"out": {0: 1, 1: 1}, "secret": {0: 1}, "t": {0: 1}, orphan: {0: -1, 1: -1}}
    listed = {
        topic: SimpleNamespace(partitions={p: SimpleNamespace(leader=leader) for p, leader in leaders.items()})
        for topic, leaders in partitions.items()
    }
    client = Mock(list_offsets=list_offsets)
    client.list_topics.return_value.topics = listed
    recent = replace(HELD, last_ms=int(time.time() * 1000))
    unowned = replace(recent, producer_id=9, last_ms=recent.last_ms - 310_000)
    held = {("out", 0): recent, ("out", 1): unowned, ("t", 0): replace(recent, producer_id=8)}
    monkeypatch.setattr(doctor, "admin", lambda _connection: client)
    monkeypatch.setattr(doctor, "broker_settings", lambda *_what: {"transaction.max.timeout.ms": "1000"})
    monkeypatch.setattr(doctor, "groups", lambda *_what: [])
    monkeypatch.setattr(doctor, "open_transactions_admin", lambda *_what: nullcontext(Leaders()))
    found = doctor.examine(Connection("k:1"), doctor.Scope(chosen), Deadline(5))
    assert sorted((one.kind, hold.place) for one in found.cases for hold in one.holds) == [
        (Kind.HANGING, ("out", 0)),
        (kind, ("out", 1)),
    ]
    *orphans, note = found.unavailable
    assert (found.unread, orphans) == (3, [f"{orphan}[{p}]: no leader; start a broker that holds it" for p in (0, 1)])
    assert ("secret[0]: describe producers" in note, "lacks Read on topic secret" in note) == (True, True)


@pytest.mark.parametrize(
    ("settings", "owner", "reason"),
    [
        (Unknown("no (CLUSTER_AUTHORIZATION_FAILED)"), None, "no (CLUSTER_AUTHORIZATION_FAILED)"),
        ({"num.io.threads": "8"}, None, "not among the broker's settings"),
        (Unknown("no (CLUSTER_AUTHORIZATION_FAILED)"), known("Empty"), None),
        ({"transaction.max.timeout.ms": "60000"}, None, None),
    ],
)
def test_a_maximum_timeout_that_is_only_assumed_is_said_where_it_decides(
    settings: Any, owner: CoordinatorTransaction | None, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a longer maximum, a transaction that no coordinator reports may be called hanging too early."""
    owners = [owner] if owner else []
    leaders = Mock(held=lambda _places: [HELD], ongoing=list, of_producers=lambda _ids: owners)
    leaders.readers.return_value = ({}, {})
    monkeypatch.setattr(doctor, "admin", lambda _connection: None)
    monkeypatch.setattr(doctor, "all_partitions", lambda *_what: ([HELD.place], {}))
    monkeypatch.setattr(doctor, "bounds", lambda *_what: ({HELD.place: ReadBounds(3, 9)}, {}))
    monkeypatch.setattr(doctor, "broker_settings", lambda *_what: settings)
    monkeypatch.setattr(doctor, "groups", lambda *_what: [])
    monkeypatch.setattr(doctor, "open_transactions_admin", lambda *_what: nullcontext(leaders))
    snapshot = doctor.examine(Connection("k:1"), doctor.Scope(), Deadline(5))
    found = snapshot.unavailable
    assert snapshot.assumed is (isinstance(settings, Unknown) or "transaction.max.timeout.ms" not in settings)
    assumed = "Kafka's default of 900 s is assumed to tell whether a transaction is hanging"
    assert found == (() if reason is None else (f"transaction.max.timeout.ms of the brokers: {reason}; {assumed}",))
    of_group = doctor.examine(Connection("k:1"), doctor.Scope(group="other"), Deadline(5))
    assert (of_group.cases, of_group.unowned) == ((), 1 - len(owners)), "it may be the group's own"
    leaders.held = lambda _places: [replace(HELD, last_ms=int(time.time() * 1000))]
    of_group = doctor.examine(Connection("k:1"), doctor.Scope(group="other"), Deadline(5))
    assert of_group.unowned == 0, "another program's, which this user may not see at its coordinator"


@pytest.mark.parametrize("width", ["40", "200"])
def test_an_id_can_not_control_the_terminal_and_is_shown_in_full(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may begin a transaction chooses its id; at 40 columns, the panel's title had only the begin of it."""
    monkeypatch.setenv("COLUMNS", width)
    name = "x\x1b[2J\r" + "-long" * 9
    snapshot = replace(NOTHING, cases=(case(Kind.LINGERING, named(name)),), groups={"a\x1b[1m": {("out", 2): 90}})
    Console(file=(out := io.StringIO()), width=int(width)).print(*doctor.render(snapshot, "k:1"))
    text = out.getvalue()
    assert ("\x1b" in text, "\r" in text) == (False, False)
    assert printable(name) in re.sub(r"[\s│]", "", text)
