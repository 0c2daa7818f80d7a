"""Spark's workers: the connector's batches, headers and task, and the ends of a task's rows and of its connection."""

from __future__ import annotations

import base64
import gc
import io
import json
import os
import socket
import threading
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import MagicMock, Mock, call

import orjson
import pyarrow as pa
import pytest
from harness.fakes import log_record
from hypothesis import given
from hypothesis import strategies as st
from pyspark import TaskContext

from brew.attempt import AttemptSpec, Job
from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import micro_batches
from brew.errors import Abortable, Fatal, Refused
from brew.kafka.transaction import TransactionSettings
from brew.offsets import OffsetRange
from brew.outcome import Outcome, Status
from brew.range_transaction import Targets
from brew.readers import connector
from brew.readers.connector import SMALL_RECORD_BYTES, SMALL_RECORDS, RecordSizes, SparkEngine, headers_of
from brew.readers.direct import worker as direct_worker
from brew.readers.direct.worker import rows_of
from brew.settings import Limits, SparkSettings
from brew.sink import batch
from brew.sink.batch import BatchJob
from brew.sink.position import Batch, PositionMetadata
from brew.spark import session
from brew.spark import worker as spark_worker
from brew.spark.worker import _exclude_modules_from_collection, check_all_rows_came, tune_worker
from pipeline.transformation import OrderEnrichment

SMALL = Outcome(0, 0, 100, Status.COMMITTED, enriched=90, rejected=10, read_bytes=100 * 200)
LARGE = replace(SMALL, read_bytes=100 * SMALL_RECORD_BYTES)
FAILURES = [Outcome(0, 100, 200, one) for one in (Status.FAILED, Status.FENCED, Status.CRASHED, Status.OFFSET_GAP)]


@pytest.mark.parametrize(
    ("configured", "outcomes", "unbounded"),
    [
        pytest.param({}, [], False, id="not read yet"),
        pytest.param({}, [SMALL], True, id="small records"),
        pytest.param({}, [LARGE], False, id="large records"),
        pytest.param({}, [LARGE, SMALL, Outcome(0, 100, 200, Status.ALREADY_DONE)], True, id="nothing was read last"),
        *(pytest.param({}, [SMALL, one], False, id=f"{one.status} may have been the memory") for one in FAILURES),
        *(pytest.param({name: "500"}, [SMALL], False, id=f"{name} is not overruled") for name in sorted(SMALL_RECORDS)),
    ],
)
def test_batches_of_small_records_are_not_bounded(configured: dict, outcomes: list[Outcome], unbounded: bool) -> None:
    sizes = RecordSizes(configured)
    for outcome in outcomes:
        sizes.apply_outcome([outcome])
    assert sizes.all_small([0]) is unbounded
    assert not sizes.all_small([0, 1]), "all of a job's partitions have to be known"


_headers = st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.binary()), min_size=1)


@given(_headers)
def test_any_headers_survive_in_order(headers: list[tuple[str, bytes | None]]) -> None:
    """Repeated names, empty and null values, any bytes; to_json leaves null values out."""
    encoded = [(name, None if value is None else base64.b64encode(value).decode()) for name, value in headers]
    written = [{"key": name} if value is None else {"key": name, "value": value} for name, value in encoded]
    assert headers_of(json.dumps(written, ensure_ascii=False).encode()) == tuple(headers)


def test_a_record_without_headers_has_none() -> None:
    assert headers_of(None) is None
    assert headers_of(b"") is None


class _Old:
    """Something that a worker holds when its first task begins."""


@pytest.fixture
def fresh_worker() -> Iterator[None]:
    """As right after the fork; what a test froze is thawed."""
    _exclude_modules_from_collection.cache_clear()
    yield
    gc.unfreeze()
    _exclude_modules_from_collection.cache_clear()


@pytest.mark.usefixtures("fresh_worker")
def test_a_worker_spares_the_collector_what_it_held_before_its_first_task() -> None:
    """Pyspark collects garbage after each task: most of a small task's time, when every module is looked at."""
    circle, gone = _Old(), _Old()
    gone.itself = gone
    ref = weakref.ref(gone)
    del gone
    work = connector.task(Job({}, TransactionSettings(Connection("none:1"), "group", 60.0), OrderEnrichment(Limits())))
    assert list(work(iter(()))) == []
    assert ref() is None, "garbage of before is collected, not kept for ever"
    assert gc.get_freeze_count() > 0
    assert all(one is not circle for one in gc.get_objects())
    after = _Old()
    assert any(one is after for one in gc.get_objects()), "what a task makes is looked at as ever"
    assert list(work(iter(()))) == []
    assert any(one is after for one in gc.get_objects()), "once in a worker's life"


def test_an_outcome_comes_back_whatever_the_exception_of_a_function_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may quote a record that is not UTF-8, from a task and without Spark."""
    raised = Outcome(3, 7, 8, Status.TRANSFORM_FAILED, detail="raised ValueError: \udcff")
    settings = TransactionSettings(Connection("none:1"), "group", 60.0)
    job = Job({3: Mock()}, settings, OrderEnrichment(Limits()))
    for module in (connector, direct_worker):
        monkeypatch.setattr(module, "attempt", lambda *_: raised)
    monkeypatch.setattr(connector.TaskContext, "get", lambda: Mock(attemptNumber=lambda: 0))
    rows = pa.record_batch({"partition": [3]})
    (answer,) = connector.task(job)(iter([rows.slice(0, 0), rows]))
    assert orjson.loads(answer.column(0)[0].as_py())["detail"] == "raised ValueError: ?"
    engine = micro_batches.LocalEngine(settings.connection, "group", OrderEnrichment(Limits()))
    assert engine.execute([OffsetRange("in", 3, 7, 8)], job)[3].detail == "raised ValueError: ?"
    engine.close()


@pytest.mark.parametrize(("number", "crashes"), [(0, True), (1, False), (3, False)])
def test_a_crash_strikes_a_task_of_the_connector_once(
    monkeypatch: pytest.MonkeyPatch, number: int, crashes: bool
) -> None:
    """Spark repeats the task of a worker that died; each time again, and the job fails."""
    offers, crash = list[AttemptSpec](), Mock()

    def attempt(offer: AttemptSpec, *_: object) -> Outcome:
        offers.append(offer)
        return SMALL

    offer = AttemptSpec(OffsetRange("in", 3, 7, 8), Targets("out", "dead", -1, -1), crash=crash)
    job = Job({3: offer}, TransactionSettings(Connection("none:1"), "group", 60.0), OrderEnrichment(Limits()))
    monkeypatch.setattr(connector, "attempt", attempt)
    monkeypatch.setattr(connector.TaskContext, "get", lambda: Mock(attemptNumber=lambda: number))
    assert len(list(connector.task(job)(iter([pa.record_batch({"partition": [3]})])))) == 1
    assert [one.crash for one in offers] == [crash if crashes else None]


def test_rows_of_another_partition_end_the_task_wherever_they_come() -> None:
    """Spark has shuffled: the task would commit its whole range, of which another task got a part."""

    def batch(*partitions: int) -> pa.RecordBatch:
        columns = dict.fromkeys(("offset", "timestamp"), [7] * len(partitions)) | {"partition": list(partitions)}
        return pa.record_batch(columns | dict.fromkeys(("key", "value", "headers"), [None] * len(partitions)))

    good = batch(3, 3)
    assert [len(rows.offsets) for rows in connector._rows([good, good.slice(0, 0), good], 3)] == [2, 0, 2]
    with pytest.raises(Fatal, match=r"a task for partition 3 received rows of \[3, 4\]"):
        list(connector._rows([good, batch(3, 4)], 3))


def test_jobs_over_small_records_have_a_session_of_their_own_until_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed one may have run out of memory. Lanes share the engine, and each batch size has a session."""
    engine: Any = SparkEngine.__new__(SparkEngine)
    engine.spark, engine._jobs, engine._record_sizes, engine._waiting = Mock(), Mock(), RecordSizes({}), {}
    small, sessions = engine.spark.newSession.return_value, list[Any]()
    outcomes = iter([SMALL, SMALL, FAILURES[0], SMALL])
    frame = Mock(collect=lambda: [[orjson.dumps(asdict(next(outcomes)))]])
    read = lambda used, *_: sessions.append(used) or Mock(mapInArrow=lambda *_: frame)  # noqa: E731 - one expression
    monkeypatch.setattr(connector, "read_ranges", read)
    monkeypatch.setattr(connector, "check_one_task_per_range", checked := Mock())
    ranges = [OffsetRange("in", 0, 0, 5)]
    for _ in range(4):
        engine.execute(ranges, Mock())
    assert sessions == [engine.spark, small, small, engine.spark]
    assert small.conf.set.call_args_list == [call(*setting) for setting in SMALL_RECORDS.items()]
    checked.side_effect = Fatal("read: Spark planned 2 tasks for 1 ranges")
    with pytest.raises(Fatal, match="planned 2 tasks"):  # no retry would plan it differently
        engine.execute(ranges, Mock())


def test_an_engine_ends_its_use_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "executors", lambda _context: None)
    monkeypatch.setattr(session, "end", ended := Mock())
    SparkEngine(Mock(), SparkSettings("spark://h:1", None, {}), patience_s=1.0).close()
    assert ended.called


@pytest.mark.parametrize(
    ("raised", "status", "says"),
    [
        (CancelledError(), Status.TRANSFORM_FAILED, "the transformation raised CancelledError"),
        (KeyboardInterrupt(), Status.TRANSFORM_FAILED, "the transformation raised KeyboardInterrupt"),
        (OSError(28, "No space left on device"), Status.FAILED, "No space left on device; --journal is None"),
    ],
)
def test_whatever_ends_an_attempt_without_spark_is_an_outcome(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: Status, says: str
) -> None:
    """Its lane's thread ended without a word, and the drain with 0, as if all had been read."""
    monkeypatch.setattr(direct_worker, "attempt", Mock(side_effect=raised))
    settings = TransactionSettings(Connection("none:1"), "group", 60.0)
    engine = micro_batches.LocalEngine(settings.connection, "group", OrderEnrichment(Limits()))
    job = Job({3: Mock(offered=OffsetRange("in", 3, 7, 8))}, settings, OrderEnrichment(Limits()))
    outcome = engine.execute([OffsetRange("in", 3, 7, 8)], job)[3]
    engine.close()
    assert (outcome.status, outcome.start, outcome.until) == (status, 7, 8)
    assert says in outcome.detail


def test_an_attempt_that_hangs_without_spark_does_not_hold_back_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM took up to the transaction's time-out; the run has fenced the transaction before."""
    begun, go = threading.Event(), threading.Event()

    def attempt(*_: object) -> Outcome:
        begun.set()
        go.wait(20)
        return Outcome(3, 7, 8, Status.COMMITTED)

    monkeypatch.setattr(direct_worker, "attempt", attempt)
    monkeypatch.setattr(micro_batches, "_END_S", 0.05)
    engine = micro_batches.LocalEngine(Connection("none:1"), "group", made := Mock())
    engine._readers[3] = reader = Mock()
    job = Job({3: Mock(offered=OffsetRange("in", 3, 7, 8))}, Mock(), made)
    lane = threading.Thread(target=engine.execute, args=[[OffsetRange("in", 3, 7, 8)], job], daemon=True)
    lane.start()
    assert begun.wait(20)
    engine.close()
    assert engine._threads[3].daemon, "an executor's thread is waited for when the process ends"
    assert not reader.close.called, "it is still in use"
    assert made.release.call_args_list == [call(loading_only=True)], "a load of its table ends with the run"
    go.set()
    engine._threads[3].join(20)
    engine.close()
    assert reader.close.called
    assert made.release.call_args_list[1:] == [call(loading_only=True), call()]


def test_a_function_can_not_change_the_headers_that_it_was_given() -> None:
    """An appended header reached the client library unchecked, which ended the process at a lone surrogate (139)."""
    given = [("trace", b"1"), ("empty", None)]
    (direct,) = rows_of([log_record(7, headers=given)]).headers
    cell = orjson.dumps([{"key": "trace", "value": "MQ=="}, {"key": "empty"}])
    columns = {"offset": [7], "partition": [3], "key": [b"k"], "value": [b"v"], "headers": [cell], "timestamp": [1]}
    (rows,) = connector._rows([pa.record_batch(columns)], 3)
    assert (direct, rows.headers) == (tuple(given), [tuple(given)])
    assert rows_of([log_record(7), log_record(8, headers=[])]).headers == [None, None]


@pytest.mark.parametrize(
    "raised", [SystemError("returned a result with an exception set"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "")]
)
def test_the_record_whose_headers_the_client_can_not_read_is_named(raised: Exception) -> None:
    unreadable = log_record(8, 3)
    unreadable.headers = Mock(side_effect=raised)
    with pytest.raises(Refused, match=r"record at offset 8 of input partition 3 .* use --reader connector"):
        rows_of([log_record(7, 3), unreadable])


BATCH = pa.RecordBatch.from_pydict({"a": [1, 2]})
END = b"\xff\xff\xff\xfc"


def stream(batches: int, end: bytes) -> bytes:
    """As Spark sends it: the rows, and what comes behind them."""
    target = io.BytesIO()
    writer = pa.ipc.new_stream(target, BATCH.schema)
    for _ in range(batches):
        writer.write_batch(BATCH)
    sent = target.getvalue()
    writer.close()
    return (target.getvalue() if end else sent) + end


def worker(stdin: bytes, *, name: str = "pyspark.worker") -> int:
    """`pyspark.worker.main`, as far as this is about it: how many batches a function gets that checks their end."""
    known: dict[str, Any] = {"__name__": name, "pa": pa, "check": check_all_rows_came}
    exec(
        "def main(infile):\n"
        "    def rows():\n"
        "        yield from pa.ipc.open_stream(infile)\n"
        "        check()\n"
        "    return len(list(rows()))\n",
        known,
    )
    main: Callable[[Any], int] = known["main"]
    return main(io.BufferedReader(io.BytesIO(stdin)))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskContext, "_taskContext", object())


@pytest.mark.parametrize("count", [0, 1, 3])
def test_rows_that_all_came_have_sparks_mark_behind_them(count: int) -> None:
    assert worker(stream(count, END)) == count


@pytest.mark.parametrize("count", [1, 3])
def test_a_connection_that_ends_between_two_batches_is_not_the_end_of_the_rows(count: int) -> None:
    """Without the check it looks like one: the reader raises nothing."""
    assert len(list(pa.ipc.open_stream(stream(count, b"")))) == count
    with pytest.raises(Abortable, match="before it had sent all of its rows"):
        worker(stream(count, b""))


def test_a_task_acknowledges_at_once_what_spark_waits_for() -> None:
    """Without it rows came 40 ms later, in each task of Python's."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        spark, _ = server.accept()
        with spark:
            for _ in range(3):  # a connection with questions and answers: the kernel delays its acknowledgments
                spark.sendall(b"?")
                connection.recv(1)
                connection.sendall(b"!")
                spark.recv(1)
            assert not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)
            known: dict[str, Any] = {"__name__": "pyspark.worker", "tune": tune_worker}
            exec("def main(infile):\n    tune()\n", known)
            try:
                with os.fdopen(os.dup(connection.fileno()), "rb", 65536) as infile:
                    known["main"](infile)
            finally:
                gc.unfreeze()
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


def test_another_pyspark_is_refused_and_rows_that_come_from_no_task_are_their_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Fatal, match="keeps a task's input elsewhere"):
        worker(stream(1, END), name="elsewhere")
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    check_all_rows_came()
    assert spark_worker._END == END


def broken_off() -> None:
    raise Abortable("read: broken off")


def test_the_sinks_writer_ends_the_attempt_when_rows_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last row and before the commit: what is queued by then is aborted."""
    monkeypatch.setattr(spark_worker, "check_all_rows_came", broken_off)
    rows = pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})
    position = Batch("s", "out", 1, PositionMetadata("q", "f", "t"))
    job, kafka = BatchJob(position, Connection("nowhere:1"), 60.0, "out", headers=False), MagicMock()
    with pytest.raises(Abortable, match="broken off"):
        batch._produce(job, kafka, rows, iter(()), Deadline(5))  # type: ignore[arg-type]
    assert kafka.produce.call_count == 2


def test_the_connectors_rows_end_with_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "check_all_rows_came", broken_off)
    rows = iter(connector._MeasuredBatches(iter([BATCH])))
    assert next(rows) is BATCH
    with pytest.raises(Abortable, match="broken off"):
        next(rows)


@pytest.mark.parametrize("ended", [False, True])
def test_the_watch_on_executors_goes_on_after_a_failed_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, ended: bool
) -> None:
    """The first call that failed ended it without a word, and jobs waited forever once the executors were gone."""
    calls, cancelled = iter([Refused("no answer")] * 2), threading.Event()

    def executors(_context: object) -> int:
        if (error := next(calls, None)) is not None:
            raise error
        return 0

    alive = Mock(side_effect=Refused("the JVM has ended") if ended else None)
    monkeypatch.setattr(connector, "_WATCH_S", 0.001)
    monkeypatch.setattr(session, "executors", executors)
    monkeypatch.setattr(session, "check_alive", alive)
    monkeypatch.setattr(session, "RunJobs", lambda _context: Mock(cancel=cancelled.set))
    engine = connector.SparkEngine(Mock(), SparkSettings("spark://h:1", None, {}), patience_s=0.0)
    engine._waiting[0] = 0.0
    if ended:
        engine._watch.join(10)
    assert cancelled.wait(0 if ended else 10) is not ended
    engine.close()
    warnings = [one.getMessage() for one in caplog.records]
    assert warnings == ([] if ended else ["jobs without an executor wait until Spark answers again: no answer"])


@pytest.mark.parametrize(
    ("looks", "refused"),
    [
        ([(100, 1, 90), (110, 0, 90)], False),
        ([(100, 1, 90), (111, 0, 90)], True),
        ([(100, 0, 95), (106, 0, 95)], True),
        ([(100, 1, None), (500, 0, None), (505, 0, 495)], False),
    ],
    ids=["lost a moment ago", "lost for good", "never had one", "gave them back while there was no job"],
)
def test_a_job_waits_for_an_executor_as_long_as_patience_lasts(
    monkeypatch: pytest.MonkeyPatch, looks: list[tuple[int, int, int | None]], refused: bool
) -> None:
    """``looks``: time, executors, since when a job waits. A cluster takes idle executors back, gives new ones."""
    engine: Any = SparkEngine.__new__(SparkEngine)
    engine.spark, engine._jobs, engine._patience_s, engine._refused = Mock(), Mock(), 10, None
    engine._closed = Mock(wait=Mock(side_effect=[*[False] * len(looks), True]))
    engine._record_sizes, engine._waiting, left = RecordSizes({}), {}, iter(looks)

    def executors(_context: object) -> int:
        now, count, since = next(left)
        monkeypatch.setattr(connector, "time", Mock(monotonic=lambda: now))
        engine._waiting = {} if since is None else {1: since}
        return count

    monkeypatch.setattr(connector.session, "executors", executors)
    engine._watch_executors()
    assert (engine._refused is not None, engine._jobs.cancel.called) == (refused, refused)
    monkeypatch.setattr(connector.session, "check_alive", lambda _context: None)
    monkeypatch.setattr(connector, "read_ranges", Mock(side_effect=ValueError("cancelled")))
    engine._waiting = {}
    with pytest.raises(Refused, match="has no executor") if refused else nullcontext():
        assert engine.execute([OffsetRange("in", 0, 0, 5)], Mock())[0].status is Status.FAILED
    assert engine._waiting == {}, "a job that has ended waits no more"
