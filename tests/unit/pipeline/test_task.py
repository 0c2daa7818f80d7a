"""What a Spark task does around the kernel."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from brew.attempt import Job
from brew.connection import Connection
from brew.kafka.transaction import TransactionSettings
from brew.readers import connector
from brew.settings import Limits
from pipeline.enrichment import OrderEnrichment


class _Old:
    """Something that a worker holds when its first task begins."""


@pytest.fixture
def fresh_worker() -> Iterator[None]:
    """As right after the fork; what a test froze is thawed."""
    connector.tune_worker_gc.cache_clear()
    yield
    gc.unfreeze()
    connector.tune_worker_gc.cache_clear()


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
