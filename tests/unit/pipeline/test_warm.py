"""Spark kept warm while a driver waits: what may fail there stays quiet, what must not is told."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from brew.driver import warm_up
from brew.driver.warm_up import WarmSpark
from brew.errors import DeadlineExceeded
from brew.settings import Compilers
from brew.spark import session
from pipeline.__main__ import run_command, settings_of

Work = Callable[[], None]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], tuple[WarmSpark, list[str], threading.Thread]]:
    """A Spark that is none, kept warm by ``work``; what was told, and the thread that works."""
    monkeypatch.setattr(session, "start_context", lambda *_: SimpleNamespace(addJobTag=str))
    monkeypatch.setattr(session, "check_alive", lambda _context: None)
    monkeypatch.setattr(warm_up, "_PAUSE_S", 0.0)
    monkeypatch.setattr(warm_up, "_INTERVAL_S", 0.0)
    settings = settings_of(
        run_command.make_context("run", ["--stand-by", "--master", "local[1]", "--reader", "direct"]).params
    )

    def keep(work: Work) -> tuple[WarmSpark, list[str], threading.Thread]:
        told: list[str] = []
        warmth = WarmSpark(settings, Compilers.FIRST, told.append)
        monkeypatch.setattr(warmth, "_run_small_job", work)
        warmth.keep()
        thread = warmth._thread
        assert thread is not None
        return warmth, told, thread

    return keep


def test_what_may_fail_is_tried_again_without_a_word(kept: Callable[..., tuple[WarmSpark, list[str], object]]) -> None:
    """A broker that is away, a slot that is not free, a JVM that is gone: the driver that waits hears it elsewhere."""
    errors = iter([DeadlineExceeded("a look"), PySparkRuntimeError("no slot"), Py4JNetworkError("gone"), OSError(111)])
    tried = threading.Event()

    def work() -> None:
        for error in errors:
            raise error
        tried.set()

    warmth, told, _ = kept(work)
    assert tried.wait(20)
    warmth.leave()
    assert told == []


def test_what_must_not_happen_is_told_once_and_the_driver_waits_on(
    kept: Callable[..., tuple[WarmSpark, list[str], threading.Thread]],
) -> None:
    def work() -> None:
        raise TypeError("a bug of ours")

    warmth, told, thread = kept(work)
    thread.join(20)
    warmth.keep()
    assert not thread.is_alive()
    assert len(told) == 1
    assert "a bug of ours" in told[0]
    assert "report this" in told[0]
    assert not warmth.warm


def test_an_end_under_a_job_is_no_bug(kept: Callable[..., tuple[WarmSpark, list[str], threading.Thread]]) -> None:
    """The library reaches into a context that was stopped meanwhile."""
    began, go = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        go.wait(20)
        raise AttributeError("'NoneType' object has no attribute 'sc'")

    warmth, told, thread = kept(work)
    assert began.wait(20)
    warmth.leave()
    go.set()
    thread.join(20)
    assert told == []


@pytest.mark.parametrize("touch", ["brew.readers.direct.executors.import_worker", "brew.driver.warm_up._touch"])
def test_a_worker_that_is_kept_warm_has_imported_what_ends_a_transaction(touch: str) -> None:
    """kafka-python takes 0.15 s; a stand-by that takes over would spend them in its first transaction."""
    module, name = touch.rsplit(".", 1)
    asked = f"import sys, {module}; list({module}.{name}([])); print('brew.kafka.group_requests' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "True\n"
