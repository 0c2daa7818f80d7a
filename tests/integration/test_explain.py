"""An order's way (`brew explain`) and records as they stand in the log (`brew show`), against a real broker."""

from __future__ import annotations

import json

import pytest
from harness.operate import crash, json_of, pipeline, upstream
from harness.pipeline import Stage
from harness.programs import call_program
from harness.servers import make_topics
from harness.waiting import markers_written

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.kafka.cluster_admin import set_offsets
from brew.names import ExitCode
from brew.offsets import SourcePosition
from operations.explain import search
from pipeline.__main__ import cli


def test_explain_tells_an_orders_way_after_a_crash_and_why_it_came_twice(stage: Stage) -> None:
    """Open, then aborted beside a committed copy, then a second one because the position was moved back."""
    stage.create(1)
    stage.produce(stage.names.input, *((0, b"gold-%d" % n, b'{"customer_id":"c-1"}') for n in range(5)))
    position = f"{stage.names.input}/0/2"
    (order,) = json_of(stage, "explain", position)["orders"]
    assert (order["answer"], order["copies"]) == ("not-read", [])

    crash(stage)
    (order,) = json_of(stage, "explain", position)["orders"]
    assert (order["answer"], [copy["fate"] for copy in order["copies"]]) == ("in-flight", ["open"])

    stage.drain_locally()
    (order,) = json_of(stage, "explain", "gold-2")["orders"]
    assert (order["order"], order["answer"]) == (position, "delivered")
    aborted, committed = order["copies"]
    assert (aborted["fate"], aborted["visible"], "fence" in aborted["rule"]) == ("aborted", False, True)
    assert (committed["fate"], committed["visible"]) == ("committed", True)
    assert committed["transactional_id"] == f"{stage.names.group}:{stage.names.input}:0"
    assert (committed["range"], order["group"]["committed"]) == ([0, 5], 5)
    assert json_of(stage, "explain", committed["at"])["orders"] == [order]

    set_offsets(stage.connection, stage.names.group, stage.names.input, {0: 2}, Deadline(20))
    stage.drain_locally()
    report = json_of(stage, "explain", "gold-2", "--since", "1h", code=1)
    (order,) = report["orders"]
    assert (order["answer"], "reset to an earlier one" in order["why"]) == ("twice", True)
    assert report["verdict"]["verdict"] == "delivered-twice"
    assert [copy["range"] for copy in order["copies"] if copy["fate"] == "committed"] == [[0, 5], [2, 5]]
    code, text = pipeline(stage, "explain", position)
    assert (code, max(map(len, text.splitlines())) <= 120) == (1, True)


def test_explain_tells_a_rejected_order_and_follows_its_replay_both_ways(stage: Stage) -> None:
    """The reason is told; a replay is no second writing of upstream, and is found from either end."""
    stage.create(1)
    value = b'{"order_id":"o-1","customer_id":"c-1"}'
    stage.produce(stage.names.input, (0, b"gold-1", b"broken" + value), (0, b"gold-2", value))
    stage.drain_locally()
    first = f"{stage.names.input}/0/0"
    report = json_of(stage, "explain", first)
    (order,) = report["orders"]
    (letter,) = order["copies"]
    assert (order["answer"], letter["reason"], letter["range"]) == ("rejected", "not-json", [0, 2])
    assert (letter["message"] in order["why"], report["verdict"]) == (True, None)

    replayed = replay(stage)
    stage.drain_locally()
    report = json_of(stage, "explain", first)
    order, again = report["orders"]
    assert (order["order"], order["answer"], order["replayed_as"]) == (first, "rejected", [replayed])
    assert (again["order"], again["answer"], again["replay_of"]) == (replayed, "rejected", letter["at"])
    assert (report["verdict"]["verdict"], letter["at"] in report["verdict"]["why"]) == ("replayed", True)
    by_replay = json_of(stage, "explain", replayed)
    assert (by_replay["orders"], by_replay["verdict"]) == (report["orders"], report["verdict"])
    code, text = pipeline(stage, "explain", first)
    assert (code, f"replayed as {replayed}" in " ".join(text.split())) == (0, True)


def replay(stage: Stage) -> str:
    """Write back the one record that was rejected; where on the input it then stands."""
    markers_written(stage.connection, stage.names.dead_letter)
    code, output = pipeline(stage, "dlq replay")
    assert code == 0, output
    markers_written(stage.connection, stage.names.input)
    return f"{stage.names.input}/0/{stage.records(stage.names.input)[-1].offset()}"


def test_explain_tells_what_upstream_wrote_twice(stage: Stage) -> None:
    """Two records of one order are delivered once each: that is no breach, and said so."""
    stage.create(2)
    value = b'{"order_id":"o-1","customer_id":"c-1"}'
    other_value = b'{"order_id":"o-2","customer_id":"c-1"}'
    stage.produce(stage.names.input, (0, b"gold-1", value), (0, b"gold-1", other_value), (1, b"gold-9", value))
    stage.drain_locally()
    report = json_of(stage, "explain", "o-1", "--order-id")
    assert ([order["answer"] for order in report["orders"]], report["found"]) == (["delivered", "delivered"], 2)
    verdict = report["verdict"]
    assert (verdict["verdict"], "'o-1' 2 times, with the same bytes" in verdict["why"]) == ("written-twice", True)
    code, text = pipeline(stage, "explain", "o-1", "--order-id")
    assert (code, "verdict: written-twice" in text) == (0, True)
    report = json_of(stage, "explain", "gold-1")
    assert [order["order_id"] for order in report["orders"]] == ["o-1", "o-2"]
    assert report["verdict"]["verdict"] == "different"
    code, text = pipeline(stage, "explain", "o-9", "--order-id")
    assert (code, "has the order_id 'o-9'" in text) == (0, True)


def test_explain_says_what_is_lost_and_refuses_what_is_not_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position moved forward leaves an order behind; every refusal says what to do next."""

    def no_answer(*_arguments: object) -> None:
        raise DeadlineExceeded("locate: no stable answer")

    stage.create(1)
    stage.produce(stage.names.input, *((0, b"gold-%d" % n, b'{"customer_id":"c-1"}') for n in range(3)))
    set_offsets(stage.connection, stage.names.group, stage.names.input, {0: 1}, Deadline(20))
    stage.drain_locally()
    (order,) = json_of(stage, "explain", f"{stage.names.input}/0/0", code=1)["orders"]
    assert order["answer"] == "lost"
    assert json_of(stage, "explain", "gold-9")["orders"] == []
    code, text = pipeline(stage, "explain", f"{stage.names.output}/0/2")
    assert (code, "there is no record" in text) == (3, True)
    code, text = pipeline(stage, "explain", f"{stage.names.input}/0/99")
    assert (code, "ends at 3" in text) == (3, True)
    assert pipeline(stage, "explain", "other.topic/0/1")[0] == ExitCode.USAGE
    monkeypatch.setattr(search, "committed_by", no_answer)
    code, text = pipeline(stage, "explain", f"{stage.names.input}/0/0")
    assert (code, "no stable answer; check that the brokers" in text, "try again" in text) == (3, True, True)


def test_a_topic_that_does_not_exist_is_refused(stage: Stage) -> None:
    """Not answered with "no record", or with nothing: nobody would know that the name was wrong."""
    stage.create(1)
    code, text = run_show(stage, "brew-nowhere")
    assert (code, "'brew-nowhere' does not exist" in text) == (ExitCode.REFUSED, True), text
    for argument in ("gold-1", "brew-nowhere/0/1"):
        code, text = pipeline(stage, "explain", argument, "--input", "brew-nowhere")
        assert (code, "'brew-nowhere' does not exist" in text) == (ExitCode.REFUSED, True), text


def test_a_planted_duplicate_is_told_as_what_it_is(stage: Stage) -> None:
    """The same source position written once more by somebody else, outside of any transaction and inside of one."""
    stage.create(1)
    stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id":"c-1"}'))
    stage.drain_locally()
    markers_written(stage.connection, stage.names.output)
    headers = SourcePosition(stage.names.input, 0, 0).headers()
    with upstream(stage, "planter") as writer:
        writer.begin_transaction()
        writer.produce(stage.names.output, b"{}", b"gold-1", 0, headers=headers)
        assert writer.flush(20) == 0
        writer.commit_transaction(20)
    markers_written(stage.connection, stage.names.output)
    report = json_of(stage, "explain", "gold-1", code=1)
    (order,) = report["orders"]
    assert (order["answer"], report["verdict"]["verdict"]) == ("twice", "delivered-twice")
    assert "in 2 transactions of" in order["why"], order["why"]
    assert "two groups, or two programs, write to this topic" in order["why"], order["why"]


def test_show_tells_each_records_fate_and_its_bytes(stage: Stage) -> None:
    """Committed, aborted and open ones; markers on request; what a read_committed reader is given; one key alone."""
    names = stage.names
    make_topics(stage.connection, names.input, names.output)
    with upstream(stage, "writer") as writer:
        for end in (writer.commit_transaction, writer.abort_transaction, None):
            writer.begin_transaction()
            for key in (b"gold-1", b"\xff"):
                writer.produce(names.output, b"\xffvalue", key, 0, headers=[("h", b"\xfe")])
            assert writer.flush(20) == 0
            if end is not None:
                end(20)
                markers_written(stage.connection, names.output)
        records = show(stage)
        assert [record["fate"] for record in records] == ["committed"] * 2 + ["aborted"] * 2 + ["open"] * 2
        assert (records[0]["key"], records[1]["key"]) == ({"text": "gold-1"}, {"base64": "/w=="})
        assert records[0]["headers"] == [["h", {"base64": "/g=="}]]
        states = [record["fate"] for record in show(stage, "--markers")]
        assert [record for record in states if record.endswith("marker")] == ["commit-marker", "abort-marker"]
        assert [record["fate"] for record in show(stage, "--isolation", "read_committed")] == ["committed"] * 2
        assert [record["offset"] for record in show(stage, "--offset", "1", "--limit", "2")] == [1, 3]
        assert [record["offset"] for record in show(stage, "--key", "gold-1", "--limit", "2")] == [3, 6]
        assert [record["offset"] for record in show(stage, "--limit", "1")] == [7]


def show(stage: Stage, *more: str) -> list[dict[str, object]]:
    code, text = run_show(stage, stage.names.output, *more, "--json")
    assert code == ExitCode.DONE, text
    return [json.loads(line) for line in text.splitlines()]


def run_show(stage: Stage, *words: str) -> tuple[int, str]:
    code, out, err = call_program(cli, "pipeline", "show", *words, "--bootstrap", stage.connection.bootstrap)
    return code, out + err
