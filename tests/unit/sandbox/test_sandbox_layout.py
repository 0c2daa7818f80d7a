"""The layout of a sandbox cluster: settings as text, state file there and back."""

from dataclasses import replace
from pathlib import Path

import pytest

from brew.errors import Refused
from brew.jvm.dependencies import Part
from sandbox.kafka import Cluster
from sandbox.launch import Settings
from sandbox.layout import Layout, plan, server_properties
from sandbox.process import Identity


def _properties(layout: Layout, number: int, **more: str) -> dict[str, str]:
    text = server_properties(
        layout, layout.node(number), {name.replace("_", "."): value for name, value in more.items()}
    )
    return dict(line.split("=", 1) for line in text.splitlines())


def test_one_node_needs_no_other_for_its_internal_topics(tmp_path: Path) -> None:
    """Kafka's defaults of three replicas would make the first transaction wait for ever."""
    found = _properties(plan(tmp_path, "c", [9092], [9093]), 1)
    for name in ("offsets.topic.replication.factor", "transaction.state.log.replication.factor", "min.insync.replicas"):
        assert found[name] == "1"


def test_three_nodes_replicate_everything_and_need_two(tmp_path: Path) -> None:
    """One of three brokers may die without a record lost or a write refused."""
    found = _properties(plan(tmp_path, "c", [1, 2, 3], [11, 12, 13]), 2)
    assert found["default.replication.factor"] == found["transaction.state.log.replication.factor"] == "3"
    assert found["min.insync.replicas"] == found["transaction.state.log.min.isr"] == "2"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13"
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:12"


def test_topics_are_never_made_by_accident(tmp_path: Path) -> None:
    """A mistyped topic must be an error, as it is on a well-kept cluster."""
    assert _properties(plan(tmp_path, "c", [1], [2]), 1)["auto.create.topics.enable"] == "false"


def test_a_setting_asked_for_wins(tmp_path: Path) -> None:
    """Tests need, for one, other time-outs than people do."""
    assert _properties(plan(tmp_path, "c", [1], [2]), 1, num_partitions="7")["num.partitions"] == "7"


def test_the_state_file_is_read_back_as_written(tmp_path: Path) -> None:
    """`down` finds what `up` started, in another process and on another day."""
    layout = plan(tmp_path, "c", [1, 2, 3], [11, 12, 13]).with_identity(2, Identity(4711, 1234.5))
    layout.write()
    assert Layout.read(tmp_path) == layout


def test_a_cluster_keeps_its_version_and_refuses_another(tmp_path: Path) -> None:
    """Data that a newer broker wrote can stop an older one; a state file from before versions is the usual one's."""
    old = plan(tmp_path, "c", [1], [2])
    assert old.kafka == "4.1.1"
    replace(old, launched=Settings(kafka="3.9.2").kept()).write()
    found = Layout.read(tmp_path)
    assert (found is not None and found.kafka, Settings(kafka="3.9.2").jvm.part) == ("3.9.2", Part.KAFKA_3_9)
    with pytest.raises(Refused, match=r"holds a cluster of Kafka 3\.9\.2, not 3\.3\.2; .*--wipe"):
        Cluster.start(tmp_path, settings=Settings(kafka="3.3.2"))


def test_a_directory_without_state_holds_no_cluster(tmp_path: Path) -> None:
    """Looking at a folder makes nothing there."""
    assert Layout.read(tmp_path) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cluster_id": "c", "nodes": [{"number": 1}]}'])
def test_a_broken_state_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    """Guessing what ran would leave processes behind, or end foreign ones."""
    (tmp_path / "kafka.json").write_text(text)
    with pytest.raises(Refused, match=r"kafka\.json"):
        Layout.read(tmp_path)
