"""What is decided where the group has no position, from an output, fences and positions that are played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from harness.fakes import log_record

from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import missing_offsets
from brew.driver.missing_offsets import HiddenOutputError, OutputWait
from brew.errors import Refused
from brew.kafka.topics import Topic
from brew.names import READ_COMMITTED
from brew.offsets import Committed, LogOffsets, SourcePosition
from brew.planner import PartitionFacts, position_metadata
from brew.settings import OnMissingPosition, PipelineSettings

SETTINGS = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "g")
RESTORE = replace(SETTINGS, on_missing_position=OnMissingPosition.RESTORE)
START_OVER = replace(SETTINGS, on_missing_position=OnMissingPosition.START_OVER)
TARGETS = {name: Topic(name, name, 2, 1) for name in ("out", "dead")}
_CREATE_TIME, _LOG_APPEND_TIME = 1, 2


def record(offset: int, partition: int = 0, topic: str = "in", key: bytes = b"k") -> Any:
    """A record of the output that came from there."""
    headers = SourcePosition(topic, partition, offset).headers()
    return log_record(offset, 0, key, None, headers, (_CREATE_TIME, offset))


def fact(partition: int = 0, committed: int | None = None, *, first: int = 0, stable: int = 50) -> PartitionFacts:
    position = None if committed is None else Committed(committed, "")
    return PartitionFacts("in", partition, "the-input's-identity", position, LogOffsets(first, stable, 50))


@dataclass
class Brokers:
    """``output``: topic -> batches in the order in which they are read; ``source``: the input's keys by offset."""

    output: dict[str, list[list[Any]]] = field(default_factory=dict)
    source: dict[int, bytes] = field(default_factory=lambda: dict.fromkeys(range(50), b"k"))
    positions: dict[int, Committed] = field(default_factory=dict)
    open_end: dict[str, int] = field(default_factory=dict)
    commits_at_fence: dict[int, int] = field(default_factory=dict)
    did: list[tuple[Any, ...]] = field(default_factory=list)
    isolations: set[str] = field(default_factory=set)

    def ends(self, topic: str) -> int:
        return sum(map(len, self.output.get(topic, ()))) + self.open_end.get(topic, 0)

    def log_offsets(self, _client: Any, topic: str, partitions: Any, _deadline: Deadline) -> dict[int, LogOffsets]:
        end, hidden = self.ends(topic), self.open_end.get(topic, 0)
        self.did.append(("ends", topic))
        return {p: LogOffsets(0, end - hidden, end if p == 0 else end - hidden) for p in partitions}

    def scan(self, _connection: Any, topic: str, ranges: Any, isolation: str, **_: Any) -> Iterator[list[Any]]:
        self.isolations.add(isolation)
        if topic == "in":
            ((start, until),) = ranges.values()
            yield [record(offset, key=self.source[offset]) for offset in range(start, until) if offset in self.source]
            return
        self.did.append(("scan", topic, dict(ranges)))
        yield from self.output.get(topic, ())

    def committed_by(self, _connection: Any, _group: str, _topic: str, partitions: Any, isolation: str, _: Any) -> Any:
        assert isolation == READ_COMMITTED, "pending positions have to be waited for"
        return {p: self.positions.get(p) for p in partitions}

    def transaction(self, _settings: object, _topic: str, partition: int) -> Any:
        brokers = self

        class Kafka:
            def fence(self, _deadline: Deadline) -> None:
                brokers.did.append(("fence", partition))
                brokers.open_end.pop(f"of {partition}", None)
                if partition in brokers.commits_at_fence:
                    brokers.positions[partition] = Committed(brokers.commits_at_fence[partition], "")

            def locate(self, _deadline: Deadline) -> Committed | None:
                return brokers.positions.get(partition)

            def begin(self) -> None:
                self.pending: Committed | None = None

            def flush(self, _deadline: Deadline) -> None: ...

            def send_offsets(self, offset: int, metadata: str, _deadline: Deadline) -> None:
                self.pending = Committed(offset, metadata)

            def commit(self, _deadline: Deadline) -> None:
                assert self.pending is not None
                brokers.positions[partition] = self.pending

            def close(self) -> None:
                brokers.did.append(("closed", partition))

        return Kafka()


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    played = Brokers()
    played_by = {"log_offsets": played.log_offsets, "scan": played.scan, "committed_by": played.committed_by}
    times = {"_GRACE_S": 0.05, "_POLL_S": 0.001}
    for name, new in {**played_by, **times, "admin": str, "KafkaTransaction": played.transaction}.items():
        monkeypatch.setattr(missing_offsets, name, new)
    return played


def resolve(settings: PipelineSettings, *facts: PartitionFacts, others: Any = (), settling: Any = None) -> set[int]:
    return missing_offsets.resolve(settings, facts, TARGETS, others, settling or OutputWait(Deadline(30)))


@pytest.mark.parametrize(
    "output",
    [
        {"out": [[record(4)], [record(9)]]},
        {"out": [[record(9)], [record(4)]]},
        {"out": [[record(9), record(4), record(7)]]},
        {"out": [[record(9)]], "dead": [[record(3)]]},
        {"out": [[record(3)]], "dead": [[record(9)]]},
    ],
    ids=["in order", "in another order", "within a batch", "dead letters behind", "a dead letter is the last"],
)
def test_restore_commits_behind_the_highest_record(brokers: Brokers, output: dict[str, list[list[Any]]]) -> None:
    """Partitions of the output and dead letters are read in any order: what is read last need not be what came last."""
    brokers.output = output
    assert resolve(RESTORE, fact()) == set(), "it is surveyed again, with the position that it has now"
    assert brokers.positions == {0: Committed(10, position_metadata("the-input's-identity"))}


def test_restore_gives_each_partition_its_own_position(brokers: Brokers) -> None:
    """Records of other partitions, of another input and without a source say nothing."""
    unsourced = record(48)
    unsourced.headers = lambda: [("trace", b"1")]
    others = [unsourced, record(47, topic="another"), record(46, partition=2)]
    brokers.output = {"out": [[record(3), record(8, partition=1), *others]]}
    assert resolve(RESTORE, fact(0), fact(1), fact(3)) == {3}
    assert {p: one.offset for p, one in brokers.positions.items()} == {0: 4, 1: 9}


def test_restore_keeps_a_position_that_came_meanwhile(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run has committed between the look and the fence: its position is the later one."""
    brokers.output = {"out": [[record(3)]]}
    fences = iter([{}, {0: 20}])
    original = brokers.transaction

    def transaction(*arguments: Any) -> Any:
        brokers.commits_at_fence = next(fences)
        return original(*arguments)

    monkeypatch.setattr(missing_offsets, "KafkaTransaction", transaction)
    assert resolve(RESTORE, fact()) == set()
    assert brokers.positions[0].offset == 20


@pytest.mark.parametrize("topic", ["out", "dead"])
def test_one_record_that_is_out_refuses_and_writes_nothing(brokers: Brokers, topic: str) -> None:
    brokers.output = {topic: [[record(3)]]}
    with pytest.raises(Refused, match=r"offsets-vanished: .*in\[0\].*up to offset 3.*another group wrote"):
        resolve(SETTINGS, fact(0), fact(1))
    assert brokers.positions == {}
    assert brokers.isolations == {READ_COMMITTED}, "what was aborted is not out"


def test_a_second_look_counts_what_came_out_behind_the_first(brokers: Brokers) -> None:
    """The run began, committed, and its offsets vanished; each look reads the output as it is then."""
    brokers.output = {"out": [[record(3, topic="another")]]}
    assert resolve(SETTINGS, fact()) == {0}
    brokers.output["out"].append([record(0)])
    with pytest.raises(Refused, match="offsets-vanished"):
        resolve(SETTINGS, fact())


def test_a_fence_goes_before_the_look_at_what_is_out(brokers: Brokers) -> None:
    brokers.output = {"out": [[record(3, topic="another")]]}
    resolve(SETTINGS, fact(0), fact(1))
    last_fence = max(index for index, did in enumerate(brokers.did) if did[0] == "fence")
    ends = [index for index, did in enumerate(brokers.did) if did[0] == "ends" and index > last_fence]
    scans = [index for index, did in enumerate(brokers.did) if did[0] == "scan"]
    assert last_fence < min(ends) < min(scans)
    fences = [did for did in brokers.did if did[0] in {"fence", "closed"}]
    assert fences == [("fence", 0), ("closed", 0), ("fence", 1), ("closed", 1)]


def test_what_a_fenced_run_had_committed_is_not_taken_for_lost(brokers: Brokers) -> None:
    """Records with a position beside them: the partition is asked about again, and nobody begins meanwhile."""
    brokers.output = {"out": [[record(3)]]}
    brokers.commits_at_fence = {0: 4}
    assert resolve(SETTINGS, fact(0), fact(1)) == set()


def test_only_partitions_without_a_position_and_with_records_are_decided_on(brokers: Brokers) -> None:
    """A first run on a new topic begins at once: nothing in output and dead letters needs no fence."""
    assert resolve(SETTINGS, fact(0), fact(1)) == {0, 1}
    assert not [did for did in brokers.did if did[0] == "fence"]
    brokers.output = {"out": [[record(3, partition=1), record(3, partition=2)]]}
    assert resolve(SETTINGS, fact(0), fact(1, committed=4), fact(2, first=50)) == {0}
    # To start over is the operator's word, and asks nobody.
    brokers.did.clear()
    brokers.output = {"out": [[record(3)]]}
    assert resolve(START_OVER, fact(0), fact(1, committed=3)) == {0}
    assert brokers.did == []


@pytest.mark.parametrize("visible", [[], [record(3, topic="another")]], ids=["all of it", "its end"])
def test_an_open_transaction_that_hides_output_is_waited_for_and_others_of_ours_are_fenced(
    brokers: Brokers, visible: list[Any]
) -> None:
    """Whose it is can't be seen; a dead run's ends with a fence, a rival's by itself."""
    settling = OutputWait(Deadline(30))
    brokers.output, brokers.open_end = {"out": [visible]}, {"out": 2}
    with pytest.raises(HiddenOutputError, match=r"hides output in out\[0\]"):
        resolve(SETTINGS, fact(0), others=[fact(1, committed=4)], settling=settling)
    assert ("fence", 1) in brokers.did
    assert not [did for did in brokers.did if did[0] == "scan"], "it would not see everything"
    # A rival's next transaction hides nothing that has to be seen: the ends of the first look count for the later ones.
    brokers.output["out"].append([record(4, topic="another"), record(5, topic="another")])
    assert resolve(SETTINGS, fact(0), settling=settling) == {0}


def test_the_ends_of_an_older_look_do_not_count_for_a_partition_that_was_gone_meanwhile() -> None:
    """Somebody else may have worked on it, and have lost its position: what is out of it lies behind those ends."""
    settling, calls = OutputWait(Deadline(30)), []

    def read_ends() -> missing_offsets.Logs:
        calls.append(len(calls))
        return {"out": {0: LogOffsets(0, len(calls), len(calls))}}

    for wanted, times in [({0, 1}, 1), ({0, 1}, 1), ({0}, 1), ({0, 1}, 2), ({0, 1, 2}, 3)]:
        settling.ends(wanted, read_ends)
        assert len(calls) == times, wanted


@pytest.mark.parametrize(
    ("source", "first", "refused"),
    [({9: b"k"}, 0, False), ({9: b"k"}, 9, False), ({9: b"other"}, 0, True), ({}, 0, True), ({}, 10, False)],
    ids=["the same record", "the log's first", "another record", "none", "retention took it"],
)
def test_nothing_is_restored_from_an_output_of_another_input_of_that_name(
    brokers: Brokers, source: dict[int, bytes], first: int, refused: bool
) -> None:
    """And of no other partition before all are compared: half of it would be restored, and the run refused."""
    brokers.output, brokers.source = {"out": [[record(3), record(9, partition=1)]]}, {3: b"k"} | source
    facts = fact(), fact(1, first=first, stable=9 if not source and not first else 50)
    if refused:
        with pytest.raises(Refused, match=r"topic-recreated: .* came from offset 9"):
            resolve(RESTORE, *facts)
        assert brokers.positions == {}
    else:
        assert resolve(RESTORE, *facts) == set()
        assert [brokers.positions[p].offset for p in (0, 1)] == [4, 10]


@pytest.mark.parametrize(
    ("kind", "milliseconds", "refused"),
    [(_CREATE_TIME, 9, False), (_CREATE_TIME, 10, True), (_LOG_APPEND_TIME, 10, False)],
    ids=["the same record", "another one", "the output's broker set it"],
)
def test_a_recreated_input_without_keys_is_known_by_its_timestamps(
    brokers: Brokers, kind: int, milliseconds: int, refused: bool
) -> None:
    last = record(9)
    last.timestamp = lambda: (kind, milliseconds)
    brokers.output = {"out": [[last]]}
    with pytest.raises(Refused, match="topic-recreated") if refused else nullcontext():
        resolve(RESTORE, fact())
    assert (0 in brokers.positions) is not refused


def test_a_function_that_changes_keys_is_told_where_to_set_the_positions(brokers: Brokers) -> None:
    """A masked key is not the source's, so nothing can be compared; to start over would double the whole output."""
    masked = [record(3, key=b"masked"), record(9, partition=1, key=b"masked"), record(5, partition=2)]
    brokers.output = {"out": [masked]}
    with pytest.raises(Refused) as refused:
        resolve(RESTORE, fact(0), fact(1), fact(2))
    text = str(refused.value)
    assert text.startswith("topic-recreated: the output's last record of in[0] came from offset 3, ")
    assert "unless your function changes keys or timestamps" in text
    assert "run again: 0 to 4, 1 to 10 (kafka-consumer-groups --reset-offsets --group g --topic in:PARTITION " in text
    assert brokers.positions == {}


def test_an_input_that_ends_before_the_last_output_was_recreated_whatever_the_function_changes(
    brokers: Brokers,
) -> None:
    """There is no position to set: it would be behind the log's end."""
    brokers.output = {"out": [[record(3, key=b"masked"), record(9, partition=1)]]}
    with pytest.raises(Refused, match=r"^topic-recreated: .* in\[1\] came from offset 9, .* now has none: ") as refused:
        resolve(RESTORE, fact(0), fact(1, stable=9))
    assert "--reset-offsets" not in str(refused.value)
