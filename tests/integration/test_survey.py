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
    stage = Stage(broker, names)
    stage.create(1)
    stage.seed(ORDERS)
    stage.drain_locally()
    return stage


@pytest.fixture
def offsets_client(stage: Stage) -> Iterator[OffsetsClient]:
    client = OffsetsClient(stage.settings())
    yield client
    client.close()


def _position(offsets_client: OffsetsClient, known: dict[int, int]) -> int:
    source = offsets_client.input_topic(Deadline(STEP_S))
    return offsets_client.facts(source, [0], Deadline(STEP_S), known)[0].position


def test_a_position_behind_what_was_seen_is_asked_for_through_other_clients(
    offsets_client: OffsetsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are kept may know a coordinator that is cut off; nothing but a transaction's word tells so."""
    kept_clients = list[Consumer]()

    def read_from_cut_off_coordinator(
        reader: Consumer, topic: str, partitions: Iterable[int], deadline: Deadline
    ) -> dict[int, object]:
        if len(kept_clients) < 2 and reader not in kept_clients:
            kept_clients.append(reader)
        if reader in kept_clients:
            return {0: Committed(PAST, "")}
        return dict(committed(reader, topic, partitions, deadline))

    monkeypatch.setattr(survey, "committed", read_from_cut_off_coordinator)
    assert _position(offsets_client, {}) == PAST
    assert _position(offsets_client, {0: ORDERS}) == ORDERS
    assert _position(offsets_client, {}) == ORDERS, "those others are kept"


def test_a_position_that_somebody_moved_back_is_believed(offsets_client: OffsetsClient, stage: Stage) -> None:
    """One truth: also where it is behind what this run has seen."""
    names = stage.names
    cluster_admin.set_offsets(stage.connection, names.group, names.input, {0: PAST}, Deadline(STEP_S))
    assert _position(offsets_client, {0: ORDERS}) == PAST
