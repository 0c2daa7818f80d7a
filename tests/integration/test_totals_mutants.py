"""Bugs that somebody could write into the totals, and the comparison that finds each of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage
from harness.totals import PARTITIONS, CrashOnce, Shop, abandoned, fail

from brew.names import CrashPoint
from downstream.totals import run as running
from downstream.totals.stages import Aggregate, Output
from downstream.totals.state_store import MemoryStore, StoreCheckpoint


@pytest.fixture
def shop(broker: Broker, names: Names) -> Iterator[Shop]:
    made = Shop(Stage(broker, names))
    made.stage.create(1, output=PARTITIONS)
    made.sell(60)
    yield made
    abandoned.clear()


class EarlyStore(Aggregate):
    """Changes the state while it produces, before anything is committed, and keeps the change after an abort."""

    def outputs(self, until: int) -> Iterator[Output]:
        checkpoint = self.store.checkpoint or StoreCheckpoint(0, 0, 0)
        yield from super().outputs(until)
        self.store.write(self._changes, checkpoint)

    def ready(self, *_: object, **__: object) -> None:
        self._found, self._changes = {}, {}


class ShortRestore(Aggregate):
    """Takes the first half of the changelog for all of it."""

    def _restore(self) -> None:
        super()._restore()
        checkpoint, items = self.store.checkpoint, sorted(self.store.items())
        if checkpoint is not None:
            self.store.wipe()
            self.store.write(dict(items[: len(items) // 2]), checkpoint)


class Credulous(Aggregate):
    """Believes its old state without looking where the group stands: what another process added is not in it."""

    def ready(self, position: int, *, fresh: bool) -> str | None:
        return super().ready(position, fresh=fresh) if self.store.checkpoint is None else None


def test_a_state_that_keeps_aborted_changes_is_found(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--recompute` exits with 1 and names totals that are too high."""
    monkeypatch.setattr(running, "Aggregate", EarlyStore)
    shop.count(CrashOnce(CrashPoint.AFTER_FLUSH, shop.settings.deltas, fail))
    code, first = found_out(shop)
    assert (code, first["where"]) == (1, "recomputation")
    assert first["wanted"] != first["found"]


def test_a_restore_that_ends_too_early_is_found(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals that were not restored begin at nothing again."""
    shop.count()
    shop.sell(60)
    monkeypatch.setattr(running, "Aggregate", ShortRestore)
    shop.count()
    code, first = found_out(shop)
    assert (code, first["where"]) == (1, "recomputation")
    assert first["wanted"] != first["found"]


def test_a_state_that_is_believed_without_a_look_is_found(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next totals lack what another process had added meanwhile."""
    monkeypatch.setattr(running, "Aggregate", Credulous)
    kept = MemoryStore()
    kept.close = lambda: None  # type: ignore[method-assign]
    shop.count(store=kept)
    shop.sell(40)
    shop.count()
    shop.sell(40)
    shop.count(store=kept)
    code, first = found_out(shop)
    assert (code, first["where"]) == (1, "recomputation")
    assert first["wanted"] != first["found"]


def found_out(shop: Shop) -> tuple[int, dict[str, Any]]:
    """The comparison's exit code and the first of its differences."""
    code, report = shop.compared()
    assert report.get("differences"), report
    return code, report["first"][0]
