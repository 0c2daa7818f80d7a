"""Verification on a real broker, of a pipeline in twenty lines that can be told to misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import TopicPartition
from harness.brokers import Broker
from harness.names import Names
from harness.transactions import make_topics
from harness.waiting import markers_written

from brew.cli import exit_code_of
from brew.cluster import OFFSETS_TOPIC
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.clients import Producer, admin, consumer, producer
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import SourcePosition
from brew.orders import DISCOUNTS, tier_of_key
from brew.records import ERROR_REASON
from proof import verify
from proof.__main__ import proof

Capture = pytest.CaptureFixture[str]
Row = tuple[str, Any, bytes | None, Any]
PARTITIONS = 3


def seeded(broker: Broker, names: Names, *options: str) -> Connection:
    connection = Connection(broker.bootstrap)
    make_topics(connection, names.input, names.output, names.dead_letter, partitions=PARTITIONS)
    arguments = ["seed", "--bootstrap", broker.bootstrap, "--topic", names.input, "--transactional", *options]
    assert exit_code_of(proof, "proof", arguments) == 0
    markers_written(connection, names.input)
    return connection


def rows(connection: Connection, names: Names) -> list[Row]:
    """What a right pipeline would write."""
    logs = log_offsets(admin(connection), names.input, range(PARTITIONS), Deadline(20))
    made: list[Row] = []
    ends = {p: (log.first, log.last_stable) for p, log in logs.items()}
    for record in (one for batch in scan(connection, names.input, ends, READ_COMMITTED) for one in batch):
        source = SourcePosition(names.input, record.partition(), record.offset()).headers()
        try:
            order = orjson.loads(record.value() or b"")
            reason = None if "customer_id" in order else b"no-customer-id"
            reason = b"not-an-object" if isinstance(order, list) else reason
        except orjson.JSONDecodeError:
            reason = b"no-value" if record.value() is None else b"not-json"
        if reason is not None:
            made.append((names.dead_letter, record, record.value(), [(ERROR_REASON, reason), *source]))
            continue
        tier = tier_of_key(record.key())
        out = orjson.dumps({**order, "loyalty_tier": tier, "loyalty_discount": DISCOUNTS[tier]})
        made.append((names.output, record, out, source))
    return made


def writing(connection: Connection, names: Names) -> Producer:
    writer = producer(connection, names.topic("tx"), timeout_s=60, message_max_bytes=1_000_000)
    writer.init_transactions(20)
    return writer


def write(
    connection: Connection,
    names: Names,
    made: list[Row],
    *,
    leave_open: bool = False,
    writer: Producer | None = None,
    abort: bool = False,
    offsets: bool = True,
) -> None:
    """One transaction with all rows and the offsets up to the last stable one."""
    writer = writer or writing(connection, names)
    writer.begin_transaction()
    for topic, record, value, headers in made:
        writer.produce(topic, value, record.key(), record.partition(), None, None, record.timestamp()[1], headers)
    assert writer.flush(20) == 0
    logs = log_offsets(admin(connection), names.input, range(PARTITIONS), Deadline(20))
    group = consumer(connection, names.group, READ_UNCOMMITTED)
    ends = [TopicPartition(names.input, p, log.last_stable) for p, log in logs.items()]
    if offsets:
        writer.send_offsets_to_transaction(ends, group.consumer_group_metadata(), 20)
    group.close()
    if abort:
        writer.abort_transaction(20)
    elif not leave_open:
        writer.commit_transaction(20)


def verified(broker: Broker, names: Names, capsys: Capture, *more: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = exit_code_of(proof, "proof", ["verify", "--bootstrap", broker.bootstrap, *names.options(), *more, "--json"])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else captured.err


def test_a_right_run_is_proven_with_aborted_and_bad_inputs_among_it(
    broker: Broker, names: Names, capsys: Capture
) -> None:
    """Aborted inputs, trailing markers, a partition of markers only and rejected records are all in order."""
    connection = seeded(broker, names, "--count", "60", "--bad-every", "7", "--markers-only-partition", "1")
    write(connection, names, rows(connection, names))
    code, report = verified(broker, names, capsys)
    assert (code, report["verdict"], report["doubts"]) == (0, "proven", [])
    assert (report["inputs"], report["outputs"], report["dead_letters"]) == (60, 52, 8)


def lose(made: list[Row]) -> None:
    made.pop(3)


def repeat(made: list[Row]) -> None:
    made.append(made[3])


def repeat_elsewhere(made: list[Row]) -> None:
    """The same record once more, in another output partition."""
    topic, record, value, headers = made[3]
    made.append((topic, Elsewhere(record), value, headers))


class Elsewhere:
    """A record, but for its partition."""

    def __init__(self, record: LogRecord) -> None:
        self.key, self.timestamp, self._partition = record.key, record.timestamp, record.partition()

    def partition(self) -> int:
        return (self._partition + 1) % PARTITIONS


def corrupt(made: list[Row]) -> None:
    topic, record, value, headers = made[3]
    made[3] = topic, record, (value or b"").replace(b"loyalty_discount", b"loyalty_count"), headers


def phantom(made: list[Row]) -> None:
    topic, record, value, _ = made[3]
    made.append(
        (topic, record, value, [("source.topic", b"elsewhere"), ("source.partition", b"0"), ("source.offset", b"1")])
    )


def unsourced(made: list[Row]) -> None:
    topic, record, value, _ = made[3]
    made.append((topic, record, value, []))


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lose, {"lost-output", "torn-txn"}),
        (repeat, {"duplicate-output"}),
        (repeat_elsewhere, {"duplicate-output"}),
        (corrupt, {"corrupt-output"}),
        (phantom, {"phantom-output"}),
        (unsourced, {"phantom-output"}),
    ],
)
def test_a_wrong_run_is_found(
    broker: Broker, names: Names, capsys: Capture, spoil: Callable[[list[Row]], None], found: set[str]
) -> None:
    """Exit 1, and the finding says where."""
    connection = seeded(broker, names, "--count", "30")
    made = rows(connection, names)
    spoil(made)
    write(connection, names, made)
    code, report = verified(broker, names, capsys)
    assert (code, set(report["totals"])) == (1, found)
    assert report["findings"][0]["evidence"]


def test_before_the_run_and_without_orders_nothing_can_be_told(broker: Broker, names: Names, capsys: Capture) -> None:
    """Exit 3 with what to do next."""
    connection = seeded(broker, names, "--count", "0")
    assert "nothing to prove" in verified(broker, names, capsys)[1]["doubts"][0]
    assert (
        exit_code_of(
            proof, "proof", ["seed", "--bootstrap", connection.bootstrap, "--topic", names.input, "--count", "9"]
        )
        == 0
    )
    code, report = verified(broker, names, capsys)
    assert (code, report["backlog"], report["totals"]) == (3, 9, {})


def test_an_output_in_an_open_transaction_is_inconclusive(
    broker: Broker, names: Names, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets are pending too: neither loss nor proof."""
    monkeypatch.setattr(verify, "_COMMITTED_S", 1.0)
    connection = seeded(broker, names, "--count", "9")
    write(connection, names, rows(connection, names), leave_open=True)
    code, told = verified(broker, names, capsys)
    assert code == 3
    assert "has not ended" in told


def test_the_same_is_a_hanging_transaction_once_the_run_has_settled(
    broker: Broker, names: Names, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its producer and its transactional id."""
    asked = verify._query_offsets

    def impatient(connection: Connection, claim: verify.PipelineUnderTest, partitions: range, isolation: str) -> Any:
        """What has no answer is not waited for; what has one is."""
        with monkeypatch.context() as short:
            if isolation == READ_COMMITTED:
                short.setattr(verify, "_COMMITTED_S", 0.5)
            return asked(connection, claim, partitions, isolation)

    monkeypatch.setattr(verify, "_query_offsets", impatient)
    monkeypatch.setattr(verify, "_SETTLE_S", 0.2)
    connection = seeded(broker, names, "--count", "9")
    write(connection, names, rows(connection, names), leave_open=True)
    code, report = verified(broker, names, capsys, "--settled")
    assert code == 1
    assert "hanging-txn" in report["totals"]
    assert report["findings"][0]["producer_id"] is not None
    assert names.topic("tx") in " ".join(report["notes"])


def test_fenced_and_aborted_attempts_before_the_right_one_are_in_order(
    broker: Broker, names: Names, capsys: Capture, tmp_path: Path
) -> None:
    """Each is counted, and demands are held against the counts."""
    connection = seeded(broker, names, "--count", "30")
    made = rows(connection, names)
    write(connection, names, made, leave_open=True)
    write(connection, names, made, abort=True)
    write(connection, names, made)
    (tmp_path / "log").write_text("nothing to see")
    demands = ["--need", "fences=1", "--need", "aborted_records=60", "--settled", "--journals", str(tmp_path)]
    code, report = verified(broker, names, capsys, *demands, "--canary", "hunter2", "--artefact", str(tmp_path))
    assert (code, report["totals"], report["notes"]) == (0, {}, [])
    counts = report["counts"]
    assert (counts["committed_transactions"], counts["aborted_transactions"], counts["fences"]) == (1, 2, 1)
    code, report = verified(broker, names, capsys, "--need", "kills=3", "--fired", "kills=2")
    assert (code, report["verdict"], report["totals"]) == (3, "inconclusive", {"silent-fault": 1})


def test_a_producer_used_twice_and_a_commit_without_offsets_are_found_in_the_raw_logs(
    broker: Broker, names: Names, capsys: Capture
) -> None:
    """The second transaction of an epoch; and records that came out while the offset stayed."""
    connection = seeded(broker, names, "--count", "30")
    made, writer = rows(connection, names), writing(connection, names)
    write(connection, names, made[:12], writer=writer, offsets=False)
    write(connection, names, made[12:], writer=writer)
    code, report = verified(broker, names, capsys)
    assert (code, set(report["totals"])) == (1, {"epoch-reuse", "torn-txn"})
    code, report = verified(broker, names, capsys, "--no-strict")
    assert (code, set(report["totals"])) == (1, {"torn-txn"})


def test_a_settled_end_is_not_proven_without_a_look_at_its_transactions(
    broker: Broker, names: Names, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the run goes on a note is enough; who says that it has ended asks for all of it."""
    connection = seeded(broker, names, "--count", "30")
    write(connection, names, rows(connection, names))
    monkeypatch.setattr(verify, "raw_logs", _refusing)
    _, report = verified(broker, names, capsys)
    assert (report["verdict"], len(report["notes"])) == ("proven", 1)
    code, report = verified(broker, names, capsys, "--settled")
    assert (code, report["verdict"], len(report["doubts"])) == (3, "inconclusive", 1)


def _refusing(*_: object) -> None:
    raise Refused("fetch: not authorised")


def test_a_position_moved_by_hand_is_no_regression(broker: Broker, names: Names, capsys: Capture) -> None:
    """The outputs above it are told, not the move."""
    connection = seeded(broker, names, "--count", "30")
    write(connection, names, rows(connection, names))
    group = consumer(connection, names.group, READ_UNCOMMITTED)
    group.commit(offsets=[TopicPartition(names.input, p, 0) for p in range(PARTITIONS)], asynchronous=False)
    group.close()
    code, report = verified(broker, names, capsys)
    assert (code, report["totals"]) == (1, {"offset-behind": 30})


def test_missing_topics_are_refused(broker: Broker, names: Names, capsys: Capture) -> None:
    """One sentence that names the topic."""
    code, told = verified(broker, names, capsys)
    assert code == 3
    assert names.input in told


def test_group_describe_shows_position_lag_and_what_waits(broker: Broker, names: Names, capsys: Capture) -> None:
    """Committed equals the end also where the log ends in markers; later orders are lag, open ones wait."""
    connection = seeded(broker, names, "--count", "30")
    write(connection, names, rows(connection, names))
    markers_written(connection, OFFSETS_TOPIC)  # it tells what counts now, and does not wait
    arguments = ["group-describe", "--bootstrap", broker.bootstrap, "--group", names.group, "--topic", names.input]
    capsys.readouterr()
    assert exit_code_of(proof, "proof", [*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lag"], told["behind_stable"], told["state"]) == (0, 0, "empty")
    assert [one["committed"] for one in told["partitions"]] == [one["end"] for one in told["partitions"]]
    more = ["--topic", names.input, "--count", "6", "--leave-open"]
    assert exit_code_of(proof, "proof", ["seed", "--bootstrap", broker.bootstrap, *more]) == 0
    capsys.readouterr()
    assert exit_code_of(proof, "proof", [*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lag"], told["behind_stable"], len(told["open_transactions"])) == (6, 3, 3)
