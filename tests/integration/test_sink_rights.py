"""The sink on brokers that ask who is there: the rights of docs/SECURITY.md are enough, and each is needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.names import Names
from harness.secure import Secure
from harness.secure_stage import PIPELINE, SecureStage
from harness.sinks import SinkStage

import brew
from brew import acl
from brew.acl import Right
from brew.errors import Refused
from brew.sink.position import Batch, Mark


def without(right: Right) -> str:
    return f"{right.operation} on {right.kind.value} {right.name}"


@pytest.mark.parametrize("writers", [1, "tasks"], ids=["one", "tasks"])
def test_a_sink_without_one_right_names_it_and_lets_nothing_out(
    secure: Secure, names: Names, tmp_path: Path, writers: Any
) -> None:
    """Over TLS with a password; with all rights again the next attempt at the same batch writes it once."""
    it = SinkStage(SecureStage(secure.broker, names, secure), tmp_path, writers)
    it.create()
    place = acl.ResourceNames(names.input, names.output, group=it.name, source_group=f"{it.name}.source")
    rights = [right.for_resources(place) for right in acl.SINK_RIGHTS]
    secure.grant(PIPELINE, *rights)
    settings = {"client_config": secure.security.config(PIPELINE), "source_group": place.source_group, "attempts": 1}
    sink = it.sink(**settings)

    def write(batch_id: int) -> bool:
        return write_as_a_query(sink, it, batch_id)

    assert write(0)
    position = it.position(place.source_group, names.input)
    assert position is not None
    assert position.offset == 100
    for right in rights:
        assert secure.revoke(PIPELINE, right) == 1
        with pytest.raises(Refused) as refused:
            write(1)
        said = str(refused.value)
        assert f"User:{PIPELINE} lacks {without(right)}" in said, (without(right), said)
        secure.grant(PIPELINE, right)
    assert write(1)
    assert it.values() == Counter({b"0": 1, b"1": 1})
    it.stage.nothing_open(names.output)


def write_as_a_query(sink: brew.ExactlyOnceSink, it: SinkStage, batch_id: int) -> bool:
    """One row as a micro-batch that read a hundred more offsets of the input: without Spark's Kafka source, quickly."""
    rows = it.spark.createDataFrame([(str(batch_id),)], "value string")
    with sink._telemetry.batch(batch_id), sink._advised():
        sink._check_cluster()
        job = sink._job(Batch(sink.name, sink.position_topic, batch_id, Mark(None, "", sink._topic_id)))
        ends = {it.stage.names.input: {0: 100 * (batch_id + 1)}}
        return sink._run(rows, replace(job, source_group=sink.source_group, source_offsets=ends))
