"""The end of Spark waits for nothing that nobody needs."""

from __future__ import annotations

import inspect
import socketserver
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.accumulators import AccumulatorTCPServer

from brew.spark import session
from pipeline import submit


class Context:
    """Ends as pyspark's own does: its server first, if it still has one."""

    def __init__(self, server: Any) -> None:
        self._accumulatorServer = server
        self._gateway = SimpleNamespace(proc=None)
        self.stopped = False

    def stop(self) -> None:
        if self._accumulatorServer:
            self._accumulatorServer.shutdown()
        self.stopped = True


class Slow:
    """A server that ends once it is let."""

    def __init__(self) -> None:
        self.let, self.asked, self.ended = threading.Event(), threading.Event(), False

    def shutdown(self) -> None:
        self.asked.set()
        self.let.wait(10)
        self.ended = True


def test_spark_ends_before_its_server_of_accumulators_has() -> None:
    """It looks once a second; each run paid up to that at its end."""
    server = Slow()
    context = Context(server)
    session.end(context)  # type: ignore[arg-type]
    assert context.stopped
    assert server.asked.wait(10), "left running"
    assert not server.ended
    server.let.set()


def test_a_context_without_one_ends_too() -> None:
    """As after a JVM that did not come up to that."""
    context = Context(None)
    session.end(context)  # type: ignore[arg-type]
    assert context.stopped


def test_pyspark_still_waits_for_it_by_itself() -> None:
    """The names are private: under others the run would wait again, and nobody would see it."""
    assert "self._accumulatorServer.shutdown()" in inspect.getsource(SparkContext.stop)
    assert issubclass(AccumulatorTCPServer, socketserver.BaseServer)


def test_a_submit_leaves_nothing_in_the_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its zip is kept in the user's cache: one file, however often the same code is submitted."""
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    paths = {submit._kept_archive(("brew",)) for _ in range(2)}
    assert list(temporary.iterdir()) == []
    assert [str(one) for one in cache.rglob("*") if one.is_file()] == sorted(paths)
