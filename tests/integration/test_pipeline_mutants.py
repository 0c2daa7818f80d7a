"""The kernel with one step broken on purpose: the proof has to go red, or it would prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage, Status

from pipeline.outcome import Outcome
from pipeline.plan import position_metadata
from pipeline.ports import Rows, Targets
from pipeline.run import check
from pipeline.attempt import Job, Offer, attempt
from protocol.kafka.transaction import KafkaTransaction, TransactionSettings
from protocol.position import OffsetRange

COUNT = 20


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    return Stage(broker, names)


def attempted(stage: Stage) -> Outcome:
    """One attempt at all of the only partition, as a driver plans it that found no committed offset."""
    metadata = position_metadata(check(stage.settings()).topics[stage.names.input].topic_id)
    targets = Targets(stage.names.output, stage.names.dead_letter, 0, 0, metadata)
    offer = Offer(OffsetRange(stage.names.input, 0, 0, COUNT), targets, first_time=True)
    job = Job({0: offer}, TransactionSettings(stage.connection, stage.names.group, 30.0), stage.settings().limits)
    found = stage.records(stage.names.input)
    columns = zip(*[(r.offset(), r.key(), r.value(), None, r.timestamp()[1]) for r in found], strict=True)
    return attempt(offer, iter([Rows(*map(list, columns))]), job)


def no_offsets(patch: pytest.MonkeyPatch) -> None:
    """Step 5 left out: records without the position behind them."""
    patch.setattr(KafkaTransaction, "send_offsets", lambda *_: None)


def no_locate(patch: pytest.MonkeyPatch) -> None:
    """Step 2 left out: the driver's word is believed."""
    patch.setattr(KafkaTransaction, "locate", lambda *_: None)


def no_records(patch: pytest.MonkeyPatch) -> None:
    """Step 4 loses one record, as a swallowed BufferError would."""
    made = KafkaTransaction.__init__

    def broken(self: KafkaTransaction, *arguments: Any) -> None:
        made(self, *arguments)
        produce, calls = self.produce, iter(range(COUNT))
        self.produce = lambda *record: None if next(calls) == 7 else produce(*record)

    patch.setattr(KafkaTransaction, "__init__", broken)


def no_order(patch: pytest.MonkeyPatch) -> None:
    """Step 4 writes in the wrong order, as two producers at once would."""
    made = KafkaTransaction.__init__

    def broken(self: KafkaTransaction, *arguments: Any) -> None:
        made(self, *arguments)
        produce, kept = self.produce, []

        def late(*record: Any) -> None:
            kept.append(record)
            if len(kept) == COUNT:
                for one in [*kept[1:], kept[0]]:
                    produce(*one)

        self.produce = late

    patch.setattr(KafkaTransaction, "__init__", broken)


@pytest.mark.parametrize(
    ("mutate", "attempts", "expected"),
    [
        (no_offsets, 1, {"offset-behind": COUNT}),
        (no_locate, 2, {"duplicate-output": COUNT}),
        (no_records, 1, {"lost-output": 1}),
        (no_order, 1, {"nonmonotonic-output": 1}),
    ],
)
def test_a_kernel_without_one_of_its_steps_is_found_out(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    attempts: int,
    expected: dict[str, int],
) -> None:
    """Each step carries a part of the promise; the whole kernel is proven on the same ground."""
    stage.create(1)
    stage.seed(COUNT)
    with monkeypatch.context() as patch:
        mutate(patch)
        assert [attempted(stage).status for _ in range(attempts)] == [Status.COMMITTED] * attempts
    code, report = stage.verify()
    assert (code, report["totals"]) == (1, expected)


def test_the_whole_kernel_is_proven_however_often_it_is_asked(stage: Stage) -> None:
    """The control: the same attempts without a mutation."""
    stage.create(1)
    stage.seed(COUNT)
    assert [attempted(stage).status for _ in range(3)] == [Status.COMMITTED, Status.ALREADY_DONE, Status.ALREADY_DONE]
    stage.proven(inputs=COUNT, outputs=COUNT)


def test_a_process_left_behind_is_seen(stage: Stage) -> None:
    """The check that every scenario ends with goes red while something it started is alive."""
    with stage.start(["sleep", "60"]), pytest.raises(AssertionError, match="sleep 60"):
        stage.nobody_left(seconds=0.2)
    stage.nobody_left()
