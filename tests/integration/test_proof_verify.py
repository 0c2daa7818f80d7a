"""Verification on a real broker, of a pipeline in twenty lines that can be told to misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from confluent_kafka import TopicPartition
from harness.brokers import Broker
from harness.names import Names

from proof import verify as verifying
from proof.__main__ import proof
from protocol.command import outcome
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.kafka import topics
from protocol.kafka.clients import READ_COMMITTED, READ_UNCOMMITTED, admin, consumer, producer
from protocol.kafka.offsets import log_offsets
from protocol.kafka.scan import LogRecord, scan
from protocol.position import SourcePosition
from protocol.records import DISCOUNTS, ERROR_REASON, tier_of_key

Capture = pytest.CaptureFixture[str]
Row = tuple[str, LogRecord, bytes | None, Any]
PARTITIONS = 3


def seeded(broker: Broker, names: Names, *options: str) -> Connection:
    connection = Connection(broker.bootstrap)
    wanted = [topics.Wanted(n, PARTITIONS, {}) for n in (names.input, names.output, names.dead_letter)]
    topics.create(admin(connection), wanted, Deadline(20))
    topics.describe_all(admin(connection), [one.name for one in wanted], Deadline(20))
    arguments = ["seed", "--bootstrap", broker.bootstrap, "--topic", names.input, "--transactional", *options]
    assert outcome(proof, "proof", arguments) == 0
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


def write(connection: Connection, names: Names, made: list[Row], *, leave_open: bool = False) -> None:
    """One transaction with all rows and the offsets up to the last stable one."""
    writer = producer(connection, names.topic("tx"), timeout_s=60, message_max_bytes=1_000_000)
    writer.init_transactions(20)
    writer.begin_transaction()
    for topic, record, value, headers in made:
        writer.produce(topic, value, record.key(), record.partition(), None, None, record.timestamp()[1], headers)
    assert writer.flush(20) == 0
    logs = log_offsets(admin(connection), names.input, range(PARTITIONS), Deadline(20))
    group = consumer(connection, names.group, READ_UNCOMMITTED)
    ends = [TopicPartition(names.input, p, log.last_stable) for p, log in logs.items()]
    writer.send_offsets_to_transaction(ends, group.consumer_group_metadata(), 20)
    group.close()
    if not leave_open:
        writer.commit_transaction(20)


def verified(broker: Broker, names: Names, capsys: Capture) -> tuple[int, Any]:
    capsys.readouterr()
    named = [
        "--input",
        names.input,
        "--output",
        names.output,
        "--dead-letter",
        names.dead_letter,
        "--group",
        names.group,
    ]
    code = outcome(proof, "proof", ["verify", "--bootstrap", broker.bootstrap, *named, "--json"])
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


def corrupt(made: list[Row]) -> None:
    topic, record, value, headers = made[3]
    made[3] = topic, record, (value or b"").replace(b"loyalty_discount", b"loyalty_count"), headers


def phantom(made: list[Row]) -> None:
    topic, record, value, _ = made[3]
    made.append(
        (topic, record, value, [("source.topic", b"elsewhere"), ("source.partition", b"0"), ("source.offset", b"1")])
    )


@pytest.mark.parametrize(
    ("spoil", "name"),
    [(lose, "lost-output"), (repeat, "duplicate-output"), (corrupt, "corrupt-output"), (phantom, "phantom-output")],
)
def test_a_wrong_run_is_found(
    broker: Broker, names: Names, capsys: Capture, spoil: Callable[[list[Row]], None], name: str
) -> None:
    """Exit 1, and the finding says where."""
    connection = seeded(broker, names, "--count", "30")
    made = rows(connection, names)
    spoil(made)
    write(connection, names, made)
    code, report = verified(broker, names, capsys)
    assert (code, list(report["totals"])) == (1, [name])
    assert report["findings"][0]["evidence"]


def test_before_the_run_and_without_orders_nothing_can_be_told(broker: Broker, names: Names, capsys: Capture) -> None:
    """Exit 3 with what to do next."""
    connection = seeded(broker, names, "--count", "0")
    assert "nothing to prove" in verified(broker, names, capsys)[1]["doubts"][0]
    assert (
        outcome(proof, "proof", ["seed", "--bootstrap", connection.bootstrap, "--topic", names.input, "--count", "9"])
        == 0
    )
    code, report = verified(broker, names, capsys)
    assert (code, report["backlog"], report["totals"]) == (3, 9, {})


def test_an_output_in_an_open_transaction_is_inconclusive(
    broker: Broker, names: Names, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets are pending too: neither loss nor proof."""
    monkeypatch.setattr(verifying, "_COMMITTED_S", 1.0)
    connection = seeded(broker, names, "--count", "9")
    write(connection, names, rows(connection, names), leave_open=True)
    code, told = verified(broker, names, capsys)
    assert code == 3
    assert "has not ended" in told


def test_missing_topics_are_refused(broker: Broker, names: Names, capsys: Capture) -> None:
    """One sentence that names the topic."""
    code, told = verified(broker, names, capsys)
    assert code == 3
    assert names.input in told


def test_group_describe_shows_position_lag_and_what_waits(broker: Broker, names: Names, capsys: Capture) -> None:
    """Committed equals the end also where the log ends in markers; later orders are lag, open ones wait."""
    connection = seeded(broker, names, "--count", "30")
    write(connection, names, rows(connection, names))
    arguments = ["group-describe", "--bootstrap", broker.bootstrap, "--group", names.group, "--topic", names.input]
    capsys.readouterr()
    assert outcome(proof, "proof", [*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lag"], told["behind_stable"], told["state"]) == (0, 0, "empty")
    assert [one["committed"] for one in told["partitions"]] == [one["end"] for one in told["partitions"]]
    more = ["--topic", names.input, "--count", "6", "--leave-open"]
    assert outcome(proof, "proof", ["seed", "--bootstrap", broker.bootstrap, *more]) == 0
    capsys.readouterr()
    assert outcome(proof, "proof", [*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["lag"], told["behind_stable"], len(told["open_transactions"])) == (6, 3, 3)
