"""How long the totals go on failing: each partition has its own patience."""

from __future__ import annotations

import threading

import pytest

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.offsets import LogOffsets
from downstream.totals import run as running
from downstream.totals.run import Run
from downstream.totals.stages import AttemptResult, Source, Split
from downstream.totals.state_store import MemoryStore
from downstream.totals.topics import TotalsSettings


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Run:
    settings = TotalsSettings(Connection("nowhere"), "g", "in", "out")
    monkeypatch.setattr(running, "_PAUSE_S", 0)
    return Run(settings, lambda _partition, _topic: MemoryStore(), threading.Event())


def test_a_partition_that_only_fails_ends_the_run_although_others_go_on(
    made: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one patience for all, the success of any partition would hide that nothing of this one is counted."""
    now = [0.0]
    monkeypatch.setattr(running, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    bad, good = (Source("in", "id", p, LogOffsets(0, 9, 9)) for p in (0, 1))
    made._failed("failed", bad, "no answer")
    now[0] = running._PATIENCE_S - 0.1
    made._succeeded(good, Split("d"), AttemptResult(0, 9, 9))
    made._failed("failed", bad, "no answer")
    now[0] = running._PATIENCE_S
    with pytest.raises(Refused, match=r"in\[0\]: no transaction succeeded there for 90 s, at last: no answer"):
        made._failed("failed", bad, "no answer")


def test_one_success_begins_its_patience_anew(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure now and then, for as long as it likes, ends nothing."""
    now = [0.0]
    monkeypatch.setattr(running, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    source = Source("in", "id", 0, LogOffsets(0, 9, 9))
    for _ in range(3):
        made._failed("fenced", source, "another one")
        now[0] += running._PATIENCE_S - 1
        made._succeeded(source, Split("d"), AttemptResult(0, 9, 9))
    assert made.told.fenced == 3


def test_where_the_brokers_say_no_it_ends_sooner(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right that is missing does not come by waiting; one that is on its way takes a second or two."""
    now = [0.0]
    monkeypatch.setattr(running, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    source = Source("in", "id", 0, LogOffsets(0, 9, 9))
    why = "Abortable: produce: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
    made._failed("failed", source, why)
    now[0] = 9.9
    made._failed("failed", source, why)
    now[0] = 10.0
    with pytest.raises(Refused, match="for 10 s, at last: Abortable: produce"):
        made._failed("failed", source, why)
