"""Totals on a real broker: exact, whatever crashes, and refused rather than guessed; bugs put in are found."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from harness import enriched
from harness.pipeline import Stage
from harness.programs import until
from harness.totals import PARTITIONS, CrashOnce, TotalsStage, abandoned, fail

from brew.deadline import Deadline
from brew.driver import missing_offsets
from brew.errors import Fatal, Refused
from brew.kafka.cluster_admin import add_partitions, delete_records, set_config, set_offsets
from brew.kafka.transaction import TransactionSettings
from brew.names import CrashPoint
from downstream.totals import run as running
from downstream.totals.run import Run
from downstream.totals.stages import Aggregate, Output
from downstream.totals.state_store import MemoryStore, StoreCheckpoint


@pytest.fixture
def shop(stage: Stage) -> Iterator[TotalsStage]:
    shop = TotalsStage(stage)
    shop.stage.create(1, output=PARTITIONS)
    shop.write_orders(60)
    yield shop
    abandoned.clear()


def test_totals_are_exact_and_go_on_where_they_stood(shop: TotalsStage) -> None:
    """Customers whose orders lie in several partitions too; a second run adds what came since, after a restore."""
    result = shop.count()
    assert (result.orders, result.restored) == (60, 0)
    assert shop.deviations() == {}
    shop.write_orders(30)
    result = shop.count()
    assert result.orders == 30
    assert result.restored > 0
    assert shop.deviations() == {}
    assert shop.count().transactions == 0, "nothing to do, nothing written"


@pytest.mark.parametrize("topic", ["input", "deltas"])
def test_no_crash_changes_a_total(shop: TotalsStage, topic: str) -> None:
    """All seven crash points, one after the other, in either stage; each time the next process goes on."""
    for point in CrashPoint:
        shop.crashed(CrashOnce(point, getattr(shop.settings, topic)))
        shop.write_orders(10)
    shop.count()
    assert shop.deviations() == {}


def test_an_abort_leaves_nothing_in_the_state(shop: TotalsStage) -> None:
    """The same process with the same state goes on after a transaction that had to be aborted."""
    result = shop.count(CrashOnce(CrashPoint.AFTER_FLUSH, shop.settings.deltas, fail))
    assert result.failed == 1
    assert shop.deviations() == {}


def test_a_takeover_fences_the_older_process(shop: TotalsStage) -> None:
    """The older one hangs before its commit, a newer one does its work; waking up, it may not commit."""
    for topic in (shop.settings.input, shop.settings.deltas):
        result = shop.count(CrashOnce(CrashPoint.AFTER_SEND_OFFSETS, topic, lambda _kafka: shop.count()))
        assert result.fenced > 0
        assert shop.deviations() == {}
        shop.write_orders(20)


def test_two_processes_at_once_count_nothing_twice(shop: TotalsStage) -> None:
    """They fence each other in turn, and each restores what the other wrote."""
    others = [threading.Thread(target=shop.count) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
    shop.count()
    assert shop.deviations() == {}


def test_offsets_of_idle_partitions_are_renewed_in_both_stages(
    shop: TotalsStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition with no orders for a week lost its offset, which ended the program with `offsets-vanished`."""
    renew, renewed = missing_offsets.renew, Counter[tuple[str, int]]()

    def counted(transaction: TransactionSettings, topic: str, partition: int) -> None:
        renew(transaction, topic, partition)
        renewed[topic, partition] += 1

    monkeypatch.setattr(missing_offsets, "_IDLE_S", 0.2)
    monkeypatch.setattr(missing_offsets, "renew", counted)
    wanted = {(topic, p) for topic in (shop.settings.input, shop.settings.deltas) for p in range(PARTITIONS)}
    with shop.following():
        for _ in range(2):
            renewed.clear()
            until(lambda: renewed.keys() >= wanted, "a renewal of each", 30)
            shop.write_orders(10)
        until(lambda: shop.results() == shop.expected(), "the last totals", 30)
    assert shop.deviations() == {}


# What is refused rather than guessed.


def test_a_moved_offset_is_refused(shop: TotalsStage) -> None:
    """By hand back to the start: the orders would be counted twice. The comparison refuses as well."""
    shop.count()
    set_offsets(shop.stage.connection, shop.stage.names.group, shop.settings.input, {0: 0}, Deadline(20))
    with pytest.raises(Refused, match="position-moved"):
        shop.count()
    code, report = shop.recompute()
    assert (code, "position-moved" in report["said"]) == (3, True)


def test_an_offset_of_the_input_that_vanished_is_refused(shop: TotalsStage) -> None:
    """Brokers delete it seven days after its last commit: a partition that gets few orders was counted twice."""
    shop.count()
    shop.forget_offset(0)
    with pytest.raises(Refused, match=r"offsets-vanished: .* no committed offset in .*\[0\]"):
        shop.count()
    assert shop.results() == shop.expected()


def test_more_partitions_of_the_input_are_counted(shop: TotalsStage) -> None:
    """They have no offset either, and were never counted."""
    shop.count()
    add_partitions(shop.stage.admin, shop.settings.input, PARTITIONS + 1, Deadline(20))
    shop.write_orders(6)
    shop.stage.produce(shop.settings.input, (PARTITIONS, b"k", b"no order"))
    assert shop.count().orders == 7
    assert shop.recompute()[0] == 0


def test_more_partitions_of_the_groups_own_topics_are_refused(shop: TotalsStage) -> None:
    """Made equal by hand, as the refusal of differing ones may suggest: half of the customers began at nothing."""
    shop.count()
    grown = (shop.settings.deltas, shop.settings.changelog, shop.settings.output)
    for topic in grown:
        add_partitions(shop.stage.admin, topic, 2 * PARTITIONS, Deadline(20))
    # The broker hears of it a moment after the controller has taken it.
    until(lambda: {len(shop.stage.logs(topic)) for topic in grown} == {2 * PARTITIONS}, "the partitions", 20)
    shop.write_orders(20)
    with pytest.raises(Refused, match=r"^partitions-changed: .* with another --group and another --output"):
        shop.count()


def test_another_groups_results_are_not_replaced(shop: TotalsStage) -> None:
    """A group that was renamed without another output counted from the log's start, in place of the totals there."""
    shop.count()
    other = replace(shop.settings, group=shop.stage.names.topic("renamed"))
    with pytest.raises(Refused, match=r"^results-of-others: "):
        Run(other, lambda _partition, _changelog: MemoryStore(), threading.Event()).run(follow=False)
    assert shop.deviations() == {}


def test_a_recreated_input_is_not_added_to_the_totals_of_the_old_one(shop: TotalsStage) -> None:
    """The brokers forget the group's offsets in it; the changelog keeps the id of the topic that was counted."""
    shop.count()
    settings, group = shop.settings, shop.stage.names.group
    enriched.recreate_topic(settings.connection.bootstrap, settings.input, group, partitions=PARTITIONS)
    shop.write_orders(10)
    with pytest.raises(Refused, match=r"^topic-recreated: .* with another --group"):
        shop.count()
    code, report = shop.recompute()
    assert (code, "topic-recreated" in report["said"]) == (3, True)


def test_a_changelog_that_lost_records_is_refused(shop: TotalsStage) -> None:
    """As when somebody gave it a retention: totals would begin at nothing again, unnoticed."""
    shop.count()
    shop.write_orders(20)
    shop.count()
    logs = shop.stage.logs(shop.settings.changelog)
    cut = {p: log.end - 4 for p, log in logs.items()}
    set_config(shop.stage.admin, shop.settings.changelog, {"cleanup.policy": "delete"}, Deadline(20))

    def deleted() -> bool:
        # The partition's leader hears of the new policy a moment after the controller has taken it.
        with contextlib.suppress(Fatal):
            delete_records(shop.stage.admin, shop.settings.changelog, cut, Deadline(20))
            return True
        return False

    until(deleted, "records deleted", 20)
    shop.write_orders(20)
    with pytest.raises(Refused, match="changelog-damaged"):
        shop.count()


# Bugs that somebody could write into the totals, and the comparison that finds each of them.


class StoresBeforeCommit(Aggregate):
    """Changes the state while it produces, before anything is committed, and keeps the change after an abort."""

    def outputs(self, until: int) -> Iterator[Output]:
        checkpoint = self.store.checkpoint or StoreCheckpoint(0, 0, 0)
        yield from super().outputs(until)
        self.store.write(self._changes, checkpoint)

    def ready(self, *_: object, **__: object) -> None:
        self._found, self._changes = {}, {}


class RestoresHalf(Aggregate):
    """Takes the first half of the changelog for all of it."""

    def _restore(self) -> None:
        super()._restore()
        checkpoint, items = self.store.checkpoint, sorted(self.store.items())
        if checkpoint is not None:
            self.store.wipe()
            self.store.write(dict(items[: len(items) // 2]), checkpoint)


class TrustsOldState(Aggregate):
    """Believes its old state without looking where the group stands: what another process added is not in it."""

    def ready(self, position: int, *, fresh: bool) -> str | None:
        return super().ready(position, fresh=fresh) if self.store.checkpoint is None else None


def test_a_state_that_keeps_aborted_changes_is_found(shop: TotalsStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--recompute` exits with 1 and names totals that are too high."""
    monkeypatch.setattr(running, "Aggregate", StoresBeforeCommit)
    shop.count(CrashOnce(CrashPoint.AFTER_FLUSH, shop.settings.deltas, fail))
    assert_differences_are_found(shop)


def test_a_restore_that_ends_too_early_is_found(shop: TotalsStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals that were not restored begin at nothing again."""
    shop.count()
    shop.write_orders(60)
    monkeypatch.setattr(running, "Aggregate", RestoresHalf)
    shop.count()
    assert_differences_are_found(shop)


def test_a_state_that_is_believed_without_a_look_is_found(shop: TotalsStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next totals lack what another process had added meanwhile."""
    monkeypatch.setattr(running, "Aggregate", TrustsOldState)
    store = MemoryStore()
    store.close = lambda: None  # type: ignore[method-assign]
    shop.count(store=store)
    shop.write_orders(40)
    shop.count()
    shop.write_orders(40)
    shop.count(store=store)
    assert_differences_are_found(shop)


def assert_differences_are_found(shop: TotalsStage) -> None:
    """The comparison exits with 1 and names a total that is wrong."""
    code, report = shop.recompute()
    assert report.get("differences"), report
    first = report["first"][0]
    assert (code, first["where"], first["wanted"] != first["found"]) == (1, "recomputation", True)
