"""The end of a task's rows, and the end of its connection: Arrow's reader takes both for the end."""

from __future__ import annotations

import gc
import io
import os
import socket
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark import TaskContext

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable, Fatal
from brew.readers import connector
from brew.sink import batch
from brew.sink.batch import BatchJob
from brew.sink.position import Batch, PositionMetadata
from brew.spark import worker as spark_worker
from brew.spark.worker import check_all_rows_came, tune_worker

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
