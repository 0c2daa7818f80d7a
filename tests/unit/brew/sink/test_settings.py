"""What a sink is told, refused together with what to do, what importing it loads, and what it tells of its batches."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from harness.fakes import Broker, FakeTransaction
from prometheus_client.parser import text_string_to_metric_families

import brew
from brew.connection import Connection
from brew.errors import Abortable, Refused, Unreachable, UsageError
from brew.kafka.topics import Topic
from brew.names import STEPS
from brew.observability import metrics
from brew.observability.status import PartitionState, State, Transactions
from brew.offsets import Committed
from brew.sink import sink as sinks
from brew.sink.batch import BatchJob, Result, Status
from brew.sink.position import BY_HAND, Batch, PositionMetadata, fingerprint
from brew.sink.query import BatchSource
from brew.sink.telemetry import Telemetry


def sink(**settings: Any) -> brew.ExactlyOnceSink:
    return brew.ExactlyOnceSink("nowhere:1", **{"name": "revenue", "topic": "out", **settings})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": " "}, "name is ' '"),
        ({"name": "größe"}, "name is 'größe': it has to consist of printable ASCII characters"),
        ({"source_group": "tab\t"}, "source_group is 'tab\\t': it has to consist of printable ASCII characters"),
        ({"topic": "a b"}, "topic is 'a b'"),
        ({"topic": None}, "set position_topic"),
        ({"transaction_timeout_s": 901}, "transaction_timeout_s is 901: it has to be a number from 1 to 900"),
        ({"transaction_timeout_s": "60"}, "transaction_timeout_s is '60': it has to be a number"),
        ({"transaction_timeout_s": 0}, "transaction_timeout_s is 0"),
        ({"writers": 2}, 'writers is 2: it has to be 1 or "tasks"'),
        ({"attempts": 0}, "attempts is 0: it has to be a whole number from 1 to 1000"),
        ({"attempts": 2.5}, "attempts is 2.5: it has to be a whole number"),
        ({"attempts": True}, "attempts is True"),
        ({"probe_port": 70_000}, "probe_port is 70000: it has to be a whole number from 0 to 65535"),
        ({"source_group": "revenue"}, "the sink's own group"),
        ({"client_config": "/nowhere/at/all"}, "can't be read"),
    ],
)
def test_a_wrong_setting_is_refused_before_anything_is_asked(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError) as refused:
        sink(**settings)
    assert expected in str(refused.value)


def test_tasks_cannot_log_in_by_kerberos(tmp_path: Path) -> None:
    """Their client would take a package of its own; one writer uses librdkafka."""
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n")
    assert sink().writers == "tasks"
    assert sink(client_config=file).writers == 1
    with pytest.raises(UsageError, match=r"sasl\.mechanism GSSAPI: tasks do not log in by Kerberos; use writers=1"):
        sink(writers="tasks", client_config=file)


JOB = BatchJob(Batch("revenue", "out", 2, PositionMetadata(None, "", "")), sink().connection, 60.0, "out", headers=True)
NO_FRAME: Any = None


def test_two_sinks_of_one_name_pause_differently_and_never_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal pauses they would fence each other at each attempt."""
    pauses = list[float]()
    monkeypatch.setattr(sinks.time, "sleep", pauses.append)
    monkeypatch.setattr(sinks, "is_stopping", lambda _: False)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_attempt", lambda *_: Result(Status.FAILED, detail="Fenced: "))
    for _ in range(2):
        with pytest.raises(Abortable, match="was not written in 8 attempts"):
            sink(attempts=8)._run(NO_FRAME, JOB)
    first, second = pauses[:7], pauses[7:]
    assert all(one != other for one, other in zip(first, second, strict=True))
    for pause, planned in zip(first, (0.2, 0.6, 1.8, 5.4, 16.2, 20, 20), strict=True):
        assert planned / 2 <= pause <= planned * 1.5


@pytest.mark.parametrize(
    ("produced_s", "advised"),
    [(48.0, r"took 48 s and transaction_timeout_s is 60: raise that"), (47.9, "remove the cause and start again")],
)
def test_only_a_slow_batch_is_blamed_on_the_transaction_timeout(
    monkeypatch: pytest.MonkeyPatch, produced_s: float, advised: str
) -> None:
    failed = Result(Status.FAILED, detail="Fenced: ", steps={"produce": produced_s})
    monkeypatch.setattr(brew.ExactlyOnceSink, "_attempt", lambda *_: failed)
    with pytest.raises(Abortable, match=advised):
        sink(attempts=1)._run(NO_FRAME, JOB)


COMMITTING = {"fence": 0.1, "locate": 0.1, "begin": 0.0, "produce": 0.1, "send-offsets": 0.1, "commit": 30.0}
LOST_ANSWER = Result(Status.FAILED, detail="DeadlineExceeded: commit: ", steps=COMMITTING)
NO_FENCE = Result(Status.FAILED, detail="DeadlineExceeded: fence: ", steps={"fence": 60.0})
NO_BATCH_OUT = Result(Status.FAILED, detail="Abortable: produce: ", steps={"fence": 0.1, "locate": 0.1, "begin": 0.0})
OPEN = r"was not confirmed in \d attempts.* a commit failed or got no answer, so it is visible as a whole or not at all"


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([LOST_ANSWER], OPEN),
        ([LOST_ANSWER, NO_FENCE], OPEN),
        ([LOST_ANSWER, NO_BATCH_OUT], r"was not written in 2 attempts.* nothing of it is visible"),
    ],
)
def test_a_batch_whose_commit_got_no_answer_is_not_called_invisible(
    monkeypatch: pytest.MonkeyPatch, answers: list[Result], said: str
) -> None:
    """Brokers may have applied it; a later attempt's locate tells, if it comes that far."""
    left = [*answers]
    monkeypatch.setattr(sinks, "_PAUSE_S", 0.0)
    monkeypatch.setattr(sinks, "is_stopping", lambda _: False)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_attempt", lambda *_: left.pop(0))
    with pytest.raises(Abortable, match=said):
        sink(attempts=len(answers))._run(NO_FRAME, JOB)


def test_a_batch_goes_to_two_clusters_under_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are unique per cluster. The second cluster's half was refused as another DataFrame of the first's batch."""
    written = list[str]()

    def check_cluster(sink: brew.ExactlyOnceSink) -> None:
        sink._topic_id = f"id of out at {sink.connection.bootstrap}"

    def run(sink: brew.ExactlyOnceSink, _frame: Any, job: BatchJob) -> bool:
        written.append(sink.connection.bootstrap)
        assert (job.batch.previous, job.source_offsets) == (fingerprint("[0]"), {"in": {0: 5}})
        return True

    monkeypatch.setattr(sinks, "check_session", lambda _: None)
    monkeypatch.setattr(sinks, "batch_source", lambda *_: BatchSource("query", "run", "[]", "[0]", {"in": {0: 5}}))
    monkeypatch.setattr(brew.ExactlyOnceSink, "_selected", lambda _, frame: frame)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_check_cluster", check_cluster)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_run", run)
    clusters = [brew.ExactlyOnceSink(f"{name}:1", name="revenue", topic="out") for name in ("eu", "us")]
    odd, even = (cast("Any", SimpleNamespace(semanticHash=lambda number=number: number)) for number in (1, 2))
    for cluster, frame in zip(clusters, (odd, even), strict=True):
        cluster(frame, 0)
    assert written == ["eu:1", "us:1"]
    with pytest.raises(Refused, match="with another DataFrame"):
        clusters[0](even, 0)


BEHIND = Result(Status.BEHIND, detail="PositionBehind: Kafka's position is batch 1")


@pytest.mark.parametrize(
    ("answers", "written"), [([BEHIND, BEHIND, Result(Status.WRITTEN)], True), ([BEHIND] * 3, None)]
)
def test_a_position_behind_the_checkpoint_is_asked_for_again_before_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, answers: list[Result], written: bool | None
) -> None:
    """A coordinator that is cut off from the other brokers tells an old one; one that was moved back stays there."""
    left = [*answers]
    monkeypatch.setattr(sinks, "_PAUSE_S", 0.0)
    monkeypatch.setattr(sinks, "is_stopping", lambda _: False)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_attempt", lambda *_: left.pop(0))
    writing = sink(attempts=3)
    if written:
        assert writing._run(NO_FRAME, JOB)
    else:
        with pytest.raises(Refused, match=r"^Kafka's position is batch 1$"):
            writing._run(NO_FRAME, JOB)
    assert left == []


class Alone(FakeTransaction):
    def close(self) -> None:
        self.steps.append("close")


def test_an_interrupted_batch_is_fenced_and_a_position_set_by_hand_ends_what_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Readers need not wait for the time-out; the topic may have been created again before the position was set."""
    kafka = Alone(Broker())
    monkeypatch.setattr(sinks, "SinkTransaction", lambda *_: kafka)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_attempt", Mock(side_effect=KeyboardInterrupt))
    writing = sink()
    with pytest.raises(KeyboardInterrupt):
        writing._run(NO_FRAME, JOB)
    assert kafka.steps == ["fence", "close"]
    writing._checked = True
    writing.start_at(5)
    assert (kafka.broker.committed, writing._checked) == (Committed(5, BY_HAND), False)


def test_a_batch_job_says_whether_it_wrote_and_a_failed_one_lets_the_next_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for check in ("check_session", "check_batch_job"):
        monkeypatch.setattr(sinks, check, lambda _: None)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_selected", lambda _, frame: frame)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_check_cluster", lambda self: setattr(self, "_topic_id", "id-1"))
    answers = [Refused("no"), WRITTEN, Result(Status.ALREADY_OUT)]
    attempt = Mock(side_effect=answers)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_attempt", attempt)
    monkeypatch.setattr(brew.ExactlyOnceSink, "_abandon", lambda _: None)
    writing = sink()
    with pytest.raises(Refused):
        writing.write(NO_FRAME, 3)
    assert [writing.write(NO_FRAME, 3) for _ in range(2)] == [True, False]
    assert attempt.call_args.args[1].batch.metadata == PositionMetadata(None, "", "id-1")


@pytest.mark.parametrize(("tasks", "made"), [(1, "coalesce"), (2, "repartition")])
def test_one_writer_is_one_task_and_a_batch_without_any_moves_the_position_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tasks: int, made: str
) -> None:
    """A second task would find the batch out already, and drop its rows."""
    frame, alone = Mock(), Mock(return_value=WRITTEN)
    monkeypatch.setattr(sinks, "tasks_of", lambda _: tasks)
    monkeypatch.setattr(sinks, "in_few_tasks", lambda frame: frame)
    monkeypatch.setattr(sinks, "write_alone", alone)
    single = getattr(frame, made)
    single.return_value.mapInArrow.return_value.collect.return_value = []
    assert sink(writers=1)._attempt(frame, JOB) is WRITTEN
    single.assert_called_once_with(1)
    assert alone.call_args.args[0] is JOB


def test_brokers_without_kip_890_are_refused_unless_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "reach", lambda *_: None)
    monkeypatch.setattr(sinks, "described", lambda *_: Topic("out", "id-1", 3, 1))
    monkeypatch.setattr(sinks, "max_batch_bytes", lambda *_: 1000)
    monkeypatch.setattr(sinks, "check_brokers", Mock(side_effect=Refused("too old")))
    with pytest.raises(Refused, match="too old"):
        sink()._check_cluster()
    sink(allow_old_brokers=True)._check_cluster()


def test_a_sink_shows_no_secret() -> None:
    assert repr(sink()) == "ExactlyOnceSink('nowhere:1', name='revenue', topic='out')"


def test_rows_may_name_their_topics_if_the_position_has_one() -> None:
    assert sink(topic=None, position_topic="positions").position_topic == "positions"


def test_brokers_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query's error said only that the topic could not be described."""
    monkeypatch.setattr(sinks, "_DESCRIBE_S", 0.5)
    away = brew.ExactlyOnceSink("127.0.0.1:1", name="revenue", topic="out")
    with pytest.raises(Unreachable, match=r"no Kafka broker answered at '127\.0\.0\.1:1'"):
        away._check_cluster()


def test_a_frame_of_spark_connect_is_refused() -> None:
    class Remote:
        """As `pyspark.sql.connect.dataframe.DataFrame` looks from outside."""

    Remote.__module__ = "pyspark.sql.connect.dataframe"
    for call in (sink(), sink().write):
        with pytest.raises(UsageError, match="can't work through Spark Connect"):
            call(Remote(), 0)  # type: ignore[arg-type]


def test_importing_brew_loads_neither_spark_nor_a_client() -> None:
    """The sink is loaded at its first use, aiokafka and kafka-python where they write."""
    program = (
        "import sys, brew; heavy = ['pyspark', 'confluent_kafka', 'kafka', 'aiokafka', 'pyarrow', 'psycopg', 'redis'];"
        "print([one for one in heavy if one in sys.modules]); brew.ExactlyOnceSink;"
        "print([one for one in heavy if one in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.splitlines() == ["[]", "['confluent_kafka']"]


@pytest.mark.parametrize("batch_id", [2.5, True, "3", -1, 2**63 - 1, None])
def test_a_batch_is_a_whole_number_that_an_offset_has_room_for(
    monkeypatch: pytest.MonkeyPatch, batch_id: object
) -> None:
    for check in ("check_session", "check_batch_job"):
        monkeypatch.setattr(sinks, check, lambda _: None)
    for call in (lambda: sink().write(NO_FRAME, batch_id), lambda: sink().start_at(batch_id)):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=f"batch_id is {batch_id!r}: it has to be a whole number from 0 to"):
            call()
    assert sinks._checked_id(np.int64(5)) == 5


def test_a_batch_describes_its_topic_once_and_knows_nothing_of_it_while_brokers_are_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A description takes milliseconds, as a small batch's steps do."""
    answers: list[Any] = [Topic("out", "id-1", 3, 1), Unreachable("away"), Topic("out", "id-2", 4, 1)]

    def answer(*_: object) -> Topic:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]

    monkeypatch.setattr(sinks, "described", answer)
    writing = sink()
    writing._checked = True
    seen = []
    for _ in range(3):
        writing._check_cluster()
        seen.append((writing._topic_id, writing._job(JOB.batch).counts))
    assert seen == [("id-1", {"out": 3}), ("id-1", {}), ("id-2", {"out": 4})]
    assert writing._job(JOB.batch).partitions("out") == 4


TIMED = dict.fromkeys(STEPS, 0.01)
WRITTEN = Result(Status.WRITTEN, 7, steps=TIMED)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry("revenue", "out", "out", Connection("nowhere:1"))


def run(telemetry: Telemetry, batch_id: int, *attempts: Result | Exception) -> None:
    """One batch, whose attempts end with these; an exception is raised."""
    with telemetry.batch(batch_id):
        for one in attempts:
            telemetry.attempt(batch_id, Mock(side_effect=[one]))


def samples(telemetry: Telemetry) -> dict[tuple[str, str], float]:
    """Name and outcome or phase -> value."""
    families = text_string_to_metric_families(metrics.text(*telemetry.recorder.snapshot()).decode())
    rows = [one for family in families for one in family.samples]
    return {(one.name, one.labels.get("outcome") or one.labels.get("phase") or ""): one.value for one in rows}


def test_a_sink_that_was_not_called_yet_is_alive_and_ready(telemetry: Telemetry) -> None:
    """Spark calls it only when there is something to write."""
    status = telemetry.recorder.status()
    assert (status.application, status.group, status.topics.output) == ("sink", "revenue", "out")
    assert (status.state, status.live.ok, status.ready.ok, status.started.ok) == (State.IDLE, True, True, True)


def test_batches_rows_retries_and_steps_are_counted(telemetry: Telemetry) -> None:
    failed = Result(Status.FAILED, detail="Abortable: produce: no", steps={"fence": 0.1})
    fenced = Result(Status.FAILED, detail="Fenced: produce: a newer attempt")
    unsure = Result(Status.FAILED, detail="DeadlineExceeded: commit", steps=TIMED)
    run(telemetry, 3, failed, fenced, unsure, WRITTEN)
    run(telemetry, 4, WRITTEN)
    (row,) = telemetry.recorder.status().partitions
    assert (row.topic, row.partition, row.position, row.lag, row.records) == ("out", 0, 5, 0, 14)
    assert row.transactions == Transactions(committed=2, aborted=1, fenced=1, indefinite=1)
    assert row.last_transaction is not None
    assert row.last_transaction.transactional_id == "revenue:out:sink"
    assert row.last_transaction.steps == TIMED
    values = samples(telemetry)
    assert (values["brew_txn_total", "committed"], values["brew_txn_total", "aborted"]) == (2, 1)
    assert (values["brew_records_total", ""], values["brew_consumer_position", ""]) == (14, 5)
    assert values["brew_txn_phase_seconds_count", "commit"] == 3


def test_a_batch_that_is_out_already_is_counted_as_refused_and_leaves_nothing_to_do(telemetry: Telemetry) -> None:
    run(telemetry, 3, Result(Status.ALREADY_OUT, 9))
    (row,) = telemetry.recorder.status().partitions
    assert (row.transactions.refused, row.position, row.lag, row.records) == (1, 4, 0, 0)
    assert row.state is PartitionState.IDLE


def test_a_batch_at_work_is_told_with_its_number_and_age(telemetry: Telemetry) -> None:
    seen = []

    def attempt() -> Result:
        seen.append(telemetry.recorder.status().partitions[0])
        return WRITTEN

    with telemetry.batch(17):
        telemetry.attempt(17, attempt)
    (row,) = seen
    assert (row.position, row.lag, row.state) == (17, 1, PartitionState.WORKING)
    assert row.open_s is not None
    assert telemetry.recorder.status().partitions[0].open_s is None


def test_a_refusal_is_told_until_the_next_batch_and_an_error_of_the_query_itself_is_no_illness(
    telemetry: Telemetry,
) -> None:
    """Whoever stops a query ends its job, which aborts the attempt."""
    with pytest.raises(Refused):
        run(telemetry, 3, Refused("the checkpoint was deleted"))
    status = telemetry.recorder.status()
    assert (status.live.ok, status.partitions[0].state) == (False, PartitionState.UNRECOVERABLE)
    assert "the checkpoint was deleted" in status.live.reason
    run(telemetry, 3, WRITTEN)
    before = telemetry.recorder.status()
    assert before.live.ok
    with pytest.raises(ZeroDivisionError):
        run(telemetry, 4, ZeroDivisionError())
    status = telemetry.recorder.status()
    aborted = status.partitions[0].transactions.aborted - before.partitions[0].transactions.aborted
    assert (aborted, status.live.ok) == (1, True)


def test_a_sink_answers_over_http_until_it_is_closed_and_names_a_port_that_is_taken() -> None:
    sink = brew.ExactlyOnceSink("nowhere:1", name="revenue", topic="out", probe_port=0)
    with urllib.request.urlopen(f"{sink.probes_url}/status", timeout=5) as answer:
        assert json.load(answer)["group"] == sink.status().group == "revenue"
    sink.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{sink.probes_url}/status", timeout=5)
    with socket.create_server(("127.0.0.1", 0)) as owner:
        taken = owner.getsockname()[1]
        with pytest.raises(UsageError, match=f"probe_port is {taken}, .*Address already in use; name another"):
            brew.ExactlyOnceSink("nowhere:1", name="revenue", topic="out", probe_port=taken)
