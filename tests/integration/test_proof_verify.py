"""Verification on a real broker, of a tiny pipeline that can be made to misbehave."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import TopicPartition
from harness.fakes import log_record
from harness.programs import call_program
from harness.records import write_unreadable
from harness.servers import Broker, Names, make_topics
from harness.waiting import markers_written

from brew.cluster import OFFSETS_TOPIC
from brew.connection import Connection
from brew.deadline import Deadline
from brew.journal import Journal
from brew.kafka.clients import Producer, admin, consumer, producer
from brew.kafka.log_reader import scan
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import LogOffsets, SourcePosition
from brew.orders import DISCOUNTS, tier_of_key
from brew.records import ERROR_REASON
from proof import verify
from proof.__main__ import proof

Row = tuple[str, Any, bytes | None, Any]
PARTITIONS = 3


@dataclass
class TinyPipeline:
    """One test's topics, a writer of transactions that enriches orders as the product does, and `verify`."""

    connection: Connection
    names: Names

    def seed(self, *options: str) -> None:
        arguments = ("--bootstrap", self.connection.bootstrap, "--topic", self.names.input, *options)
        assert call_program(proof, "proof", "seed", *arguments)[0] == 0

    def create(self, *options: str) -> None:
        """Make the topics, with orders in transactions."""
        names = self.names
        make_topics(self.connection, names.input, names.output, names.dead_letter, partitions=PARTITIONS)
        self.seed("--transactional", *options)
        markers_written(self.connection, names.input)

    def logs(self) -> dict[int, LogOffsets]:
        return log_offsets(admin(self.connection), self.names.input, range(PARTITIONS), Deadline(20))

    def rows(self) -> list[Row]:
        """What a right pipeline would write."""
        names, rows = self.names, list[Row]()
        ends = {p: (log.first, log.last_stable) for p, log in self.logs().items()}
        batches = scan(self.connection, names.input, ends, READ_COMMITTED)
        for record in itertools.chain.from_iterable(batches):
            source = SourcePosition(names.input, record.partition(), record.offset()).headers()
            try:
                order = orjson.loads(record.value() or b"")
                reason = None if "customer_id" in order else b"no-customer-id"
                reason = b"not-an-object" if isinstance(order, list) else reason
            except orjson.JSONDecodeError:
                reason = b"no-value" if record.value() is None else b"not-json"
            if reason is not None:
                rows.append((names.dead_letter, record, record.value(), [(ERROR_REASON, reason), *source]))
                continue
            tier = tier_of_key(record.key())
            value = orjson.dumps({**order, "loyalty_tier": tier, "loyalty_discount": DISCOUNTS[tier]})
            rows.append((names.output, record, value, source))
        return rows

    def open_producer(self) -> Producer:
        writer = producer(self.connection, self.names.topic("tx"), timeout_s=60, message_max_bytes=1_000_000)
        writer.init_transactions(20)
        return writer

    def write(
        self,
        rows: list[Row],
        *,
        leave_open: bool = False,
        writer: Producer | None = None,
        abort: bool = False,
        offsets: bool = True,
    ) -> None:
        """Write one transaction with all rows and the offsets up to the last stable one."""
        writer = writer or self.open_producer()
        writer.begin_transaction()
        for topic, record, value, headers in rows:
            writer.produce(topic, value, record.key(), record.partition(), None, None, record.timestamp()[1], headers)
        assert writer.flush(20) == 0
        group = consumer(self.connection, self.names.group, READ_UNCOMMITTED)
        ends = [TopicPartition(self.names.input, p, log.last_stable) for p, log in self.logs().items()]
        if offsets:
            writer.send_offsets_to_transaction(ends, group.consumer_group_metadata(), 20)
        group.close()
        if abort:
            writer.abort_transaction(20)
        elif not leave_open:
            writer.commit_transaction(20)

    def run(self, command: str, *options: str) -> tuple[int, Any]:
        """Run a command with `--json`; return its exit code, and its document or else what it wrote to stderr."""
        arguments = ("--bootstrap", self.connection.bootstrap, *options, "--json")
        code, out, err = call_program(proof, "proof", command, *arguments)
        return code, json.loads(out) if out else err

    def verify(self, *more: str) -> tuple[int, Any]:
        return self.run("verify", *self.names.options(), *more)


@pytest.fixture
def pipeline(broker: Broker, names: Names) -> TinyPipeline:
    return TinyPipeline(Connection(broker.bootstrap), names)


def test_a_right_run_is_proven_with_aborted_and_bad_inputs_among_it(pipeline: TinyPipeline) -> None:
    """Aborted inputs, trailing markers, a partition of markers only and rejected records are all in order."""
    pipeline.create("--count", "60", "--bad-every", "7", "--markers-only-partition", "1")
    pipeline.write(pipeline.rows())
    code, report = pipeline.verify()
    assert (code, report["verdict"], report["doubts"]) == (0, "proven", [])
    assert (report["inputs"], report["outputs"], report["dead_letters"]) == (60, 52, 8)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_header_s_name_that_is_not_utf_8_is_compared_as_the_connector_writes_it(
    pipeline: TinyPipeline, compression: str | None
) -> None:
    """The client library can't read it, and ended the process, now and then with SIGSEGV."""
    pipeline.create("--count", "6")
    names = pipeline.names
    rows = pipeline.rows()
    ((offset, time_ms),) = write_unreadable(pipeline.connection, names.input, 1, compression)
    order = b'{"customer_id":"c","total_cents":1,"loyalty_tier":"standard","loyalty_discount":0.0}'
    source = SourcePosition(names.input, 0, offset).headers()
    record = log_record(offset, 0, b"k", timestamp=(1, time_ms))
    pipeline.write([*rows, (names.output, record, order, [("n\ufffd", b"1"), *source])])
    code, report = pipeline.verify()
    assert (code, report["verdict"], report["inputs"], report["outputs"]) == (0, "proven", 7, 7), report
    write_unreadable(pipeline.connection, names.input, 2, compression)
    assert pipeline.verify()[1]["backlog"] == 2
    ((place, _),) = write_unreadable(pipeline.connection, names.output, 1, compression)
    code, report = pipeline.verify()
    assert (code, report["totals"]) == (1, {"phantom-output": 1}), report
    assert f'"{names.output}", "partition": 0, "offset": {place},' in json.dumps(report)


def lose(rows: list[Row]) -> None:
    rows.pop(3)


def repeat(rows: list[Row]) -> None:
    rows.append(rows[3])


def corrupt(rows: list[Row]) -> None:
    topic, record, value, headers = rows[3]
    rows[3] = topic, record, (value or b"").replace(b"loyalty_discount", b"loyalty_count"), headers


def phantom(rows: list[Row]) -> None:
    topic, record, value, _ = rows[3]
    rows.append(
        (topic, record, value, [("source.topic", b"elsewhere"), ("source.partition", b"0"), ("source.offset", b"1")])
    )


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lose, {"lost-output", "torn-txn"}),
        (repeat, {"duplicate-output"}),
        (corrupt, {"corrupt-output"}),
        (phantom, {"phantom-output"}),
    ],
)
def test_a_wrong_run_is_found(pipeline: TinyPipeline, spoil: Callable[[list[Row]], None], expected: set[str]) -> None:
    """Exit 1, and the finding says where."""
    pipeline.create("--count", "30")
    rows = pipeline.rows()
    spoil(rows)
    pipeline.write(rows)
    code, report = pipeline.verify()
    assert (code, set(report["totals"])) == (1, expected)
    assert report["findings"][0]["evidence"]


def test_before_the_run_and_without_orders_nothing_can_be_told(pipeline: TinyPipeline) -> None:
    """Exit 3 with what to do next."""
    pipeline.create("--count", "0")
    assert "nothing to prove" in pipeline.verify()[1]["doubts"][0]
    pipeline.seed("--count", "9")
    code, report = pipeline.verify()
    assert (code, report["backlog"], report["totals"]) == (3, 9, {})


def test_an_output_in_an_open_transaction_is_inconclusive(
    pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets are pending too: neither loss nor proof."""
    monkeypatch.setattr(verify, "_COMMITTED_S", 1.0)
    pipeline.create("--count", "9")
    pipeline.write(pipeline.rows(), leave_open=True)
    code, message = pipeline.verify()
    assert code == 3
    assert "has not ended" in message


def test_the_same_is_a_hanging_transaction_once_the_run_has_settled(
    pipeline: TinyPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its producer and its transactional id."""
    query_offsets = verify._query_offsets

    def impatient(connection: Connection, claim: verify.PipelineUnderTest, partitions: range, isolation: str) -> Any:
        """What has no answer is not waited for; what has one is."""
        with monkeypatch.context() as short:
            if isolation == READ_COMMITTED:
                short.setattr(verify, "_COMMITTED_S", 0.5)
            return query_offsets(connection, claim, partitions, isolation)

    monkeypatch.setattr(verify, "_query_offsets", impatient)
    monkeypatch.setattr(verify, "_SETTLE_S", 0.2)
    pipeline.create("--count", "9")
    pipeline.write(pipeline.rows(), leave_open=True)
    code, report = pipeline.verify("--settled")
    assert code == 1
    assert "hanging-txn" in report["totals"]
    assert report["findings"][0]["producer_id"] is not None
    assert pipeline.names.topic("tx") in " ".join(report["notes"])


def test_fenced_and_aborted_attempts_before_the_right_one_are_in_order(pipeline: TinyPipeline, tmp_path: Path) -> None:
    """Each is counted, and demands are held against the counts."""
    pipeline.create("--count", "30")
    rows = pipeline.rows()
    pipeline.write(rows, leave_open=True)
    pipeline.write(rows, abort=True)
    pipeline.write(rows)
    (tmp_path / "log").write_text("nothing to see")
    Journal(tmp_path, "writer").close()
    demands = ["--need", "fences=1", "--need", "aborted_records=60", "--settled", "--journals", str(tmp_path)]
    code, report = pipeline.verify(*demands, "--canary", "hunter2", "--artefact", str(tmp_path))
    assert (code, report["totals"], report["notes"]) == (0, {}, [])
    counts = report["counts"]
    assert (counts["committed_transactions"], counts["aborted_transactions"], counts["fences"]) == (1, 2, 1)
    code, report = pipeline.verify("--need", "kills=3", "--fired", "kills=2")
    assert (code, report["verdict"], report["totals"]) == (3, "inconclusive", {"silent-fault": 1})


def test_a_producer_used_twice_and_a_commit_without_offsets_are_found_in_the_raw_logs(pipeline: TinyPipeline) -> None:
    """The second transaction of an epoch; and records that came out while the offset stayed."""
    pipeline.create("--count", "30")
    rows, writer = pipeline.rows(), pipeline.open_producer()
    pipeline.write(rows[:12], writer=writer, offsets=False)
    pipeline.write(rows[12:], writer=writer)
    code, report = pipeline.verify()
    assert (code, set(report["totals"])) == (1, {"epoch-reuse", "torn-txn"})
    code, report = pipeline.verify("--no-strict")
    assert (code, set(report["totals"])) == (1, {"torn-txn"})


def test_a_position_moved_by_hand_is_no_regression(pipeline: TinyPipeline) -> None:
    """The outputs above it are told, not the move."""
    pipeline.create("--count", "30")
    pipeline.write(pipeline.rows())
    group = consumer(pipeline.connection, pipeline.names.group, READ_UNCOMMITTED)
    group.commit(offsets=[TopicPartition(pipeline.names.input, p, 0) for p in range(PARTITIONS)], asynchronous=False)
    group.close()
    code, report = pipeline.verify()
    assert (code, report["totals"]) == (1, {"offset-behind": 30})


def test_missing_topics_are_refused(pipeline: TinyPipeline) -> None:
    """One sentence that names the topic."""
    code, message = pipeline.verify()
    assert code == 3
    assert pipeline.names.input in message


def test_group_describe_shows_position_lag_and_what_waits(pipeline: TinyPipeline) -> None:
    """Committed equals the end also where the log ends in markers; later orders are lag, open ones wait."""
    pipeline.create("--count", "30")
    pipeline.write(pipeline.rows())
    markers_written(pipeline.connection, OFFSETS_TOPIC)  # it tells what counts now, and does not wait
    describe = ("group-describe", "--group", pipeline.names.group, "--topic", pipeline.names.input)
    code, report = pipeline.run(*describe)
    assert (code, report["lag"], report["behind_stable"], report["state"]) == (0, 0, 0, "empty")
    assert all(partition["committed"] == partition["end"] for partition in report["partitions"])
    pipeline.seed("--count", "6", "--leave-open")
    code, report = pipeline.run(*describe)
    assert (code, report["lag"], report["behind_stable"], len(report["open_transactions"])) == (0, 6, 3, 3)
