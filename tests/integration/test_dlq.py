"""Dead letters against a real broker: counted, looked at, written back at most once and never lost; the breaker."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.operate import command_line, json_of, pipeline
from harness.pipeline import Stage
from harness.programs import Ran
from harness.servers import make_topics
from harness.waiting import markers_written, until

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import topics
from brew.kafka.clients import TopicPartition
from brew.names import CrashPoint
from brew.orders import Reason
from brew.records import MARKS_TOPIC, REPLAYED_COUNT, REPLAYED_FROM, REPLAYED_TIMESTAMP
from operations.dlq.dead_letter_reader import ReplayLog
from operations.dlq.replay import RepairCommand

GOOD = b'{"customer_id":"c-1","total_cents":100}'
REPAIR = f"{sys.executable} -c \"import sys; sys.stdout.write(sys.stdin.read().replace('broken', '') or sys.exit(7))\""


def create_dead_letters(stage: Stage, good: int = 20) -> None:
    """Two partitions of good orders with four dead letters among them: two of one reason, and one of two others."""
    stage.create(2, orders=good)
    stage.produce(
        stage.names.input,
        (0, b"gold-1", b"broken" + GOOD, [("trace", b"t-1")]),
        (0, b"gold-2", b"{}"),
        (1, b"silver-1", b"\xff\x00\x1b[31m"),
        (1, b"silver-2", None),
    )
    stage.drain_locally()
    markers_written(stage.connection, stage.names.dead_letter)


def dlq(stage: Stage, command: str, *more: str) -> Any:
    """The JSON document of one command that ended with 0."""
    return json_of(stage, f"dlq {command}", *more)


def run_dlq(stage: Stage, command: str, *more: str) -> tuple[int, str]:
    return pipeline(stage, f"dlq {command}", *more)


def times_replayed(stage: Stage) -> Counter[str]:
    """How often each dead letter stands on the input, by the place that the header names."""
    all_headers = [dict(record.headers() or []) for record in stage.records(stage.names.input)]
    return Counter((headers[REPLAYED_FROM] or b"").decode() for headers in all_headers if REPLAYED_FROM in headers)


def test_they_are_counted_and_shown_without_anything_that_a_terminal_obeys(stage: Stage) -> None:
    create_dead_letters(stage)
    report = dlq(stage, "list")
    counts = {(row["reason"], row["partition"]): row["letters"] for row in report["rows"]}
    assert counts == {
        (Reason.NOT_JSON, 0): 1,
        (Reason.NO_CUSTOMER_ID, 0): 1,
        (Reason.NOT_JSON, 1): 1,
        (Reason.NO_VALUE, 1): 1,
    }
    assert (report["letters"], report["waiting"], report["replayed"]) == (4, 4, 0)
    assert dlq(stage, "list", "--reason", "not-json", "--key", "gold-1", "--per", "day")["letters"] == 1
    record = next(record for record in stage.records(stage.names.dead_letter) if record.key() == b"silver-1")
    position = f"{record.partition()}/{record.offset()}"
    letter = dlq(stage, "inspect", position)
    assert (letter["reason"], letter["key"], letter["value"]) == (
        "not-json",
        {"text": "silver-1"},
        {"hex": b"\xff\x00\x1b[31m".hex()},
    )
    assert dlq(stage, "inspect", "--source", "/".join(letter["source"].split("/")[1:])) == letter
    code, text = run_dlq(stage, "inspect", position)
    assert (code, "\x1b" in text, "silver-1" in text) == (0, False, True)
    assert "\u2502" in run_dlq(stage, "list")[1]
    assert run_dlq(stage, "inspect", "0/4711")[0] == 3
    assert run_dlq(stage, "inspect", "0-1")[0] == 64


def test_a_replay_writes_each_back_once_and_the_proof_holds(stage: Stage) -> None:
    """Same key, value and partition; what is rejected again is a new dead letter, and at the limit it stays."""
    create_dead_letters(stage)
    assert dlq(stage, "replay", "--dry-run")["replayed"] == 4
    assert times_replayed(stage) == {}
    assert dlq(stage, "replay")["replayed"] == 4
    again = dlq(stage, "replay")
    assert (again["replayed"], again["stays"]) == (0, {"replayed-before": 4})
    assert sorted(times_replayed(stage).values()) == [1, 1, 1, 1]
    records = [r for r in stage.records(stage.names.input) if r.key() == b"gold-1"]
    assert [(r.partition(), r.value()) for r in records] == [(0, b"broken" + GOOD)] * 2
    names = [[name for name, _ in r.headers() or []] for r in records]
    assert names == [["trace"], ["trace", REPLAYED_FROM, REPLAYED_COUNT, REPLAYED_TIMESTAMP]]
    stage.drain_locally()
    stage.proven(inputs=28, outputs=20)
    assert dlq(stage, "list")["waiting"] == 4
    limited = dlq(stage, "replay", "--most-replays", "1")
    assert (limited["replayed"], limited["stays"]) == (0, {"replayed-before": 4, "too-often": 4})
    repeated = dlq(stage, "replay", "--key", "gold-2")
    assert [letter["count"] for letter in repeated["letters"]] == [2]
    headers = [r.headers() or [] for r in stage.records(stage.names.input) if r.key() == b"gold-2"]
    assert [[value for name, value in each if name == REPLAYED_COUNT] for each in headers] == [[], [b"1"], [b"2"]]


def test_only_what_is_meant_is_written_back_and_repaired_on_the_way(stage: Stage) -> None:
    """By reason, by offsets, and through a command; what it fails on stays, told."""
    create_dead_letters(stage)
    report = dlq(stage, "replay", "--reason", "not-json", "--partition", "0", "--edit", REPAIR)
    assert (report["replayed"], report["stays"]) == (1, {})
    stage.drain_locally()
    stage.proven(inputs=25, outputs=21)
    failed = dlq(stage, "replay", "--reason", "no-value", "--edit", REPAIR)
    assert (failed["replayed"], failed["stays"]) == (0, {"edit-failed": 1})
    assert "exited with 7" in failed["stayed"][0]["message"]
    slow = dlq(stage, "replay", "--reason", "no-value", "--edit", "sleep 60", "--edit-timeout", "0.2")
    assert slow["stays"] == {"edit-failed": 1}
    assert dlq(stage, "replay", "--partition", "1", "--offsets", "0:1")["replayed"] == 1
    assert dlq(stage, "replay")["replayed"] == 2
    assert set(times_replayed(stage).values()) == {1}
    assert dlq(stage, "list")["replayed"] == 4


def replay(stage: Stage, *more: str) -> Ran:
    with stage.python("pipeline", *command_line(stage, "dlq replay"), *more) as program:
        return program.wait(60)


def test_a_replay_that_is_killed_and_run_again_writes_each_back_once(stage: Stage) -> None:
    """Three deaths in a row; each partition is a transaction of its own, so that there is work left for each."""
    create_dead_letters(stage)
    assert replay(stage, "--crash-point", CrashPoint.AFTER_FLUSH.value).code == -signal.SIGKILL
    assert times_replayed(stage) == {}
    for point in (CrashPoint.COMMIT_IN_FLIGHT, CrashPoint.AFTER_COMMIT):
        assert replay(stage, "--crash-point", point.value).code == -signal.SIGKILL
        assert set(times_replayed(stage).values()) <= {1}
    assert replay(stage).code == 0
    assert sorted(times_replayed(stage).values()) == [1, 1, 1, 1]
    stage.drain_locally()
    stage.proven(inputs=28, outputs=20)


def test_a_replay_that_another_one_overtakes_is_fenced(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one starts and ends while the first one edits, behind its fence and its look at the marks."""
    create_dead_letters(stage, good=2)

    def replay_meanwhile(_: RepairCommand, value: bytes | None) -> bytes:
        dlq(stage, "replay")
        return value or b""

    monkeypatch.setattr(RepairCommand, "__call__", replay_meanwhile)
    code, text = run_dlq(stage, "replay", "--edit", "any")
    assert (code, "another replay" in text) == (3, True)
    assert sorted(times_replayed(stage).values()) == [1, 1, 1, 1]


def test_without_its_marks_a_replay_would_write_twice(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests look at does go red."""
    create_dead_letters(stage, good=2)
    dlq(stage, "replay", "--key", "gold-2")
    monkeypatch.setattr(ReplayLog, "_take", lambda *_: None)
    dlq(stage, "replay", "--key", "gold-2")
    assert list(times_replayed(stage).values()) == [2]


def test_a_value_that_stayed_on_the_input_is_fetched_from_there(stage: Stage) -> None:
    """The dead-letter topic was too small for it; once retention has taken it, the letter stays."""
    stage.create(1)
    make_topics(stage.connection, stage.names.dead_letter, config={topics.MAX_MESSAGE_BYTES: "10000"})
    large = b'{"customer_id":"c-1","note":"%s"}' % (b"x" * 20_000)
    stage.produce(stage.names.input, (0, b"gold-1", large), (0, b"gold-2", large))
    stage.drain_locally("--max-record-bytes", "5000")
    markers_written(stage.connection, stage.names.dead_letter)
    assert dlq(stage, "inspect", "0/0")["value_omitted"]
    assert dlq(stage, "replay", "--key", "gold-1")["replayed"] == 1
    assert [r.value() for r in stage.records(stage.names.input) if r.key() == b"gold-1"] == [large, large]
    end = TopicPartition(stage.names.input, 0, stage.logs(stage.names.input)[0].end)
    stage.admin.delete_records([end])[end].result(20)
    assert dlq(stage, "replay")["stays"] == {"bytes-gone": 1, "replayed-before": 1}


def test_headers_stay_on_the_input_and_texts_are_cut_so_that_a_letter_fits(stage: Stage, tmp_path: Path) -> None:
    """The brokers would refuse the letter again and again; a replay fetches the headers, and the proof knows both."""
    reject = "import brew\n\ndef f(record):\n    raise brew.Reject('no' * 600, 'x' * 50_000)\n"
    (tmp_path / "never.py").write_text(reject)
    function = ("--transform", f"{tmp_path / 'never.py'}:f")
    stage.create(1)
    make_topics(stage.connection, stage.names.dead_letter, config={topics.MAX_MESSAGE_BYTES: "10000"})
    large, small = [("trace", b"t" * 20_000), ("more", b"")], [("trace", b"t")]
    stage.produce(stage.names.input, *((0, b"gold-1", GOOD, headers) for headers in (large, small)))
    stage.drain_locally(*function)
    markers_written(stage.connection, stage.names.dead_letter)
    for offset, omitted in ((0, True), (1, False)):
        letter = dlq(stage, "inspect", f"0/{offset}")
        assert (letter["headers_omitted"], letter["value"]) == (omitted, {"text": GOOD.decode()})
        assert letter["message"].endswith(" ... (cut: 50000 bytes)")
        assert letter["reason"].endswith(" ... (cut: 1200 bytes)")
    code, report = stage._proof("verify", *stage.options(), *function, "--settled")
    assert (code, report["counts"]["dead_letters"]) == (0, 2), report
    assert dlq(stage, "replay")["replayed"] == 2
    assert [r.headers()[:-3] for r in stage.records(stage.names.input)[2:]] == [large, small]


def test_marks_count_for_one_group_only_and_are_missed(stage: Stage) -> None:
    """Another group's replay would not be fenced by this one's; marks that vanish would let letters come twice."""
    create_dead_letters(stage)
    assert dlq(stage, "replay", "--reason", "not-json")["replayed"] == 2
    code, text = run_dlq(stage, "replay", "--group", "another")
    assert (code, "another" in text, stage.names.group in text) == (3, True, True)
    marks = stage.names.dead_letter + MARKS_TOPIC
    stage.admin.delete_topics([marks], operation_timeout=20)[marks].result(20)
    until(lambda: not topics.describe(stage.admin, [marks], Deadline(20)), "the marks' end on the broker", 20)
    code, text = run_dlq(stage, "replay")
    assert (code, "is lost" in text) == (3, True)
    assert sorted(times_replayed(stage).values()) == [1, 1]


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_too_many_rejected_stop_a_run_and_lose_nothing(stage: Stage, reader: str) -> None:
    """Every second order is bad; the next run, allowed to, goes on to the proof. Poison alone never stops one."""
    stage.create(1)
    stage.seed(3000, "--bad-every", "2")
    small = ["--reader", reader, "--max-records-per-transaction", "700", "--transaction-bytes", "65536"]
    with pytest.raises(Refused, match=r"too-many-rejected: partition 0 .* --max-rejected is 0\.4"):
        stage.drain_locally(*small, "--max-rejected", "0.4")
    position = stage.committed()[0]
    assert position is not None
    assert 1000 <= position < 3000
    stage.drain_locally(*small)
    stage.proven(inputs=3000, outputs=1500)


CLICK = b'{"user": "u-1", "url": "https://example.org/", "at": "2026-01-01T00:00:00Z"}'


def clicks(stage: Stage, count: int) -> None:
    stage.create(2)
    stage.produce(stage.names.input, *((n % 2, b"u-%d" % n, CLICK) for n in range(count)))


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_run_that_reads_no_orders_at_all_stops_and_says_what_an_order_is(stage: Stage, reader: str) -> None:
    """What it rejected is a dead letter; the next run goes on behind that where it is allowed to, and none is twice."""
    clicks(stage, 2000)
    small = ("--max-records-per-transaction", "100", "--transaction-bytes", "4096")
    message = "all-rejected: the first .* they have no customer_id; an order looks like {"
    with pytest.raises(Refused, match=message):
        stage.drain_locally("--reader", reader, *small)
    position = sum(position or 0 for position in stage.committed().values())
    assert 100 <= position < 2000
    assert dlq(stage, "list")["letters"] == position
    stage.drain_locally("--reader", reader, "--max-rejected", "1")
    stage.proven(inputs=2000, outputs=0, dead_letters=2000)


def test_a_drain_of_twenty_clicks_is_refused_and_one_of_five_warns(stage: Stage) -> None:
    """It said `20 records: 0 enriched, 20 rejected`, with exit code 0 and no other word."""
    clicks(stage, 20)
    ran = stage.pipeline("--master", "none", seconds=60)
    assert (ran.code, "all-rejected: the first 20 records" in ran.err) == (3, True), ran.text
    stage.produce(stage.names.input, *((0, b"k", CLICK) for _ in range(5)))
    warned = stage.pipeline("--master", "none", seconds=60)
    assert warned.code == 0, warned.text
    command = f"brew dlq list --dead-letter {stage.names.dead_letter}"
    assert f"warning: all 5 records were rejected; `{command}`" in warned.err
    stage.proven(inputs=25, outputs=0, dead_letters=25)
