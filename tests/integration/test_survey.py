"""Where the driver is told that the group stands, and when it asks through other clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage

from brew.deadline import Deadline
from brew.driver import partitions as survey
from brew.driver.partitions import OffsetsClient
from brew.kafka import cluster_admin
from brew.kafka.clients import Consumer
from brew.kafka.offsets import committed
from brew.offsets import Committed

STEP_S = 20.0
ORDERS, PAST = 10, 4


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    made = Stage(broker, names)
    made.create(1)
    made.seed(ORDERS)
    made.drain_alone()
    return made


@pytest.fixture
def surveyor(stage: Stage) -> Iterator[OffsetsClient]:
    made = OffsetsClient(stage.settings())
    yield made
    made.close()


def _position(surveyor: OffsetsClient, known: dict[int, int]) -> int:
    source = surveyor.input_topic(Deadline(STEP_S))
    return surveyor.facts(source, [0], Deadline(STEP_S), known)[0].position


def test_a_position_behind_what_was_seen_is_asked_for_through_other_clients(
    surveyor: OffsetsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are kept may know a coordinator that is cut off; nothing but a transaction's word tells so."""
    asked_first = list[Consumer]()

    def cut_off(reader: Consumer, topic: str, partitions: Iterable[int], deadline: Deadline) -> dict[int, object]:
        if len(asked_first) < 2 and reader not in asked_first:
            asked_first.append(reader)
        if reader in asked_first:
            return {0: Committed(PAST, "")}
        return dict(committed(reader, topic, partitions, deadline))

    monkeypatch.setattr(survey, "committed", cut_off)
    assert _position(surveyor, {}) == PAST
    assert _position(surveyor, {0: ORDERS}) == ORDERS
    assert _position(surveyor, {}) == ORDERS, "those others are kept"


def test_a_position_that_somebody_moved_back_is_believed(surveyor: OffsetsClient, stage: Stage) -> None:
    """One truth: also where it is behind what this run has seen."""
    names = stage.names
    cluster_admin.set_offsets(stage.connection, names.group, names.input, {0: PAST}, Deadline(STEP_S))
    assert _position(surveyor, {0: ORDERS}) == PAST
