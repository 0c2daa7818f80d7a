"""The examples, run and proven by the command line as their first lines say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]
from harness.enriched import recreate_topic
from harness.pages import ROOT
from harness.pipeline import Stage, environment
from harness.programs import until
from harness.servers import make_topics

from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.log_reader import LogRecord
from brew.lookup import Table
from brew.records import ERROR_REASON

DAY_MS = 86_400_000


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.create(2)
    return stage


def brew(stage: Stage, command: str, function: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`brew run` and `brew verify`, in the repository's folder, without Spark."""
    arguments = [sys.executable, "-m", "brew", command, *stage.options(), "--transform", f"examples/{function}", *more]
    env = {**environment(stage.names.stem), **variables}
    return subprocess.run(arguments, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def run_and_verify(stage: Stage, function: str, *also: str, master: str = "none", **variables: str) -> None:
    outputs = [word for topic in also for word in ("--also-output", topic)]
    ran = brew(stage, "run", function, "--master", master, *outputs, **variables)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    proven = brew(stage, "verify", function, "--settled", *outputs, **variables)
    assert proven.returncode == 0, proven.stdout + proven.stderr
    assert "proven" in proven.stdout


def objects(records: Sequence[LogRecord]) -> list[Any]:
    return [orjson.loads(record.value() or b"") for record in records]


def reasons(stage: Stage) -> list[bytes | None]:
    letters = stage.records(stage.names.dead_letter)
    return sorted(dict(letter.headers() or ())[ERROR_REASON] or b"" for letter in letters)


def test_clicks_get_their_domain(stage: Stage) -> None:
    """Robots are dropped, what has no domain is rejected. The quick start runs the same function on Spark."""
    clicks: list[Any] = [
        {"url": "https://shop.example/x"},
        {"url": "https://shop.example/x", "agent": "SearchBot/2"},
        {"url": "http://[broken"},
        {"page": 1},
        [],
    ]
    stage.produce(stage.names.input, *((n % 2, b"k", orjson.dumps(click), []) for n, click in enumerate(clicks)))
    run_and_verify(stage, "clicks.py:add_domain")
    assert objects(stage.records(stage.names.output)) == [{"url": "https://shop.example/x", "domain": "shop.example"}]
    assert reasons(stage) == [b"bad-url", b"no-url", b"no-url"]


@pytest.mark.parametrize("master", ["none", "local[2]"])
def test_payments_are_converted_by_the_rate_of_their_time(stage: Stage, master: str) -> None:
    """A rate that is published after the run changes nothing of what `verify` finds."""
    rates = stage.names.topic("rates")
    topics.create(stage.admin, [topics.TopicSpec(rates, 1, {"retention.ms": "-1"})], Deadline(30))
    first = int(time.time() * 1000) - 5 * DAY_MS  # the broker removes records of more than seven days from the input
    publish(stage, rates, (b"USD", b"0.90", first), (b"USD", b"0.95", first + 2 * DAY_MS))
    payments = [
        ({"amount": "10.00", "currency": "USD"}, first - 1),
        ({"amount": "10.00", "currency": "USD"}, first + DAY_MS),
        ({"amount": 10.1, "currency": "USD"}, first + 3 * DAY_MS),
        ({"amount": 5, "currency": "EUR"}, first),
        ({"amount": 5, "currency": "XAU"}, first),
        ({"amount": "NaN", "currency": "EUR"}, first),
    ]
    publish(stage, stage.names.input, *((b"k", orjson.dumps(payment), timestamp) for payment, timestamp in payments))
    variables = {"RATES_TOPIC": rates, "BOOTSTRAP": stage.broker.bootstrap}
    run_and_verify(stage, "currency.py:in_euros", master=master, **variables)
    converted = {(payment["eur"], payment["rate"]) for payment in objects(stage.records(stage.names.output))}
    assert converted == {("9.00", "0.90"), ("9.60", "0.95"), ("5.00", "1")}
    assert reasons(stage) == [b"no-amount", b"no-rate", b"no-rate"]

    publish(stage, rates, (b"USD", b"2", first + 4 * DAY_MS))
    assert brew(stage, "verify", "currency.py:in_euros", "--settled", **variables).returncode == 0


def test_a_table_has_the_rows_of_new_partitions_and_none_of_a_deleted_topic(stage: Stage) -> None:
    """Else a following run would get other answers than `brew verify`, whose process reads the topic afterwards."""
    topic = stage.names.topic("rates")
    table = Table(topic, bootstrap=stage.broker.bootstrap)

    before = int(time.time() * 1000) - 60_000

    def rate(key: bytes) -> bytes | None:
        time.sleep(0.01)  # a record that is newer than what was read before
        return table.at(key, int(time.time() * 1000) - 1)

    make_topics(stage.connection, topic, partitions=1)
    stage.produce(topic, (0, b"USD", b"1", None, before))
    assert (rate(b"USD"), rate(b"EUR")) == (b"1", None)
    stage.admin.create_partitions([NewPartitions(topic, 2)])[topic].result(20)
    until(lambda: len(stage.logs(topic)) == 2, "the partition is there", 20)
    stage.produce(topic, (1, b"EUR", b"2", None, before))
    assert (rate(b"USD"), rate(b"EUR")) == (b"1", b"2")
    recreate_topic(stage.broker.bootstrap, topic, partitions=2)
    stage.produce(topic, *((0, b"USD", value, None, before) for value in (b"3", b"4")))
    assert (rate(b"USD"), rate(b"EUR")) == (b"4", None)


def publish(stage: Stage, topic: str, *rows: tuple[bytes, bytes, int]) -> None:
    """Records with timestamps of their own."""
    stage.produce(topic, *((0, key, value, None, timestamp) for key, value, timestamp in rows))


def test_personal_data_is_masked_in_value_key_and_headers(stage: Stage) -> None:
    customer = {
        "customer_id": "c-1",
        "name": "Ada",
        "tier": "gold",
        "contact": [{"email": "a@x.example", "comment": "calls"}],
    }
    headers = [("trace", b"1"), ("user", b"Ada")]
    stage.produce(
        stage.names.input, (0, b"c-1", orjson.dumps(customer), headers), (1, b"c-2", orjson.dumps(customer), [])
    )
    run_and_verify(stage, "masking.py:mask", MASKING_KEY="secret")
    first, second = stage.records(stage.names.output)
    masked = orjson.loads(first.value() or b"")
    assert set(masked) == {"customer_id", "tier", "contact"}
    assert list(masked["contact"][0]) == ["email"]
    assert (first.value() == second.value(), first.key() == second.key()) == (True, False)
    assert first.key() == masked["customer_id"].encode()  # the same text is masked alike, wherever it stands
    written = b"".join((first.value() or b"", first.key() or b"", repr(first.headers()).encode()))
    assert [word for word in (b"Ada", b"c-1", b"a@x.example", b"user") if word in written] == []

    stage.produce(stage.names.input, (0, b"c-1", b"{}", []))
    keyless = brew(stage, "run", "masking.py:mask", "--master", "none", MASKING_KEY="")
    assert keyless.returncode == 3
    assert "MASKING_KEY is not set" in keyless.stderr


def test_the_lines_of_an_order_go_to_the_topic_of_their_kind(stage: Stage) -> None:
    """The example's topics have names of their own, so this test has a broker's topics to itself only once."""
    items = [{"kind": "food", "item": "tea"}, {"kind": "book", "item": "b1"}, {"kind": "toy", "item": "t"}]
    stage.produce(
        stage.names.input,
        (0, b"o1", orjson.dumps({"order_id": 1, "lines": items}), []),
        (0, b"o2", orjson.dumps({"order_id": 2, "lines": []}), []),
        (1, b"o3", b'{"order_id":3}', []),
    )
    run_and_verify(stage, "routing.py:lines", "lines.food", "lines.books")
    for topic, number, item in (("lines.food", 1, b"tea"), ("lines.books", 2, b"b1"), (stage.names.output, 3, b"t")):
        (record,) = stage.records(topic)
        assert (orjson.loads(record.value() or b"")["line"], record.key()) == (number, item)
    assert reasons(stage) == [b"not-an-order"]


def test_a_new_project_tests_runs_and_proves_itself(stage: Stage, tmp_path: Path) -> None:
    """`brew init`, then its Makefile's targets; `verify` sees it when the function is changed behind a run."""
    python = f"PYTHON={sys.executable}"
    make = ["make", python, f"BREW={sys.executable} -m brew", f"INPUT={stage.names.input}"]
    make += [f"OUTPUT={stage.names.output}", f"BOOTSTRAP={stage.broker.bootstrap}"]
    env = {**environment(stage.names.stem), "PYTHONPATH": str(ROOT), "MASTER": "none"}
    name = f"p{stage.names.stem}"

    def call(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)

    assert call([sys.executable, "-m", "brew", "init", name], tmp_path).returncode == 0
    done = call([*make, "test", "seed", "run", "verify"], tmp_path / name)
    assert done.returncode == 0, done.stdout + done.stderr
    for message in (f"60 clicks on {stage.names.input}", "53 transformed, 3 rejected, 4 dropped", "proven"):
        assert message in done.stdout

    function = tmp_path / name / "transformation.py"
    function.write_text(function.read_text().replace(".hostname", ".netloc + '!'"))
    assert call([*make, "verify"], tmp_path / name).returncode != 0
