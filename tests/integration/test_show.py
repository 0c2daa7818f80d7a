"""`brew show` against a real broker: records with the fate of their transactions, as they stand in the log."""

from __future__ import annotations

import contextlib
import io
import json

from harness.brokers import Broker
from harness.names import Names
from harness.operate import upstream
from harness.pipeline import Stage
from harness.transactions import make_topics
from harness.waiting import markers_written

from brew.cli import exit_code_of
from brew.names import ExitCode
from pipeline.__main__ import cli


def test_show_tells_each_records_fate_and_its_bytes(broker: Broker, names: Names) -> None:
    """Committed, aborted and open ones; markers on request; what a read_committed reader is given; one key alone."""
    stage = Stage(broker, names)
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


def test_a_topic_that_is_not_there_is_refused(broker: Broker, names: Names) -> None:
    """With exit code 3, not with nothing."""
    stage = Stage(broker, names)
    code, text = run_show(stage, "brew-nowhere")
    assert (code, "'brew-nowhere' does not exist" in text) == (ExitCode.REFUSED, True), text


def show(stage: Stage, *more: str) -> list[dict[str, object]]:
    code, text = run_show(stage, stage.names.output, *more, "--json")
    assert code == ExitCode.DONE, text
    return [json.loads(line) for line in text.splitlines()]


def run_show(stage: Stage, *words: str) -> tuple[int, str]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = exit_code_of(cli, "pipeline", ["show", *words, "--bootstrap", stage.connection.bootstrap])
    return code, output.getvalue()
