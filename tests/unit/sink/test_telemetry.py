"""What a sink tells of its batches: counts, states and the position, whatever becomes of an attempt."""

from __future__ import annotations

import json
import socket
import urllib.request
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

import brew
from brew.connection import Connection
from brew.errors import Refused, UsageError
from brew.names import STEPS
from brew.observability import metrics
from brew.observability.status import PartitionState, State, Transactions
from brew.sink.batch import Result, Status
from brew.sink.telemetry import Telemetry

TIMED = dict.fromkeys(STEPS, 0.01)
WRITTEN = Result(Status.WRITTEN, 7, steps=TIMED)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry("revenue", "out", "out", Connection("nowhere:1"))


def run(telemetry: Telemetry, batch_id: int, *attempts: Result | Exception) -> None:
    """One batch, whose attempts end with these; an exception is raised."""
    with telemetry.batch(batch_id):
        for one in attempts:
            telemetry.attempt(batch_id, Mock(side_effect=[one]))


def samples(telemetry: Telemetry) -> dict[tuple[str, str], float]:
    """Name and outcome or phase -> value."""
    families = text_string_to_metric_families(metrics.text(*telemetry.recorder.snapshot()).decode())
    rows = [one for family in families for one in family.samples]
    return {(one.name, one.labels.get("outcome") or one.labels.get("phase") or ""): one.value for one in rows}


def test_a_sink_that_was_not_called_yet_is_alive_and_ready(telemetry: Telemetry) -> None:
    """Spark calls it only when there is something to write."""
    status = telemetry.recorder.status()
    assert (status.application, status.group, status.topics.output) == ("sink", "revenue", "out")
    assert (status.state, status.live.ok, status.ready.ok, status.started.ok) == (State.IDLE, True, True, True)


def test_batches_rows_retries_and_steps_are_counted(telemetry: Telemetry) -> None:
    failed = Result(Status.FAILED, detail="Abortable: produce: no", steps={"fence": 0.1})
    fenced = Result(Status.FAILED, detail="Fenced: produce: a newer attempt")
    unsure = Result(Status.FAILED, detail="DeadlineExceeded: commit", steps=TIMED)
    run(telemetry, 3, failed, fenced, unsure, WRITTEN)
    run(telemetry, 4, WRITTEN)
    (row,) = telemetry.recorder.status().partitions
    assert (row.topic, row.partition, row.position, row.lag, row.records) == ("out", 0, 5, 0, 14)
    assert row.transactions == Transactions(committed=2, aborted=1, fenced=1, indefinite=1)
    assert row.last_transaction is not None
    assert row.last_transaction.transactional_id == "revenue:out:sink"
    assert row.last_transaction.steps == TIMED
    values = samples(telemetry)
    assert (values["brew_txn_total", "committed"], values["brew_txn_total", "aborted"]) == (2, 1)
    assert (values["brew_records_total", ""], values["brew_consumer_position", ""]) == (14, 5)
    assert values["brew_txn_phase_seconds_count", "commit"] == 3


def test_a_batch_that_is_out_already_is_counted_as_refused_and_leaves_nothing_to_do(telemetry: Telemetry) -> None:
    run(telemetry, 3, Result(Status.ALREADY_OUT, 9))
    (row,) = telemetry.recorder.status().partitions
    assert (row.transactions.refused, row.position, row.lag, row.records) == (1, 4, 0, 0)
    assert row.state is PartitionState.IDLE


def test_a_batch_at_work_is_told_with_its_number_and_age(telemetry: Telemetry) -> None:
    seen = []

    def attempt() -> Result:
        seen.append(telemetry.recorder.status().partitions[0])
        return WRITTEN

    with telemetry.batch(17):
        telemetry.attempt(17, attempt)
    (row,) = seen
    assert (row.position, row.lag, row.state) == (17, 1, PartitionState.WORKING)
    assert row.open_s is not None
    assert telemetry.recorder.status().partitions[0].open_s is None


def test_a_refusal_is_told_until_the_next_batch_and_an_error_of_the_query_itself_is_no_illness(
    telemetry: Telemetry,
) -> None:
    """Whoever stops a query ends its job, which aborts the attempt."""
    with pytest.raises(Refused):
        run(telemetry, 3, Refused("the checkpoint was deleted"))
    status = telemetry.recorder.status()
    assert (status.live.ok, status.partitions[0].state) == (False, PartitionState.UNRECOVERABLE)
    assert "the checkpoint was deleted" in status.live.reason
    run(telemetry, 3, WRITTEN)
    before = telemetry.recorder.status()
    assert before.live.ok
    with pytest.raises(ZeroDivisionError):
        run(telemetry, 4, ZeroDivisionError())
    status = telemetry.recorder.status()
    aborted = status.partitions[0].transactions.aborted - before.partitions[0].transactions.aborted
    assert (aborted, status.live.ok) == (1, True)


def test_a_sink_answers_over_http_until_it_is_closed_and_names_a_port_that_is_taken() -> None:
    sink = brew.ExactlyOnceSink("nowhere:1", name="revenue", topic="out", probe_port=0)
    with urllib.request.urlopen(f"{sink.probes_url}/status", timeout=5) as answer:
        assert json.load(answer)["group"] == sink.status().group == "revenue"
    sink.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"{sink.probes_url}/status", timeout=5)
    with socket.create_server(("127.0.0.1", 0)) as owner:
        taken = owner.getsockname()[1]
        with pytest.raises(UsageError, match=f"probe_port is {taken}, .*Address already in use; name another"):
            brew.ExactlyOnceSink("nowhere:1", name="revenue", topic="out", probe_port=taken)
