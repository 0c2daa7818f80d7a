"""The partition survey: what it remembers, foreign members of the group, in which order brokers are asked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import pytest
from harness.fakes import Broker, FakeTransaction
from harness.lease_coordinator import run_context
from harness.pipeline import DrainView

from brew.cluster import GroupFacts, Unknown
from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import missing_offsets, partitions
from brew.driver.partitions import OffsetsClient, PartitionSurvey, missing_topics
from brew.driver.run_context import Interval
from brew.driver.work_planner import WorkPlanner
from brew.errors import DeadlineExceeded, Fenced, Refused, Retriable
from brew.kafka import topics
from brew.kafka.cluster_admin import roomier_limit
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import Committed, LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts, check
from brew.range_transaction import Rows, transact_range
from brew.settings import PipelineSettings

SETTINGS = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "g")


@dataclass
class Cluster:
    """What the brokers tell: two partitions of ten offsets, and what came out of each."""

    committed: dict[int, Committed | None] = field(default_factory=lambda: {0: None, 1: Committed(10, "")})
    output: dict[int, int] = field(default_factory=dict)
    topic_id: str = "topic-identity-number1"
    logs: dict[int, LogOffsets] = field(default_factory=lambda: dict.fromkeys(range(2), LogOffsets(0, 10, 10)))
    outputs: int = 2
    hidden: bool = False
    deleted: tuple[str, ...] = ()
    leaderless: tuple[int, ...] = ()
    resolved: list[tuple[set[int], set[int], Mapping[str, Topic]]] = field(default_factory=list)
    waits: list[missing_offsets.OutputWait] = field(default_factory=list)
    last_positions: list[dict[int, int]] = field(default_factory=list)

    admin: Any = None

    def replace_if_cut_off(self) -> None: ...

    def input_topic(self, _deadline: Deadline) -> Topic:
        return Topic("in", self.topic_id, len(self.committed), 1)

    def output_topics(self, _source: Topic, _deadline: Deadline) -> dict[str, Topic]:
        return {name: Topic(name, name, self.outputs, 1) for name in ("out", "dead")}

    def with_leader(self, source: Topic, _deadline: Deadline) -> list[int]:
        return [p for p in range(source.partitions) if p not in self.leaderless]

    def described(self, names: list[str], _deadline: Deadline) -> dict[str, Topic]:
        return {name: Topic(name, name, self.outputs, 1) for name in names if name not in {"in", *self.deleted}}

    def facts(self, source: Topic, picked: Any, _deadline: Deadline, last_positions: Any) -> list[PartitionFacts]:
        self.last_positions.append(dict(last_positions))
        return [PartitionFacts("in", p, source.topic_id, self.committed[p], self.logs[p]) for p in picked]

    def resolve(self, _settings: Any, facts: Any, targets: Any, others: Any, wait: Any) -> set[int]:
        """As `missing.resolve`: refuses where records of a partition are out."""
        self.waits.append(wait)
        unwritten = {fact.partition for fact in facts if fact.log.end > fact.log.first}
        self.resolved.append((unwritten, {fact.partition for fact in others}, targets))
        if self.hidden:
            raise missing_offsets.HiddenOutputError("somebody's transaction hides the output")
        if any(self.output.get(partition) for partition in unwritten):
            raise Refused("offsets-vanished")
        return unwritten

    def close(self) -> None: ...


class Run:
    """One survey of a cluster that is played."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **cluster: Any) -> None:
        self.cluster, self.view = Cluster(**cluster), DrainView()
        monkeypatch.setattr(partitions, "OffsetsClient", lambda _settings: self.cluster)
        monkeypatch.setattr(missing_offsets, "resolve", self.cluster.resolve)
        targets = {name: Topic(name, name, 2, 1) for name in ("in", "out", "dead")}
        self.shared = run_context(SETTINGS, topics=targets, view=self.view)
        self.survey = PartitionSurvey(self.shared)

    def look(self) -> dict[int, PartitionFacts]:
        facts, self.all_of_them = self.survey.read(lambda source: range(source.partitions))
        return {fact.partition: fact for fact in facts}

    def attempt(self, partition: int = 0) -> bool:
        """A look, and the attempt that follows it: whether it may begin without a committed offset."""
        return self.survey.first_attempt(self.look()[partition])


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_an_output_that_grows_after_the_input_keeps_partitions_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number of partitions was read with the input's only, and the records of new ones went by key for good."""
    monkeypatch.setattr(run.shared.ownership, "set_partitions", claimed := Mock())
    run.cluster.committed |= {2: Committed(10, "")}
    run.cluster.logs[2] = LogOffsets(0, 10, 10)
    assert run.survey.targets(run.look()[2]).output_partition == -1
    run.cluster.outputs = 3
    assert run.survey.targets(run.look()[2]).output_partition == 2
    claimed.assert_called_once_with(range(3))  # or no driver that shares them would ever own the new one


def test_records_of_an_output_that_was_recreated_with_fewer_partitions_go_by_key(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They went to partitions that it no longer had, until --patience ended the run."""
    times = iter(range(1000, 2000, 10))
    monkeypatch.setattr(run.survey, "_outputs_due", Interval(5, lambda: next(times)))
    assert run.survey.targets(run.look()[1]).output_partition == 1
    run.cluster.outputs = 1
    assert run.survey.targets(run.look()[1]).output_partition == -1


@pytest.mark.parametrize(
    ("deleted", "told"),
    [
        ((), "failed delivery"),
        (("out",), "; output topic 'out' does not exist any more"),
        (("out", "dead"), "; output topics 'out' and 'dead' do not exist any more"),
    ],
)
def test_a_run_that_gives_up_names_an_output_that_was_deleted(
    deleted: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the client says, `10 message(s) failed delivery`, names neither the topic nor what to do."""
    run = Run(monkeypatch, deleted=deleted)
    run.shared.preflight = replace(run.shared.preflight, settings=replace(SETTINGS, patience_s=1))
    planner = WorkPlanner(run.shared)
    planner.failed("partition 0", "the first failure")
    planner._give_up._last_progress = planner._give_up._failing_since = time.monotonic() - 1.01
    with pytest.raises(Refused, match=r"^no progress for .* last ended failed: commit") as refused:
        planner.failed("partition 0 last ended failed", "commit: 10 message(s) failed delivery")
    assert told in str(refused.value)
    assert ("which creates what is missing" in str(refused.value)) is bool(deleted)


def test_deleted_outputs_are_named_in_one_sentence() -> None:
    assert missing_topics(["a"]) == "output topic 'a' does not exist any more"
    assert missing_topics(["a", "b", "c"]) == "output topics 'a', 'b' and 'c' do not exist any more"


def test_a_survey_reports_an_output_that_was_deleted_long_before_the_run_gives_up(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/readyz` answered 200 until --patience was over, as nothing looked for the topics before."""
    reported: list[str] = []
    monkeypatch.setattr(run.shared.progress, "missing", reported.append)
    times = iter(range(1000, 2000, 10))
    monkeypatch.setattr(run.survey, "_outputs_due", Interval(5, lambda: next(times)))
    run.look()
    run.cluster.deleted = ("out",)
    for _ in range(3):
        run.look()
    run.cluster.deleted = ()
    run.look()
    gone = "output topic 'out' does not exist any more"
    assert reported == ["", "", gone, gone, ""], "once may be a broker that hears late of a topic"
    assert [note for note in run.view.notes if "'out' does not exist any more" in note] == run.view.notes
    assert len(run.view.notes) == 1


def test_a_following_run_goes_on_beside_a_partition_without_a_leader(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole survey failed: others were not read any more, the run gave up, and no other one could start."""
    reported: list[tuple[list[int], list[int]]] = []
    monkeypatch.setattr(run.shared.progress, "leaderless", lambda *found: reported.append(found))
    run.cluster.leaderless = (1,)
    assert [(sorted(run.look()), run.all_of_them) for _ in range(3)] == [([0], False)] * 3
    run.shared.preflight = replace(run.shared.preflight, goals={0: 10, 1: 10})
    assert sorted(run.look()) == [0, 1], "a drain needs all of them, and fails"
    run.shared.preflight, run.cluster.leaderless = replace(run.shared.preflight, goals=None), ()
    assert (sorted(run.look()), run.all_of_them) == ([0, 1], True)
    assert reported == [([], [0, 1]), ([1], [0, 1]), ([1], [0, 1]), ([], [0, 1])], "once may be an election"
    assert run.view.notes == ["no leader for in[1]; start a broker that holds them; the run goes on in the others"]


ENDS = {
    "committed": Outcome(0, 0, 10, Status.COMMITTED),
    "already-done": Outcome(0, 0, 10, Status.ALREADY_DONE, 10),
    "ahead": Outcome(0, 0, 5, Status.AHEAD, 10),
    "offset-gap": Outcome(0, 0, 10, Status.OFFSET_GAP, -1),
    "fenced by somebody who commits": Outcome(0, 0, 10, Status.FENCED),
    "failed with a commit that was applied": Outcome(0, 0, 10, Status.FAILED),
    "nothing, for its process died": None,
}


@pytest.mark.parametrize("end", ENDS)
def test_whatever_becomes_of_a_first_attempt_a_second_one_asks_again_what_came_out(run: Run, end: str) -> None:
    """Its records may be out, and its position may have vanished before any look saw it: to begin again doubles all."""
    assert run.attempt()
    run.cluster.output[0] = 10
    outcome = ENDS[end]
    if outcome is not None:
        run.survey.apply_outcome(outcome)
    with pytest.raises(Refused, match="offsets-vanished"):
        run.look()
    assert [partitions for partitions, *_ in run.cluster.resolved] == [{0}, {0}]


def test_a_position_that_a_look_has_seen_and_that_vanishes_is_no_first_time(run: Run) -> None:
    """An attempt that wrote nothing may begin again: the output is asked, and holds nothing of it."""
    for status in (Status.FAILED, Status.FENCED, Status.FAILED):
        assert run.attempt()
        run.survey.apply_outcome(Outcome(0, 0, 10, status))
    assert run.attempt()
    assert len(run.cluster.resolved) == 4
    run.survey.apply_outcome(Outcome(0, 0, 10, Status.COMMITTED))
    run.cluster.committed[0], run.cluster.output[0] = Committed(10, ""), 10
    assert not run.attempt()
    run.cluster.committed[0] = None
    with pytest.raises(Refused, match="offsets-vanished"):
        run.look()


def test_who_may_begin_is_asked_about_again_only_when_somebody_else_had_it_meanwhile(run: Run) -> None:
    """One that waits costs one look into the output; what it was allowed to do, somebody else may have done."""
    for _ in range(3):
        assert run.look()[0].committed is None
    assert len(run.cluster.resolved) == 1
    run.survey.owned = {1}
    run.look()
    run.survey.owned, run.cluster.output[0] = {0, 1}, 10
    with pytest.raises(Refused, match="offsets-vanished"):
        run.look()


def test_a_permission_that_was_not_used_ends_with_a_position(run: Run) -> None:
    """Another run committed meanwhile, and its offset vanished: its records would be written again."""
    assert run.look()[0].committed is None
    run.cluster.committed[0], run.cluster.output[0] = Committed(10, ""), 10
    run.look()
    run.cluster.committed[0] = None
    with pytest.raises(Refused, match="offsets-vanished"):
        run.look()


def test_others_are_fenced_in_what_is_ours_only_and_not_where_this_run_is_at_work(run: Run) -> None:
    """Another driver's transaction is that driver's; a first transaction of ours may outlast the next look."""
    assert run.attempt()
    assert run.cluster.resolved[-1][1] == {1}
    run.shared.running[0] = OffsetRange("in", 0, 0, 10)
    assert run.look()[0].committed is None
    assert len(run.cluster.resolved) == 1
    run.shared.running = {1: OffsetRange("in", 1, 10, 11)}
    run.look()
    assert run.cluster.resolved[-1][:2] == ({0}, set())
    run.shared.running = {}
    run.cluster.committed = {0: None, 1: None, 2: Committed(1, ""), 3: Committed(1, "")}
    run.cluster.logs = dict.fromkeys(range(4), LogOffsets(0, 10, 10))
    run.survey.owned = {1, 3}
    run.look()
    assert run.cluster.resolved[-1][:2] == ({1}, {3})


def test_partitions_that_the_output_was_given_meanwhile_are_looked_into(run: Run) -> None:
    """Keyed records go there, too; a look into the old ones alone finds nothing, and begins again."""
    run.look()
    run.cluster.committed, run.cluster.outputs = {0: None, 1: None}, 8
    run.look()
    targets = run.cluster.resolved[-1][2].values()
    assert {topic.name: topic.partitions for topic in targets} == {"in": 2, "out": 8, "dead": 8}


def test_an_empty_partition_waits_for_nobody_and_has_no_permission_later(run: Run) -> None:
    """It is given out while it is empty; when it comes back with records, what came out is asked."""
    run.cluster.logs[0] = LogOffsets(0, 0, 0)
    assert run.attempt()
    assert run.all_of_them
    run.cluster.logs[0], run.cluster.output[0] = LogOffsets(0, 10, 10), 10
    with pytest.raises(Refused, match="offsets-vanished"):
        run.look()


def test_what_hides_the_output_holds_back_one_partition(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others go on; the patience begins anew when it was answered in between."""
    run.cluster.hidden = True
    assert (run.look().keys(), run.all_of_them) == ({1}, False)
    run.cluster.hidden = False
    facts = run.look()
    assert (facts.keys(), run.all_of_them) == ({0, 1}, True)
    assert run.survey.first_attempt(facts[0])
    run.cluster.hidden = True
    monkeypatch.setattr(partitions, "output_wait_s", lambda _settings: 1e-9)
    with pytest.raises(Refused, match="offsets-vanished: somebody's transaction hides"):
        run.look()


def test_a_wait_for_output_is_over_when_its_partitions_have_positions(run: Run) -> None:
    """Its ends of the logs lie before what came out since: if the positions vanish, it would be written again."""
    run.cluster.hidden = True
    run.look()
    run.look()
    run.cluster.committed[0] = Committed(10, "")
    run.look()
    run.cluster.committed[0] = None
    run.look()
    first, second, third = run.cluster.waits
    assert first is second is not third


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The partitions whose positions were renewed; 3 is fenced meanwhile, and of 4 no broker knows."""
    done: list[int] = []

    def renew(_transaction: TransactionSettings, _topic: str, renewed: int) -> None:
        done.append(renewed)
        for partition, error in ((3, Fenced("an attempt began")), (4, DeadlineExceeded("no answer"))):
            if renewed == partition:
                raise error

    monkeypatch.setattr(missing_offsets, "renew", renew)
    return done


def test_the_position_of_an_idle_partition_is_committed_again_before_it_expires(
    monkeypatch: pytest.MonkeyPatch, renewed: list[int]
) -> None:
    """Kafka deletes an offset a week after its last commit, also while others of the group move: the run ended."""
    now = [1000.0]
    monkeypatch.setattr(missing_offsets, "time", Mock(monotonic=lambda: now[0]))
    run = Run(monkeypatch, committed={p: Committed(10, "") for p in range(5)})
    run.cluster.logs = dict.fromkeys(range(5), LogOffsets(0, 10, 10))
    run.survey.owned = {1, 2, 3, 4}  # 0 is another driver's
    run.look()
    now[0] += 3599
    run.cluster.logs[2] = LogOffsets(0, 11, 11)  # has a record to read, whose commit renews it
    run.look()
    assert renewed == []
    now[0] += 1
    for _ in range(4):  # one in each look
        run.look()
    assert renewed == [1, 3, 4]
    assert run.view.notes == ["the offset of idle partition 4 could not be renewed: no answer"]
    now[0] += 60
    run.cluster.committed[2], run.cluster.committed[4] = Committed(11, ""), Committed(10, "")
    run.look()
    run.look()
    assert renewed == [1, 3, 4, 4]
    now[0] += 3600
    for ending in (run.shared.stop, run.shared.replaced):
        ending.set()
        run.look()
        ending.clear()
    assert renewed == [1, 3, 4, 4]


def test_a_drain_renews_nothing(monkeypatch: pytest.MonkeyPatch, renewed: list[int]) -> None:
    monkeypatch.setattr(missing_offsets, "_IDLE_S", 0.0)
    run = Run(monkeypatch, committed={0: Committed(10, ""), 1: Committed(10, "")})
    run.shared.preflight = replace(run.shared.preflight, goals={0: 10, 1: 10})
    run.look()
    assert renewed == []


@pytest.mark.parametrize("committed", [7, None])
def test_a_renewed_position_is_the_one_that_its_transaction_finds(
    monkeypatch: pytest.MonkeyPatch, committed: int | None
) -> None:
    """An older one would repeat records; one that is gone is not made up."""
    found = None if committed is None else Committed(committed, "")
    broker = Broker(committed=found)
    kafka: Any = FakeTransaction(broker)
    kafka.close = Mock()
    monkeypatch.setattr(missing_offsets, "KafkaTransaction", lambda *_: kafka)
    missing_offsets.renew(TransactionSettings(SETTINGS.connection, "g", 60.0), "in", 0)
    assert (broker.committed and broker.committed.offset, broker.visible()) == (committed, [])


def test_the_time_without_brokers_is_no_time_in_which_a_transaction_could_have_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage of half a minute, the first look that finds a killed run's transaction ended the run."""
    monkeypatch.setattr(partitions, "output_wait_s", lambda _settings: 0.05)
    run.cluster.hidden = True
    run.look()
    time.sleep(0.1)
    run.survey.renew_clients()
    assert run.look().keys() == {1}
    time.sleep(0.1)
    with pytest.raises(Refused, match="offsets-vanished: somebody's transaction hides"):
        run.look()


@pytest.mark.parametrize(("timeout_s", "wait_s"), [(60, 75), (900, 915), (1, 30)])
def test_a_transaction_of_another_partition_of_the_run_may_take_its_time(timeout_s: float, wait_s: float) -> None:
    """After 30 s it was taken for another producer's, and ended the run, since a new partition had to wait for it."""
    assert partitions.output_wait_s(replace(SETTINGS, transaction_timeout_s=timeout_s)) == wait_s


@pytest.mark.parametrize(
    ("outcome", "known"),
    [
        (Outcome(1, 10, 20, Status.COMMITTED, 10), {1: 20}),
        (Outcome(1, 10, 20, Status.ALREADY_DONE, 20), {1: 20}),
        (Outcome(1, 10, 20, Status.AHEAD, 30), {1: 30}),
        (Outcome(1, 10, 20, Status.OFFSET_GAP, 5), {}),
        (Outcome(1, 10, 20, Status.FENCED), {1: 10}),
        (Outcome(1, 10, 20, Status.FAILED), {1: 10}),
    ],
    ids=lambda one: one.status.value if isinstance(one, Outcome) else "",
)
def test_the_next_look_knows_where_a_transaction_left_the_group(run: Run, outcome: Outcome, known: dict) -> None:
    run.survey.last_positions[1] = 10
    run.survey.apply_outcome(outcome)
    run.cluster.logs[1] = LogOffsets(0, 40, 40)
    run.cluster.committed[1] = Committed(known.get(1, 5), "")
    run.look()
    assert run.cluster.last_positions == [known]
    assert bool(run.view.notes) is (outcome.status is Status.OFFSET_GAP)


def test_a_position_that_an_outsider_moved_back_is_told_once_and_believed(run: Run) -> None:
    run.survey.last_positions[1] = 10
    run.cluster.committed[1] = Committed(4, "")
    for _ in range(2):
        run.look()
    assert (len(run.view.notes), run.survey.last_positions) == (1, {1: 4})
    assert run.view.notes[0].startswith("offset-gap: partition 1 was committed up to 10, the group now stands at 4")


def test_who_begins_anew_forgets_where_the_group_stood(run: Run) -> None:
    """The input was made again, its output is gone: to go on at the old position would lose the new beginning."""
    assert run.attempt()
    run.survey.apply_outcome(Outcome(0, 0, 10, Status.COMMITTED))
    run.cluster.topic_id = "topic-identity-number2"
    assert run.attempt()
    assert run.survey.last_positions == {}


def test_a_topic_that_was_recreated_and_is_still_empty_begins_at_its_first_record(run: Run) -> None:
    """Nothing has to be looked up for it, so the old position stayed: all records below it would have been lost."""
    assert run.attempt()
    run.survey.apply_outcome(Outcome(0, 0, 10, Status.COMMITTED))
    run.cluster.topic_id, run.cluster.logs[0] = "topic-identity-number2", LogOffsets(0, 0, 0)
    assert run.attempt()
    assert run.survey.last_positions == {}


def written(run: Run, fact: PartitionFacts) -> Committed:
    """What the kernel commits beside the offset of a range that it is given by this survey."""
    broker = Broker(committed=fact.committed)
    rows = [Rows([fact.position], [b"gold-1"], [b'{"customer_id": "c-1"}'], [None], [0])]
    offered = OffsetRange("in", fact.partition, fact.position, fact.position + 1)
    kafka: Any = FakeTransaction(broker)
    done = transact_range(rows, offered, run.survey.targets(fact), lambda _key, value: value or b"", kafka, Deadline(5))
    assert done.status is Status.COMMITTED
    assert broker.committed is not None
    return broker.committed


def test_a_recreated_input_is_noticed_by_what_the_product_itself_committed(run: Run) -> None:
    """The offset still fits the new topic: the identity beside it alone tells, and nobody else writes it there."""
    fact = PartitionFacts("in", 1, run.cluster.topic_id, Committed(4, ""), LogOffsets(0, 9, 9))
    run.cluster.committed[1] = written(run, fact)
    assert run.look()[1].position == 5
    run.cluster.topic_id = "topic-identity-number2"
    with pytest.raises(Refused, match=r"topic-recreated: .*stands at 5 of topic id topic-identity-number1,"):
        run.look()


@pytest.mark.parametrize(("outputs", "target"), [(2, 1), (3, -1)])
def test_records_stay_in_their_partition_where_the_counts_are_equal(run: Run, outputs: int, target: int) -> None:
    run.cluster.outputs = outputs
    targets = run.survey.targets(run.look()[1])
    assert (targets.output_partition, targets.dead_letter_partition) == (target, target)


class MemberCheck:
    """Surveys that read no further than the group's members."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, settings: PipelineSettings = SETTINGS) -> None:
        self.now, client = 100.0, Mock()
        self.group: GroupFacts | Unknown = GroupFacts("empty", ())
        self.asked_at = list[float]()
        client.groups.now.side_effect = lambda *_: self.asked_at.append(self.now) or self.group
        client.input_topic.side_effect = Retriable("no more than that")
        monkeypatch.setattr(partitions, "OffsetsClient", lambda _settings: client)
        self.shared = run_context(settings, member_check_due=Interval(5.0, lambda: self.now))
        self.survey = PartitionSurvey(self.shared)

    def after(self, seconds: float) -> int:
        """How often was asked by then."""
        self.now += seconds
        with pytest.raises(Retriable):
            self.survey.read(lambda _: [])
        return len(self.asked_at)


def test_brokers_are_asked_every_few_seconds_and_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks before the run have just asked, and a look comes every second. Who was allowed may join."""
    members = MemberCheck(monkeypatch, replace(SETTINGS, allow=frozenset({"group-members"})))
    assert [members.after(s) for s in (0, 4.9, 0.1, 1, 3.9, 0.1)] == [0, 0, 1, 1, 1, 2]
    members.group = GroupFacts("stable", ("console@10.0.0.7",))
    assert [members.after(5), members.after(5)] == [3, 4]


def test_who_has_joined_ends_the_run_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to do is in the sentence; brokers that do not tell end nothing."""
    members = MemberCheck(monkeypatch)
    members.group = Unknown("timed out")
    assert members.after(5) == 1
    members.group = GroupFacts("stable", ("console@10.0.0.7",))
    with pytest.raises(Refused, match=r"group-members is 1: console@10\.0\.0\.7.*--allow group-members"):
        members.after(5)


def test_the_lanes_of_a_run_ask_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lanes read a second apart; the answer that one of them got counts for both."""
    members = MemberCheck(monkeypatch)
    surveys = [members.survey, PartitionSurvey(members.shared)]
    for _ in range(11):
        for members.survey in surveys:
            members.after(0)
        members.now += 1
    assert members.asked_at == [105.0, 110.0]


SOURCE = Topic("in", "id", 2, 1)


class Client:
    def __init__(self, isolation: str, number: int) -> None:
        self.isolation, self.number, self.closed = isolation, number, False

    def close(self) -> None:
        self.closed = True


class Brokers:
    """A log that grows and a position that follows it, one step with each question."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clients: list[Client] = []
        self.requests: list[tuple[Any, ...]] = []
        self.position: dict[int, int | None] = {0: 0, 1: 0}
        self.end = 0
        self.grows = 0
        self.stale: dict[int, dict[int, int | None]] = {}
        self.slow: set[str] = set()
        monkeypatch.setattr(partitions, "admin", lambda _connection: "admin")
        monkeypatch.setattr(partitions, "consumer", self._consumer)
        monkeypatch.setattr(partitions, "committed", self._committed)
        monkeypatch.setattr(partitions, "log_offsets", self._log_offsets)
        self.surveyor = OffsetsClient(SETTINGS)

    def _consumer(self, _connection: object, group: str, isolation: str) -> Client:
        assert group == "g"
        self.clients.append(Client(isolation, len(self.clients)))
        return self.clients[-1]

    def _step(self) -> None:
        """Somebody writes and commits between any two questions."""
        self.end += self.grows
        if self.grows:
            self.position = dict.fromkeys(self.position, self.end)

    def _committed(self, reader: Client, topic: str, partitions: Any, _deadline: Any) -> dict[int, Committed | None]:
        chosen = list(partitions)
        self._step()
        assert (topic, reader.closed) == ("in", False)
        self.requests.append((reader.isolation, reader.number, chosen))
        if reader.isolation in self.slow:
            raise DeadlineExceeded("a pending transaction")
        positions = {**self.position, **self.stale.get(reader.number, {})}
        return {p: None if (offset := positions[p]) is None else Committed(offset, "") for p in chosen}

    def _log_offsets(self, _admin: Any, _topic: str, partitions: Any, _deadline: Deadline) -> dict[int, LogOffsets]:
        self._step()
        self.requests.append(("log",))
        return dict.fromkeys(partitions, LogOffsets(0, self.end, self.end))

    def facts(self, known: dict[int, int]) -> dict[int, int | None]:
        facts = self.surveyor.facts(SOURCE, [0, 1], Deadline(5), known)
        for fact in facts:
            check(fact, "g")
        return {fact.partition: None if fact.committed is None else fact.committed.offset for fact in facts}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    return Brokers(monkeypatch)


def test_the_log_is_asked_behind_the_position_so_that_a_busy_group_is_never_ahead_of_it(brokers: Brokers) -> None:
    """The other way round what is written and committed in between looks like a truncated log, and is refused."""
    brokers.grows = 10
    for _ in range(3):
        brokers.facts({})
    assert [one[0] for one in brokers.requests] == [READ_UNCOMMITTED, "log"] * 3
    brokers.facts({0: 1_000})
    assert [one[0] for one in brokers.requests[6:]] == [READ_UNCOMMITTED, READ_COMMITTED, READ_UNCOMMITTED, "log"]


@pytest.mark.parametrize("hint", [None, 4])
def test_a_commit_whose_marker_is_on_its_way_is_waited_for(brokers: Brokers, hint: int | None) -> None:
    """To plan from behind it would read its rows twice; without a position at all it would look like a first time."""
    brokers.position, brokers.end = {0: 7, 1: 9}, 9
    assert brokers.facts({0: 7}) == {0: 7, 1: 9}
    brokers.stale = {0: {0: hint}}
    assert brokers.facts({0: 7, 1: 9}) == {0: 7, 1: 9}
    # A hint that is not behind is enough: pending offsets are waited for only where this run knows better.
    hinted = [(READ_UNCOMMITTED, 0, [0, 1]), ("log",)]
    assert brokers.requests == [*hinted, (READ_UNCOMMITTED, 0, [0, 1]), (READ_COMMITTED, 1, [0]), ("log",)]


@pytest.mark.parametrize("hint", [None, 4])
def test_clients_that_tell_the_past_are_left_and_new_ones_kept(brokers: Brokers, hint: int | None) -> None:
    """Those may know a coordinator that is cut off; the next survey does not ask them either."""
    brokers.position, brokers.end = {0: 7, 1: 9}, 9
    brokers.stale = {0: {0: hint}, 1: {0: hint}}
    assert brokers.facts({0: 7}) == {0: 7, 1: 9}
    assert [client.closed for client in brokers.clients] == [True, True, False, False]
    assert brokers.facts({}) == {0: 7, 1: 9}
    assert brokers.requests[-2] == (READ_UNCOMMITTED, 2, [0, 1])


@pytest.mark.parametrize("lost", [None, "admin", 0, 1])
def test_one_client_that_lost_the_brokers_is_replaced_with_all_others(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, lost: str | int | None
) -> None:
    """It would stay lost, and each survey would fail until --patience ends the run."""
    monkeypatch.setattr(partitions, "is_cut_off", lambda one, *_: lost == getattr(one, "number", one))
    monkeypatch.setattr(partitions, "admin", lambda _connection: "a new admin")
    brokers.surveyor.replace_if_cut_off()
    replaced = lost is not None
    assert brokers.surveyor.admin == ("a new admin" if replaced else "admin")
    assert [client.closed for client in brokers.clients] == ([True, True, False, False] if replaced else [False] * 2)


def test_a_pending_transaction_blocks_no_survey(brokers: Brokers) -> None:
    """A dead producer's offsets stay pending until somebody fences it. Nobody is asked about no partition."""
    assert brokers.surveyor.facts(SOURCE, [], Deadline(5), {}) == brokers.requests == []
    brokers.position, brokers.end, brokers.slow = {0: 4, 1: 9}, 9, {READ_COMMITTED}
    assert brokers.facts({0: 7}) == {0: 4, 1: 9}
    brokers.position, brokers.slow = {0: None, 1: 9}, set()
    assert brokers.facts({0: 7}) == {0: None, 1: 9}, "a position that is gone is told as gone, whatever was known"


@pytest.mark.parametrize(
    ("limit", "expected"), [(1_048_588, 1_114_124), (2**31 - 65_537, 2**31 - 1), (2**31 - 1, 2**31 - 1)]
)
def test_outputs_have_room_for_headers_up_to_the_highest_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, expected: int
) -> None:
    """A higher one is no number for brokers, and they refused to create the topics."""
    monkeypatch.setattr(topics, "max_message_bytes", lambda *_: limit)
    assert roomier_limit(Mock(), "in", Deadline(5)) == {"max.message.bytes": str(expected)}


def test_a_surveyor_closes_the_clients_that_it_has_by_then(brokers: Brokers) -> None:
    brokers.stale, brokers.position = {0: {0: 1}, 1: {0: 1}}, {0: 7, 1: 7}
    with pytest.raises(Refused, match="offset-ahead"):
        brokers.facts({0: 7})
    brokers.surveyor.close()
    assert all(client.closed for client in brokers.clients)
    assert len(brokers.clients) == 4
