"""Inputs of every shape: transactional ones, other partition counts, bad records among good ones, exact numbers."""

from __future__ import annotations

import time
from dataclasses import replace

import orjson
import pytest
from harness.operate import upstream
from harness.pipeline import DIRECT, READERS, Stage, Status
from harness.records import write_unreadable

from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import topics
from brew.kafka.log_reader import LogRecord
from brew.offsets import SourcePosition
from brew.orders import Reason
from brew.records import ERROR_MESSAGE, ERROR_OFFSET, ERROR_OMITTED, ERROR_PARTITION, ERROR_REASON, ERROR_TOPIC

INPUT_HEADERS = [("trace", b"abc"), ("trace", None), ("source.offset", b"7")]
TIMESTAMP_MS = int(time.time() * 1000) - 3_600_000
"""Not older than the broker's retention, which deleted the records in the middle of a test (seen)."""


@pytest.fixture(params=READERS)
def stage(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    return replace(stage, reader=request.param)


def by_source(records: list[LogRecord]) -> dict[tuple[int, int], LogRecord]:
    by_position = {}
    for record in records:
        source = SourcePosition.of(record.headers())
        assert source is not None
        by_position[source.partition, source.offset] = record
    return by_position


def test_a_transactional_input_is_read_without_what_was_aborted_up_to_its_very_end(stage: Stage) -> None:
    """Aborted records, trailing markers, a partition of markers only: the committed offsets are the log's ends."""
    stage.create(3)
    stage.seed(60, "--transactional", "--markers-only-partition", "1")
    assert len(stage.records(stage.names.input)) == 60
    run = stage.drain("--max-records-per-transaction", "25")
    assert run.progress.totals.enriched == 60
    markers_only = [outcome for outcome in run.outcomes if outcome.partition == 1]
    assert {outcome.status for outcome in markers_only} == {Status.COMMITTED}
    assert sum(outcome.enriched for outcome in markers_only) == 0
    keys = [record.key() or b"" for record in stage.records(stage.names.output)]
    assert not any(key.startswith(b"gold-aborted") for key in keys)
    stage.proven(inputs=60, outputs=60)
    # The same after a crash of the run before.
    stage.seed(60, "--transactional", "--markers-only-partition", "1")
    stage.drain("--crash-prob", "1.0")
    stage.drain()
    stage.proven(inputs=120, outputs=120)


def good(number: int) -> bytes:
    return b'{"order_id": "o-%d", "customer_id": "c-1", "note": "%s"}' % (number, b"x" * number)


BAD = {
    Reason.NOT_JSON: b'{"customer_id": "c-1"',
    Reason.NOT_AN_OBJECT: b'[{"customer_id": "c-1"}]',
    Reason.NO_CUSTOMER_ID: b'{"order_id": "o-1", "customer_id": null}',
    Reason.NO_VALUE: None,
    Reason.TOO_LARGE: b'{"customer_id": "c-1", "note": "' + b"y" * 3000 + b'"}',
    Reason.TOO_DEEP: b'{"customer_id": ' + b"[" * 30 + b"]" * 30 + b"}",
}


def test_bad_records_of_every_reason_go_to_the_dead_letters_unchanged(stage: Stage) -> None:
    """Same transaction, bytes and timestamp as they came, the input's own headers first, then where from and why."""
    stage.create(2)
    records = []
    for number, value in enumerate(BAD.values()):
        records += [
            (0, b"gold-%d" % number, good(number), INPUT_HEADERS, TIMESTAMP_MS + number),
            (0, b"bad-%d" % number, value, INPUT_HEADERS, TIMESTAMP_MS + number),
        ]
    stage.produce(stage.names.input, *records, (1, None, good(1)), (1, b"", b""), (1, b"k\xff", b"\xff\xfe"))
    limits = ["--max-record-bytes", "2000", "--max-record-depth", "20"]
    stage.drain(*limits)

    dead = by_source(stage.records(stage.names.dead_letter))
    for index, (reason, value) in enumerate(BAD.items()):
        record = dead[0, 2 * index + 1]
        assert (record.partition(), record.key(), record.value()) == (0, b"bad-%d" % index, value)
        assert record.timestamp()[1] == TIMESTAMP_MS + index
        headers = record.headers() or []
        assert headers[: len(INPUT_HEADERS)] == INPUT_HEADERS
        error = dict(headers[len(INPUT_HEADERS) :])
        assert error[ERROR_REASON] == reason.encode()
        assert error[ERROR_MESSAGE]
        assert error[ERROR_TOPIC] == stage.names.input.encode()
        assert (error[ERROR_PARTITION], error[ERROR_OFFSET]) == (b"0", b"%d" % (2 * index + 1))
        assert ERROR_OMITTED not in error
    assert dict(dead[1, 1].headers() or [])[ERROR_REASON] == b"not-json"
    assert (dead[1, 2].key(), dead[1, 2].value()) == (b"k\xff", b"\xff\xfe")

    outputs = by_source(stage.records(stage.names.output))
    for number in range(len(BAD)):
        record = outputs[0, 2 * number]
        assert (record.headers() or [])[: len(INPUT_HEADERS)] == INPUT_HEADERS
        assert record.timestamp()[1] == TIMESTAMP_MS + number
        assert orjson.loads(record.value() or b"")["loyalty_discount"] == 0.15
    assert orjson.loads(outputs[1, 0].value() or b"")["loyalty_tier"] == "standard"
    stage.proven(inputs=15, outputs=7, dead_letters=8)


def test_a_header_with_a_name_that_is_not_utf_8_is_refused_by_place_or_read(stage: Stage) -> None:
    """confluent-kafka can't read it: the process could end by SIGSEGV. Spark's client replaces what it can't decode."""
    stage.create(1)
    write_unreadable(stage.connection, stage.names.input, 1)
    if stage.reader == DIRECT:
        with pytest.raises(Refused, match="record at offset 0 of input partition 0 has a header"):
            stage.drain("--patience", "2")
        assert stage.outputs() == 0
    else:
        stage.drain()
        assert dict(by_source(stage.records(stage.names.output))[0, 0].headers() or ())["n\ufffd"] == b"1"


def test_other_partition_counts_keep_the_order_per_key_through_a_crash(stage: Stage) -> None:
    """Input 4, output 3: the key's hash decides, each key stays in one partition and in its order."""
    stage.create(4, output=3)
    keys = [b"gold-%d" % number for number in range(20)]
    for lap in range(5):
        stage.produce(
            stage.names.input,
            *[(number % 4, key, b'{"customer_id":"c","lap":%d}' % lap) for number, key in enumerate(keys)],
        )
    stage.drain("--max-records-per-transaction", "10", "--crash-prob", "0.5", "--crash-seed", "3")
    stage.drain("--max-records-per-transaction", "10")
    laps_by_key: dict[bytes, list[tuple[int, int]]] = {}
    for record in stage.records(stage.names.output):
        lap = orjson.loads(record.value() or b"")["lap"]
        laps_by_key.setdefault(record.key() or b"", []).append((record.partition(), lap))
    for places in laps_by_key.values():
        assert [lap for _, lap in places] == [0, 1, 2, 3, 4]
        assert len({partition for partition, _ in places}) == 1
    assert len({places[0][0] for places in laps_by_key.values()}) == 3
    stage.proven(inputs=100, outputs=100)


@pytest.mark.parametrize("stage", [DIRECT], indirect=True)  # the proof does not ask who read
def test_an_output_left_in_an_open_transaction_is_seen_by_the_brokers_view(stage: Stage) -> None:
    """The check that every scenario ends with goes red when there is something to see."""
    stage.create(1, orders=5)
    stage.drain()
    stage.proven(inputs=5)
    with upstream(stage, "stray") as stray:
        stray.begin_transaction()
        stray.produce(stage.names.output, b"stray", partition=0)
        assert stray.flush(20) == 0
        (transaction,) = stage.open_transactions()
        assert transaction.transactional_id == stage.names.topic("stray")
        with pytest.raises(AssertionError):
            stage.proven(inputs=5)
    stage.proven(inputs=5)


def test_a_run_with_nothing_to_do_ends_and_a_second_one_too(stage: Stage) -> None:
    """An empty input is drained; topics that are missing are made like the input."""
    stage.create(2)
    assert stage.drain().outcomes == []
    assert len(stage.logs(stage.names.output)) == len(stage.logs(stage.names.dead_letter)) == 2
    stage.seed(10)
    stage.drain()
    assert stage.drain().outcomes == []
    stage.proven(inputs=10)


def test_an_output_that_takes_small_batches_only_gets_them(stage: Stage) -> None:
    """The topic's limit is one for a whole batch: a producer that fills larger ones would be refused for ever."""
    stage.create(1)
    small = {topics.MAX_MESSAGE_BYTES: "60000"}
    topics.create(stage.admin, [topics.TopicSpec(stage.names.output, 1, small)], Deadline(20))
    stage.seed(2000)
    run = stage.drain_locally()
    assert run.statuses() == {Status.COMMITTED}, run.outcomes
    stage.proven(inputs=2000, outputs=2000)
