"""The group's offsets vanish while a run follows: it refuses, at every moment and with both readers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness.pipeline import DrainView, Stage, until

from brew.driver import missing_offsets
from brew.driver.run_context import RunProgress
from brew.errors import Refused
from brew.kafka.transaction import TransactionSettings
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts

ORDERS = 20
ORDER = (0, b"gold-1", b'{"customer_id": "c-1"}')


@dataclass
class Moments(RunProgress):
    """Acts once, in the thread that decides: behind the first commit, or when a survey has seen its position."""

    on_commit: Callable[[], None] | None = None
    on_seen: Callable[[], None] | None = None
    acted: list[str] = field(default_factory=list)

    def outcome(self, outcome: Outcome) -> None:
        super().outcome(outcome)
        if outcome.status is Status.COMMITTED and self.on_commit is not None and not self.acted:
            self.acted.append("committed")
            self.on_commit()

    def survey(self, facts: Iterable[PartitionFacts], *ours: Any) -> None:
        super().survey(all_facts := list(facts), *ours)
        if any(fact.committed is not None for fact in all_facts) and self.on_seen is not None and not self.acted:
            self.acted.append("seen")
            self.on_seen()


@pytest.mark.parametrize("moment", ["committed", "seen"])
@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_offsets_that_vanish_behind_a_first_commit_are_refused(stage: Stage, reader: str, moment: str) -> None:
    """The permission to begin without a position covers one attempt: a second one would double the output."""
    stage.create(1)
    stage.produce(stage.names.input, *[ORDER] * ORDERS)

    def vanish() -> None:
        until(lambda: stage.committed() == {0: ORDERS}, "the commit's marker")
        for future in stage.admin.delete_consumer_groups([stage.names.group]).values():
            future.result(20)
        until(lambda: stage.committed() == {0: None}, "the group's end")
        stage.produce(stage.names.input, ORDER)

    progress = Moments(**{"on_commit" if moment == "committed" else "on_seen": vanish})
    with pytest.raises(Refused, match="offsets-vanished"):
        stage.drain_locally("--reader", reader, "--follow", view=DrainView(progress))
    assert progress.acted == [moment]
    assert stage.outputs() == ORDERS
    stage.nothing_open()


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_positions_of_idle_partitions_are_renewed_and_no_record_is_lost_or_repeated(
    stage: Stage, reader: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition's offset expires a week after its own last commit, however much the others of its group commit."""
    renew, renewed = missing_offsets.renew, Counter[int | None]()

    def counted(transaction: TransactionSettings, topic: str, partition: int) -> None:
        renew(transaction, topic, partition)
        renewed[stage.committed()[partition]] += 1

    monkeypatch.setattr(missing_offsets, "_IDLE_S", 0.2)
    monkeypatch.setattr(missing_offsets, "renew", counted)
    stage.create(1)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(stage.drain_locally, "--reader", reader, "--follow", stop=stop)
        try:
            for position in (ORDERS, 2 * ORDERS, 3 * ORDERS):
                stage.seed(ORDERS)
                until(lambda position=position: renewed[position] >= 2, "two renewals", 30)
        finally:
            stop.set()
        following.result(30)
    assert stage.committed() == {0: 3 * ORDERS}
    stage.nothing_open()
    stage.proven(inputs=3 * ORDERS, outputs=3 * ORDERS)
