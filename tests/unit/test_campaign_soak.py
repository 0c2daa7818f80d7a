"""A soak's memory: what a made-up run of many rounds leaves in the campaign's process, and what it still knows."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brew.journal import Journal, Phase, Step
from proof.campaign import runner
from proof.campaign.cells import mixture
from proof.campaign.journals import Journals, Kill, recoveries, stalls
from proof.campaign.stage import CellEnvironment

TRANSACTIONS = 50
RUN = [[0, 0, 0, 1]]


def _transactions(journal: Journal, count: int = TRANSACTIONS) -> None:
    for number in range(count):
        place = {"topic": "in", "partition": number % 4, "start": number, "until": number + 1}
        for step, phase in ((Step.BEGIN, Phase.DONE), (Step.COMMIT, Phase.INTENT), (Step.COMMIT, Phase.DONE)):
            journal.write(step, phase, **place)
        journal.write(Step.READ, topic="out", partition=0, runs=RUN)


class _MadeUp:
    """What a mixture asks of its stage: every round writes its lines and looks at them, nothing is broken."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.journals, self._journal = Journals(folder), Journal(folder, "writer")
        self.random, self.minutes, self.cell = Random(1), 60.0, SimpleNamespace(partitions=4, reader="connector")
        self.names = SimpleNamespace(topics=lambda: ["in", "out"])
        self.sandbox = SimpleNamespace(heal=lambda: None)
        self.cluster = SimpleNamespace(make_whole=lambda *_: None)
        self.rounds, self.rounds_left, self.held = rounds, rounds, list[int]()

    @contextmanager
    def feeding(self) -> Iterator[None]:
        yield

    def orders(self, *_: object) -> None: ...

    def writer(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(code=lambda: None)

    def recovered(self, _since: float) -> None:
        _transactions(self._journal)
        self.journals.look()
        self.held.append(len(self.journals.entries))

    def fire(self, _what: str) -> None:
        self.rounds_left -= 1


def _mixture(folder: Path, rounds: int, monkeypatch: pytest.MonkeyPatch) -> tuple[_MadeUp, int]:
    """Play so many rounds; the stage, and how many bytes were in use beyond the start at the end of them."""
    stage = _MadeUp(folder, rounds)
    clock = SimpleNamespace(monotonic=lambda: 0.0 if stage.rounds_left else 1e9, time=lambda: 0.0)
    monkeypatch.setattr(mixture, "time", clock)
    monkeypatch.setattr(mixture, "_round", lambda *_: None)
    gc.collect()
    tracemalloc.start()
    mixture.mixture(60.0, cast("CellEnvironment", stage))
    gc.collect()
    used, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return stage, used


def test_what_a_mixture_keeps_does_not_grow_with_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour once took 830 MB; each round's lines go when it has been judged, and every commit still counts."""
    short, few = _mixture(tmp_path / "few", 3, monkeypatch)
    long, many = _mixture(tmp_path / "many", 60, monkeypatch)
    assert set(long.held) == set(short.held) == {TRANSACTIONS * 4}
    assert long.journals.entries == []
    assert many < few + 20_000, f"{many} bytes after 60 rounds, {few} after 3"
    assert long.journals.commits == 60 * TRANSACTIONS


def test_a_mixture_that_forgets_nothing_is_seen_to_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above would not notice."""
    monkeypatch.setattr(Journals, "forget", lambda _self: None)
    stage, _used = _mixture(tmp_path, 5, monkeypatch)
    assert stage.held == [TRANSACTIONS * 4 * rounds for rounds in range(1, 6)]


def test_what_was_forgotten_is_read_from_disk_for_the_verdict(tmp_path: Path) -> None:
    """Counts, recoveries and stalls are those of the whole run, whatever is in memory."""
    journals, journal = Journals(tmp_path), Journal(tmp_path, "writer")
    for _ in range(3):
        _transactions(journal)
        journals.forget()
    journal.write(Step.FENCE, Phase.FAILED, partition=1, detail="Fenced: by a newer one")
    lines = list(journals)
    assert journals.entries == []
    assert sum(kind == "committed" for line in lines for kind in runner.kinds(line)) == journals.commits == 150
    assert [kind for line in lines for kind in runner.kinds(line) if kind == "fenced"] == ["fenced"]
    middle = [line.at for line in lines][300]
    assert recoveries(journals, [Kill(middle, 1)]) == recoveries(lines, [Kill(middle, 1)]) != []
    pid = lines[0].pid
    begun = next(line for line in lines[300:] if line.step is Step.BEGIN and line.fields["start"] == 0)
    assert stalls(journals, [Kill(begun.at, pid)]) == stalls(lines, [Kill(begun.at, pid)])
    assert len(stalls(journals, [Kill(begun.at, pid)])) == 1


def test_without_kills_nothing_recovers(tmp_path: Path) -> None:
    _transactions(Journal(tmp_path, "writer"), 2)
    assert (recoveries(Journals(tmp_path), []), stalls(Journals(tmp_path), [])) == ([], [])
