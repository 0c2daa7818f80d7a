"""Where the live view's numbers come from: transactions in the tails, running programs, files of proofs."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from harness.pages import ROOT
from harness.ui_views import running, snapshot, status, strip, tails, view_of
from harness.xray_logs import T0, batch, marker

from brew.cluster import RawBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Fatal, Refused
from brew.kafka.topics import Topic
from brew.observability.status import Status
from brew.offsets import LogOffsets, SourcePosition
from brew.settings import PipelineSettings
from operations import labels
from operations.ui import sources
from operations.ui.build import PollResults, document
from operations.ui.model import OutputTail, PollResult, Transaction, transactions
from operations.ui.page import parts
from operations.ui.sources import LocalStatusSource, OutputTailsSource, ProofSource, StatusSource
from operations.xray.model import RunBuilder, Strip
from proof.findings import Report

WRITER = 7


def latest_transaction(batches: list[RawBatch], *, tail: int = 400, origin: bool = False) -> Transaction:
    """The latest transaction as the last ``tail`` offsets tell of it, and whatever batches lie before them."""
    end = batches[-1].last_offset + 1
    start = max(0, end - tail)
    builder = RunBuilder(start, end, origin=origin)
    for one in batches:
        builder.add(one, lambda one=one: (source(one.base_offset), source(one.last_offset)))
    strip = Strip("out", 0, LogOffsets(0, end, end), start, end, builder.finish())
    return transactions([strip], "g", "in")[0]


def source(offset: int) -> SourcePosition:
    return SourcePosition("in", 0, offset)


def transaction_batches(records: int, base: int = 0, *, sequence: int = 0, end: bool = True) -> list[RawBatch]:
    """One transaction of so many records in batches of fifty, with its marker."""
    starts = range(0, records, 50)
    batches = [batch(base + start, min(50, records - start), WRITER, 3, sequence=sequence + start) for start in starts]
    return [*batches, marker(base + records, WRITER, "commit", 3, at=T0)] if end else batches


@pytest.mark.parametrize("records", [399, 400, 750, 1460])
@pytest.mark.parametrize("end", [True, False])
def test_a_transaction_larger_than_the_tail_is_counted_whole_once_it_was_read_back(records: int, end: bool) -> None:
    """Ended or open; the first batch of a producer's epoch begins at sequence number 0."""
    transaction = latest_transaction(transaction_batches(records, end=end))
    assert (transaction.records, transaction.exact, transaction.first) == (records, True, 0)
    assert labels.records(transaction) == f"{records:,}"


@pytest.mark.parametrize("records", [750, 1460])
def test_a_transaction_whose_beginning_was_not_read_is_told_as_a_least_number(records: int) -> None:
    """Neither 399 records nor the offsets where the tail begins are told as facts."""
    batches = [one for one in transaction_batches(records) if one.last_offset >= records + 1 - 400]
    transaction = latest_transaction(batches)
    assert (transaction.exact, transaction.first, transaction.last) == (False, None, records - 1)
    assert transaction.records is not None
    assert 399 <= transaction.records < records
    assert labels.records(transaction) == f"≥ {transaction.records:,}"
    assert f"at least {transaction.records:,} records" in labels.of_transaction(transaction)
    assert f"up to offset {records - 1:,}" in labels.of_transaction(transaction)


def test_a_marker_before_it_shows_where_a_transaction_of_a_kept_producer_begins() -> None:
    """Sequence numbers go on through an epoch that holds several transactions."""
    first, second = transaction_batches(100, sequence=500), transaction_batches(750, 101, sequence=600)
    for batches, exact in (([*first, *second], True), (second, False)):
        assert (latest_transaction(batches).records, latest_transaction(batches).exact) == (750, exact)


def test_a_marker_whose_records_were_not_read_tells_no_number() -> None:
    """The tail begins at the marker itself; once the records before it are read, they are counted."""
    batches = transaction_batches(20)
    assert latest_transaction(batches[-1:], tail=1).records is None
    assert labels.of_transaction(latest_transaction(batches[-1:], tail=1)).count("records not counted") == 1
    assert (latest_transaction(batches, tail=1).records, latest_transaction(batches, tail=1).exact) == (20, True)
    assert "1 record in out partition 0" in labels.of_transaction(replace(latest_transaction(batches), records=1))


def test_another_writers_records_in_between_do_not_count() -> None:
    own = [batch(offset, 50, WRITER, 3, sequence=offset // 2) for offset in range(0, 800, 100)]
    others = [batch(offset + 50, 50, 9, 0, sequence=offset // 2) for offset in range(0, 800, 100)]
    mixed = sorted([*own, *others], key=lambda one: one.base_offset)
    transaction = latest_transaction([*mixed, marker(800, WRITER, "commit", 3, at=T0)], tail=101)
    assert transaction.outcome == "open"
    assert (transaction.producer_id, transaction.records, transaction.exact) == (9, 400, True)


RUN = PipelineSettings(Connection("127.0.0.1:9092"), "in", "out", "dlq", "g")
OURS = replace(status(running(0)), bootstrap="localhost:9092")


@contextmanager
def status_server(program_status: Status) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = program_status.to_json()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/status"
        finally:
            server.shutdown()
            thread.join()


def test_a_partition_without_a_leader_still_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records were left out of the total, which was called exact: "0", and "at the end"."""
    why = "no leader for in[1]"
    observer = SimpleNamespace(snapshot=lambda _: [snapshot(0, 5, 5)], unavailable=why, leaderless=[1])
    monkeypatch.setattr(sources, "Observer", lambda *_, **__: observer)
    answer = PollResult("flow", 1, 5, sources.InputSource(RUN).ask(Deadline(5)), 100.0, 50.0)
    view = view_of(PollResults(answer, tails(strip(0), strip(1))))
    assert view.notes == (f"not reported by the brokers: {why}",)
    totals = document(view)["totals"]
    assert (totals["to_read"], totals["exact"], totals["lag_s"]) == (None, False, None)
    assert "at the end" not in parts(view)["tile-left"]


@pytest.mark.parametrize(
    ("program", "partitions"),
    [
        (OURS, [0]),
        (replace(OURS, group="another"), None),
        (replace(OURS, bootstrap="elsewhere:9092"), None),
        (replace(OURS, topics=replace(OURS.topics, input="another")), None),
    ],
)
def test_a_run_on_the_same_group_topic_and_cluster_is_taken_and_no_other(
    program: Status, partitions: list[int] | None
) -> None:
    """However the cluster's own machine is written. Another one is no source that is stale: nobody asked for it."""
    with status_server(program) as url:
        answer = LocalStatusSource(url, RUN).ask(Deadline(5))
    assert (answer and [one.partition for one in answer.partitions]) == partitions
    assert LocalStatusSource(url, RUN).ask(Deadline(2)) is None, "the port was just closed"


def test_a_run_that_stands_by_hides_none_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a take-over and a restart, the driver on stand-by has the default port."""
    with status_server(replace(OURS, partitions=())) as default, status_server(OURS) as url:
        known = LocalStatusSource(default, RUN)
        assert (known.ask(Deadline(2)), known.url) == (replace(OURS, partitions=()), default)
        monkeypatch.setattr(sources, "announced_urls", lambda: [default, url])
        assert (known.ask(Deadline(2)), known.url) == (OURS, url)


def test_a_program_that_hangs_hides_no_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process (`kill -STOP`) took all the time, and the run on the next address was called none."""
    with socket.create_server(("127.0.0.1", 0)) as hung, status_server(OURS) as url:
        silent = f"http://127.0.0.1:{hung.getsockname()[1]}/status"
        monkeypatch.setattr(sources, "announced_urls", lambda: [silent])
        known = LocalStatusSource(url, RUN)
        known.url = silent
        assert known.ask(Deadline(2)) is not None
        assert known.url == url


def test_the_tail_of_a_recreated_topic_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many records as the old one, it showed the old one's transactions for as long as nothing came."""
    ids, fetched = iter(["old", "old", "new"]), list[object]()

    def batches(topic: str, wanted: dict[int, tuple[int, int]]) -> Iterator[tuple[int, list[Any]]]:
        fetched.append((topic, wanted))
        return iter([(0, [])])

    monkeypatch.setattr(sources, "admin", lambda _connection: None)
    monkeypatch.setattr(sources.topics, "describe", lambda *_: {"out": Topic("out", next(ids), 1, 1)})
    monkeypatch.setattr(sources.cluster_admin, "leaders", lambda *_: {0: 1})
    monkeypatch.setattr(sources, "log_offsets", lambda *_: {0: LogOffsets(0, 9, 9)})
    monkeypatch.setattr(sources, "batch_fetcher", lambda *_: nullcontext(SimpleNamespace(batches=batches)))
    tail = sources.OutputTailSource(RUN.connection, "out", 400)
    counts = [len(fetched) for _ in range(3) if tail.ask(Deadline(5))]
    assert counts == [1, 1, 2]


def test_an_output_partition_without_a_leader_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tails of all partitions were stale, just when an operator needs them."""

    def logs(_admin: object, _topic: str, partitions: list[int], _deadline: Deadline) -> dict[int, LogOffsets]:
        if 1 in partitions:
            raise DeadlineExceeded("offsets of out: no leader")
        return dict.fromkeys(partitions, LogOffsets(0, 9, 9))

    fetcher = SimpleNamespace(batches=lambda _topic, wanted: iter([(p, []) for p in wanted]))
    monkeypatch.setattr(sources, "admin", lambda _connection: None)
    monkeypatch.setattr(sources, "is_cut_off", lambda *_: False)
    monkeypatch.setattr(sources.topics, "describe", lambda *_: {"out": Topic("out", "id", 2, 1)})
    monkeypatch.setattr(sources.cluster_admin, "leaders", lambda *_: {0: 3, 1: -1})
    monkeypatch.setattr(sources, "log_offsets", logs)
    monkeypatch.setattr(sources, "batch_fetcher", lambda *_: nullcontext(fetcher))
    tail = OutputTailsSource(RUN, 400).ask(Deadline(5))
    assert (list(tail.strips), tail.unread, tail.topic_id) == ([0], 1, "id")
    assert tail.unavailable == ("no leader for out[1]; start a broker that holds them",)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_time_out_keeps_the_tails_that_were_read_and_reads_the_others_first_next_time(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Of a topic with many busy partitions, the same ones were read each time."""
    end, asked = 9, list[list[int]]()

    def batches(_topic: str, wanted: dict[int, tuple[int, int]]) -> Iterator[tuple[int, list[Any]]]:
        asked.append(list(wanted))
        for read, partition in enumerate(wanted):
            if len(asked) == 1 and read == failing:
                raise DeadlineExceeded("raw batches of out")
            yield partition, []

    monkeypatch.setattr(sources, "admin", lambda _connection: None)
    monkeypatch.setattr(sources, "is_cut_off", lambda *_: False)
    monkeypatch.setattr(sources.topics, "describe", lambda *_: {"out": Topic("out", "id", 3, 1)})
    monkeypatch.setattr(sources.cluster_admin, "leaders", lambda *_: dict.fromkeys(range(3), 1))
    monkeypatch.setattr(sources, "log_offsets", lambda *_: dict.fromkeys(range(3), LogOffsets(end, end, end)))
    monkeypatch.setattr(sources, "batch_fetcher", lambda *_: nullcontext(SimpleNamespace(batches=batches)))
    tail = sources.OutputTailSource(RUN.connection, "out", 400)
    if failing == 0:
        with pytest.raises(DeadlineExceeded):
            tail.ask(Deadline(5))
    else:
        first = tail.ask(Deadline(5))
        assert (list(first.strips), first.unread) == (list(range(failing)), 3 - failing)
    end = 10
    assert (list(tail.ask(Deadline(5)).strips), asked[1]) == ([0, 1, 2], [*range(failing, 3), *range(failing)])


@pytest.mark.parametrize("lost", [True, False])
def test_a_tail_whose_client_lost_the_brokers_is_read_through_a_new_one(
    monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """It stayed stale until the page was started again; a slow answer is none that is lost."""
    made = list[object]()
    monkeypatch.setattr(sources, "admin", lambda _connection: made.append(object()) or made[-1])
    monkeypatch.setattr(sources, "is_cut_off", lambda client, *_: lost and client is made[0])
    monkeypatch.setattr(sources.topics, "describe", Mock(side_effect=DeadlineExceeded("no answer")))
    tail = sources.OutputTailSource(RUN.connection, "out", 400)
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            tail.ask(Deadline(5))
    assert len(made) == 1 + lost


def test_an_output_topic_that_the_brokers_refuse_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--also-output`, one without Read made the tails of all of them stale."""
    denied = {"late"}

    def ask(self: sources.OutputTailSource, _deadline: Deadline) -> OutputTail:
        if self.topic in denied:
            raise Fatal(f"raw batches of {self.topic}: no")
        return OutputTail(self.topic, {0: Strip(self.topic, 0, LogOffsets(0, 1, 1), 0, 1, [])})

    monkeypatch.setattr(sources, "admin", lambda _connection: None)
    monkeypatch.setattr(sources.OutputTailSource, "ask", ask)
    tails = OutputTailsSource(replace(RUN, also_output=("late", "more")), 100)
    answer = tails.ask(Deadline(5))
    assert [strip.topic for strip in answer.all_strips] == ["out", "more"]
    assert answer.unavailable == ("raw batches of late: no",)
    answers = PollResults(PollResult("flow", 1, 5), PollResult("tail", 2, 5, answer, 100.0))
    assert view_of(answers).notes == ("not reported by the brokers: raw batches of late: no",)
    denied |= {"out"}
    assert [strip.topic for strip in tails.ask(Deadline(5)).all_strips] == ["more"]
    denied |= {"more"}
    with pytest.raises(Fatal, match="more"):
        tails.ask(Deadline(5))


def test_a_status_that_drips_in_is_given_up_at_the_deadline() -> None:
    """Each byte came within the timeout of one read, so that the whole answer could take for ever."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "50")
            self.end_headers()
            with suppress(OSError):
                for _ in range(50):
                    self.wfile.write(b" ")
                    time.sleep(0.1)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"no complete answer within 0\.3 s"):
            StatusSource(f"http://127.0.0.1:{server.server_port}/status").ask(Deadline(0.3))
        assert time.monotonic() - began < 3
    finally:
        server.shutdown()
        server.server_close()


def report(**more: Any) -> dict[str, Any]:
    given = {"inputs": 30, "outputs": 28, "dead_letters": 2, "backlog": 0, "unverifiable": 0, "totals": {}}
    rest = {"findings": [], "doubts": [], "counts": {"committed_transactions": 4}}
    return Report(**(given | rest | more)).document()


def read(document: object) -> Any:
    return sources.read(json.dumps(document).encode(), 5.0)


def cell(verdict: str, expected: str = "proven", **more: Any) -> dict[str, Any]:
    return {"cell": f"F-{verdict}-{expected}", "seed": 1, "verdict": verdict, "expected": expected, **more}


def test_a_verified_run_tells_its_balance_and_the_campaign_of_the_documents_its_controls() -> None:
    proof = read(report())
    assert (proof.mark, proof.lines[0], proof.wrong) == ("proven", "30 inputs = 28 outputs + 2 dead letters", ())
    assert "4 transactions committed" in proof.lines[1]
    lost = read(report(outputs=27, totals={"lost-output": 1}))
    assert (lost.mark, lost.lines[0].split()[2], lost.wrong) == ("violated", "≠", ("lost-output: 1",))
    assert read(report(doubts=["retention"])).wrong == ("inconclusive: retention",)
    document = (ROOT / "docs/proof/results.json").read_bytes()
    controls = sum(one["expected"] == "violated" for one in json.loads(document)["cells"])
    proof = sources.read(document, 5.0)
    assert (proof.mark, proof.wrong) == ("proven", ())
    assert controls > 1
    assert f"{controls} controls failed as intended" in proof.lines


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        ([cell("proven"), cell("violated")], "violated"),
        ([cell("proven"), cell("inconclusive")], "inconclusive"),
        ([cell("proven", anomalies=[{}])], "violated"),
        ([cell("proven", doubts=["?"])], "inconclusive"),
        ([cell("proven", "violated")], "inconclusive"),
        ([cell("violated", "violated"), cell("proven")], "proven"),
        ([cell("violated", "violated")], "inconclusive"),
    ],
)
def test_a_campaign_is_as_good_as_its_worst_cell(cells: list[dict[str, Any]], mark: str) -> None:
    """A result is never better than what stands beside it; a control alone proves nothing."""
    assert read({"cells": cells}).mark == mark
    lines = "".join(json.dumps(one) + "\n" for one in cells) + '{"cell": "cut o'
    assert sources.read(lines.encode(), 5.0).mark == mark


def test_what_is_no_proof_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    path = tmp_path / "proof.json"
    source = ProofSource(path)
    with pytest.raises(Refused, match=r"proof\.json: No such file.*proof verify --json > FILE"):
        source.ask(Deadline(1))
    path.write_text('{"a": 1}')
    with pytest.raises(Refused, match="neither a document of `proof verify --json` nor results"):
        source.ask(Deadline(1))
    path.write_text(json.dumps(report()))
    assert source.ask(Deadline(1)).mark == "proven"
    path.write_text(json.dumps(report(totals={"lost-output": 1})))
    assert source.ask(Deadline(1)).mark == "violated", "the file is another one by now"
