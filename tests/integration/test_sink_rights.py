"""The sink on brokers that ask who is there: the rights of docs/SECURITY.md are enough, and each is needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness.secure import PIPELINE, Secure, SecureStage
from harness.servers import Names

import brew
from brew import acl
from brew.connection import SCRAM, Secret
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import cluster_admin
from brew.kafka.arrow_batches import Records, encoded
from brew.kafka.committed_offset import locator
from brew.kafka.shared_writer import write
from brew.sink.batch import BatchJob, Result, write_alone
from brew.sink.position import Batch, PositionMetadata
from brew.sink.shared import SharedWriter


class Query:
    """A query of one row in a batch, without Spark: what its tasks would do is done here, through the same clients."""

    def __init__(self, sink: brew.ExactlyOnceSink, source: str) -> None:
        self._sink, self._source = sink, source
        sink._attempt = self._attempt  # type: ignore[method-assign,assignment]

    def _attempt(self, _frame: Any, job: BatchJob) -> Result:
        value, topic = b"%d" % job.batch.batch_id, str(job.topic)
        if self._sink.writers == 1:
            return write_alone(job, iter([pa.RecordBatch.from_pydict({"value": [value]})]))
        shared = self._sink._shared = self._sink._shared or SharedWriter(job)
        rows = Records(pa.array([value]), None, None, np.zeros(1, np.int64), [(topic, 0)])
        chunk = encoded(rows, job.sink_headers, 1000)
        shared._run_tasks = lambda _frame, _job, epoch: write(epoch, iter([chunk])).records  # type: ignore[method-assign]
        return shared.write(None, job)  # type: ignore[arg-type]

    def batch(self, number: int) -> bool:
        """It reads a hundred offsets."""
        sink = self._sink
        with sink._telemetry.batch(number), sink._advised():
            sink._check_cluster()
            job = sink._job(Batch(sink.name, sink.position_topic, number, PositionMetadata(None, "", sink._topic_id)))
            ends = {self._source: {0: 100 * (number + 1)}}
            return sink._run(None, replace(job, source_group=sink.source_group, source_offsets=ends))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Granted:
    stage: SecureStage
    query: Query
    rights: list[acl.Right]


@pytest.fixture(params=[1, "tasks"], ids=["one", "tasks"])
def granted(request: pytest.FixtureRequest, secure: Secure, names: Names) -> Granted:
    """A query over TLS with a password, which has written batch 0; its sink has all rights, and one attempt."""
    stage = SecureStage(secure.broker, names, secure)
    stage.create(2, output=2)
    resources = acl.ResourceNames(names.input, names.output, group=names.group, source_group=f"{names.group}.source")
    rights = [right.for_resources(resources) for right in acl.SINK_RIGHTS]
    secure.grant(PIPELINE, *rights)
    sink = brew.ExactlyOnceSink(
        stage.broker.bootstrap,
        name=names.group,
        topic=names.output,
        client_config=secure.security.config(PIPELINE),
        source_group=resources.source_group,
        writers=request.param,
        attempts=1,
    )
    query = Query(sink, names.input)
    assert query.batch(0)
    return Granted(stage, query, rights)


def test_a_sink_without_one_right_names_it_and_lets_nothing_out(granted: Granted, secure: Secure) -> None:
    """With all rights again the next attempt at the same batch writes it once."""
    stage, query, names = granted.stage, granted.query, granted.stage.names
    position = locator(stage.connection, f"{names.group}.source").committed(names.input, 0, Deadline(20))
    assert position is not None
    assert position.offset == 100
    for right in granted.rights:
        assert secure.revoke(PIPELINE, right) == 1
        with pytest.raises(Refused) as refused:
            query.batch(1)
        assert f"User:{PIPELINE} lacks {right}: `kafka-acls" in str(refused.value)
        secure.grant(PIPELINE, right)
    assert query.batch(1)
    assert sorted(record.value() or b"" for record in stage.records(names.output)) == [b"0", b"1"]
    stage.nothing_open(names.output)


def test_a_password_that_no_longer_holds_is_named_and_not_tried_again(granted: Granted, secure: Secure) -> None:
    """The driver's connections stay logged in; its tasks connect anew, and used to report unreachable brokers."""
    cluster_admin.set_passwords(secure.admin, {PIPELINE: Secret("another")}, SCRAM, Deadline(20))
    try:
        with pytest.raises(Refused, match=f"the brokers do not accept User:{PIPELINE} with this password"):
            granted.query.batch(1)
    finally:
        cluster_admin.set_passwords(
            secure.admin, {PIPELINE: secure.security.passwords()[PIPELINE]}, SCRAM, Deadline(20)
        )
    assert granted.query.batch(1)
