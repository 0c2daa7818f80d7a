"""Checks of a cluster before a run: storage, rights, positions, time-outs, clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from brew.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterFacts, GroupFacts, TopicFacts, Unknown
from brew.connection import Connection
from brew.deadline import Deadline, delivery_ms
from brew.errors import DeadlineExceeded, Refused, UsageError
from brew.kafka import clients
from brew.kafka.cluster import ahead_s
from brew.offsets import Committed, LogOffsets
from brew.planner import PartitionFacts, position_metadata
from brew.preflight import NAMES, POSITION_NAMES, Finding, Severity, allowed, enforce
from brew.preflight.checks import members, positions, run_checks, transaction_version
from brew.preflight.timeouts import TimeoutChain, chain_text, check_chain, duration_text, explained, skew
from brew.settings import ClaimsSettings, DirectSettings, PipelineSettings, ProfilesSettings, Reader, SparkSettings
from operations import preflight

OK, WARNING, UNSAFE, UNKNOWN = Severity.OK, Severity.WARNING, Severity.UNSAFE, Severity.UNKNOWN
MOST = 100 * 1024 * 1024
ALL = frozenset({"READ", "WRITE", "DESCRIBE_CONFIGS", "DESCRIBE"})
CONFIG = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
}
BROKER = {
    "transaction.max.timeout.ms": "900000",
    "offsets.retention.minutes": "10080",
    "transaction.partition.verification.enable": "true",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
    "min.insync.replicas": "2",
}
ROLES = {"input": "in", "output": "out", "dead-letter": "dead"}
ROLES |= {"transactions": TRANSACTIONS_TOPIC, "offsets": OFFSETS_TOPIC}
Change = Callable[[ClusterFacts], ClusterFacts]


def settings(**more: Any) -> PipelineSettings:
    return PipelineSettings(Connection("k:9092"), "in", "out", "dead", "g", **more)


def cluster() -> ClusterFacts:
    """Three brokers on which nothing is wrong."""
    topics = {name: TopicFacts(name, f"id-{name}", 4, 3, 3, CONFIG, ALL) for name in ROLES.values()}
    topics["dead"] = replace(topics["dead"], config={**CONFIG, "max.message.bytes": str(1_048_588 + 4096)})
    return ClusterFacts(3, dict.fromkeys((1, 2, 3), BROKER), GroupFacts("empty", (), ALL), topics)


def on(role: str, config: Mapping[str, str] | None = None, **facts: Any) -> Change:
    """The cluster with one topic changed."""

    def change(cluster_facts: ClusterFacts) -> ClusterFacts:
        old = cluster_facts.topics[ROLES[role]]
        assert isinstance(old, TopicFacts)
        assert not isinstance(old.config, Unknown)
        new = replace(old, **{"config": {**old.config, **(config or {})}, **facts})
        return replace(cluster_facts, topics={**cluster_facts.topics, ROLES[role]: new})

    return change


def brokers(**config: str) -> Change:
    """One of them has other settings; it is neither the first nor the last."""
    other = {**BROKER, **{n.replace("_", "."): v for n, v in config.items()}}
    return lambda cluster_facts: replace(cluster_facts, config={1: BROKER, 2: other, 3: BROKER})


def without(role: str, reason: Unknown | None = None) -> Change:
    return lambda cluster_facts: replace(cluster_facts, topics={**cluster_facts.topics, ROLES[role]: reason})


def facts(**more: Any) -> Change:
    return lambda cluster_facts: replace(cluster_facts, **more)


def findings(facts: ClusterFacts, given: PipelineSettings | None = None) -> dict[str, Finding]:
    return {one.name: one for one in run_checks(given or settings(), facts, MOST)}


def test_nothing_is_wrong_with_a_good_cluster() -> None:
    """Every check is there, and all are green; Kafka's defaults and ours make a chain of time-outs."""
    results = findings(cluster())
    assert {one.severity for one in results.values()} == {OK}
    assert set(results) == set(NAMES)
    values = [int(results[f"{name}-timeout"].value.split()[0]) for name in ("request", "delivery", "transaction")]
    assert values == sorted({*values})
    assert values[-1] < 900_000, "the brokers' maximum"


ONE_COPY = {"min.insync.replicas": "1"}


def test_a_cluster_of_one_broker_is_warned_of_and_not_refused() -> None:
    facts = cluster()
    for role in ROLES:
        facts = on(role, ONE_COPY, replicas=1, in_sync=1)(facts)
    results = findings(replace(facts, brokers=1))
    assert {results[f"{role}-replication"].severity for role in ROLES} == {WARNING}
    assert "can't hold more replicas" in results["output-replication"].why
    assert enforce(results.values(), frozenset()) == ()


NOT_TOLD = Unknown("not allowed")
PROBLEMS: list[tuple[str, Severity, Change]] = [
    ("output-replication", UNSAFE, on("output", ONE_COPY, replicas=1, in_sync=1)),
    ("output-replication", WARNING, on("output", ONE_COPY, replicas=2, in_sync=2)),
    ("input-replication", WARNING, on("input", ONE_COPY, replicas=1, in_sync=1)),
    ("transactions-replication", UNSAFE, on("transactions", ONE_COPY, replicas=1)),
    ("offsets-replication", UNSAFE, on("offsets", ONE_COPY, replicas=1)),
    ("output-replication", UNKNOWN, without("output", NOT_TOLD)),
    ("input-replication", UNSAFE, without("input")),
    ("output-min-isr", UNSAFE, on("output", {"min.insync.replicas": "4"})),
    ("input-min-isr", WARNING, on("input", {"min.insync.replicas": "4"})),
    ("dead-letter-min-isr", WARNING, on("dead-letter", ONE_COPY)),
    ("dead-letter-min-isr", WARNING, on("dead-letter", {"min.insync.replicas": "3"})),
    ("output-min-isr", WARNING, on("output", in_sync=1)),
    ("output-min-isr", UNKNOWN, on("output", {"min.insync.replicas": "?"})),
    ("output-unclean-election", UNSAFE, on("output", {"unclean.leader.election.enable": "true"})),
    ("input-unclean-election", WARNING, on("input", {"unclean.leader.election.enable": "true"})),
    ("output-cleanup", UNSAFE, on("output", {"cleanup.policy": "compact,delete"})),
    ("input-cleanup", WARNING, on("input", {"cleanup.policy": "compact"})),
    ("output-access", UNSAFE, on("output", operations=frozenset({"READ"}))),
    ("input-access", UNSAFE, on("input", operations=frozenset({"WRITE"}))),
    ("input-access", UNKNOWN, on("input", operations=None)),
    ("output-message-size", WARNING, on("output", {"max.message.bytes": "1000000"})),
    ("dead-letter-message-size", WARNING, on("dead-letter", {"max.message.bytes": "1048588"})),
    ("dead-letter-message-size", WARNING, on("dead-letter", {"max.message.bytes": str(1_048_588 + 4095)})),
    ("producer-message-size", WARNING, on("input", {"max.message.bytes": str(MOST + 1)})),
    ("output-partitions", WARNING, on("output", partitions=3)),
    ("transaction-timeout", UNSAFE, brokers(transaction_max_timeout_ms="59999")),
    ("transaction-timeout", WARNING, brokers(transaction_max_timeout_ms="60000")),
    ("transaction-timeout", UNKNOWN, facts(config=NOT_TOLD)),
    ("offsets-retention", WARNING, brokers(offsets_retention_minutes="10079")),
    ("offsets-retention", UNKNOWN, facts(config=NOT_TOLD)),
    ("transaction-verification", WARNING, brokers(transaction_partition_verification_enable="false")),
    ("transaction-verification", UNKNOWN, facts(config={1: {}})),
    ("brokers-alike", WARNING, brokers(transaction_max_timeout_ms="900001")),
    ("brokers-alike", WARNING, brokers(min_insync_replicas="1")),
    ("brokers-alike", OK, brokers(log_dirs="/b")),
    ("brokers-alike", UNKNOWN, facts(config={1: BROKER, 3: BROKER})),
    ("brokers-alike", UNKNOWN, facts(config=NOT_TOLD)),
    ("group-members", UNSAFE, facts(group=GroupFacts("stable", ("c@host",), ALL))),
    ("group-members", UNKNOWN, facts(group=NOT_TOLD)),
    ("group-access", UNSAFE, facts(group=GroupFacts("empty", (), frozenset()))),
]


@pytest.mark.parametrize(("name", "severity", "change"), PROBLEMS)
def test_what_is_wrong_is_found_by_its_name(name: str, severity: Severity, change: Change) -> None:
    finding = findings(change(cluster()))[name]
    assert finding.severity is severity
    assert all((finding.need, finding.setting, finding.why))


CONNECTOR, DIRECT = {"reader": Reader.CONNECTOR}, {"reader": Reader.DIRECT}
SETTINGS_AT_EDGES: list[tuple[str, Severity, dict[str, Any]]] = [
    ("transaction-timeout", OK, {"transaction_timeout_s": 899.999}),
    ("transaction-timeout", WARNING, {"transaction_timeout_s": 900}),
    ("request-timeout", WARNING, {"transaction_timeout_s": 33.333}),
    ("request-timeout", OK, {"transaction_timeout_s": 33.335}),
    ("transaction-size", OK, {**CONNECTOR, "max_records_per_transaction": 1_000_000}),
    ("transaction-size", WARNING, {**CONNECTOR, "max_records_per_transaction": 1_000_001}),
    ("transaction-size", WARNING, {**DIRECT, "direct": DirectSettings(transaction_bytes=400_000_001)}),
    ("transaction-size", OK, {**DIRECT, "max_records_per_transaction": 10_000_000}),
]


@pytest.mark.parametrize(("name", "severity", "given"), SETTINGS_AT_EDGES)
def test_the_runs_own_settings_are_checked_at_their_edges(name: str, severity: Severity, given: dict[str, Any]) -> None:
    assert findings(cluster(), settings(**given))[name].severity is severity


@pytest.mark.parametrize(
    ("name", "severity", "links"),
    [
        ("request-timeout", OK, (9, 10, 20, 30)),
        ("request-timeout", WARNING, (10, 10, 20, 30)),
        ("delivery-timeout", OK, (5, 19, 20, 30)),
        ("delivery-timeout", WARNING, (5, 20, 20, 30)),
        ("delivery-timeout", UNSAFE, (5, 21, 20, 30)),
        ("transaction-timeout", OK, (5, 10, 29, 30)),
        ("transaction-timeout", WARNING, (5, 10, 30, 30)),
        ("transaction-timeout", UNSAFE, (5, 10, 31, 30)),
    ],
)
def test_each_link_of_the_chain_is_shorter_than_the_next(
    name: str, severity: Severity, links: tuple[int, int, int, int]
) -> None:
    results = {one.name: one for one in check_chain(TimeoutChain(*links))}
    assert results[name].severity is severity
    assert {one.severity for other, one in results.items() if other != name} == {OK}


def test_the_writers_own_time_out_is_the_one_that_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client library is told; an idempotent writer without a transaction has all of its time."""
    configs: list[dict[str, Any]] = []
    monkeypatch.setattr(clients, "Producer", configs.append)
    for name in ("g:in:0", None):
        clients.producer(Connection("k:9092"), name, timeout_s=60.0, message_max_bytes=MOST)
    assert [one["message.timeout.ms"] for one in configs] == [delivery_ms(60.0), 60_000]
    assert configs[0]["message.timeout.ms"] < configs[0]["transaction.timeout.ms"]


@pytest.mark.parametrize(
    ("check", "measured", "severity"),
    [
        *((transaction_version, version, OK) for version in (2, 3)),
        *((transaction_version, version, WARNING) for version in (1, 0)),
        *((skew, ahead, OK) for ahead in (0.0, 1.0, -1.0)),
        *((skew, ahead, WARNING) for ahead in (1.001, -1.001)),
        *((check, Unknown("old"), UNKNOWN) for check in (transaction_version, skew)),
    ],
)
def test_brokers_that_let_late_commits_through_or_whose_clocks_differ_are_warned_of(
    check: Callable[[Any], Finding], measured: object, severity: Severity
) -> None:
    """KIP-890's second part came with `transaction.version` 2; clocks make ages wrong, and nothing comes twice."""
    assert check(measured).severity is severity
    assert ("ahead" in skew(75.0).value, "behind" in skew(-75.0).value) == (True, True)


def test_topics_that_are_not_there_yet_are_judged_by_what_they_will_be_made_with() -> None:
    """Kafka makes its own logs at first use, the pipeline makes its own topics."""
    facts = without("output")(without("offsets")(without("transactions")(cluster())))
    assert {one.severity for one in run_checks(settings(), facts, MOST)} == {OK}
    poor = brokers(transaction_state_log_replication_factor="1")(facts)
    assert findings(poor)["transactions-replication"].severity is UNSAFE
    assert findings(replace(facts, config=NOT_TOLD))["offsets-replication"].severity is UNKNOWN


def test_brokers_that_differ_are_named_with_what_each_has() -> None:
    results = findings(brokers(transaction_max_timeout_ms="120000")(cluster()))
    assert results["brokers-alike"].value == "transaction.max.timeout.ms is 120000 on 2, 900000 on 1 3"
    assert results["transaction-timeout"].need == "less than 120000 ms"


def test_a_run_refuses_what_is_unsafe_and_says_how_to_go_on() -> None:
    """By names, one of which is not enough for two; a typo must not pass for an override."""
    facts = on("output", {"cleanup.policy": "compact"})(on("output", {"min.insync.replicas": "4"})(cluster()))
    results = run_checks(settings(), facts, MOST)
    with pytest.raises(Refused, match="--allow output-min-isr --allow output-cleanup"):
        enforce(results, frozenset())
    with pytest.raises(Refused, match=r"output-cleanup is compact.*with --allow output-cleanup \("):
        enforce(results, frozenset({"output-min-isr"}))
    notes = enforce(results, frozenset({"output-min-isr", "output-cleanup", "group-members"}))
    assert [note.split()[3] for note in notes] == ["output-min-isr", "output-cleanup"]
    assert allowed(["output-cleanup"]) == {"output-cleanup"}
    for wrong in ("output-clean", *POSITION_NAMES):
        with pytest.raises(UsageError, match=f"'{wrong}'"):
            allowed(["output-cleanup", wrong])


def fact(partition: int, offset: int | None, metadata: str = position_metadata("id-in")) -> PartitionFacts:
    committed = None if offset is None else Committed(offset, metadata)
    return PartitionFacts("in", partition, "id-in", committed, LogOffsets(5, 90, 100))


@pytest.mark.parametrize(
    ("facts", "severities"),
    [
        ([fact(0, 5), fact(1, None)], {"position": OK, "topic-identity": OK}),
        ([fact(0, 50, "")], {"position": OK, "topic-identity": UNKNOWN}),
        ([fact(0, 4)], {"position": UNSAFE}),
        ([fact(0, 101)], {"position": UNSAFE}),
        ([fact(0, 50, position_metadata("another" * 3 + "x"))], {"topic-identity": UNSAFE}),
    ],
)
def test_the_position_has_to_mean_what_it_meant(facts: list[PartitionFacts], severities: dict[str, Severity]) -> None:
    assert {one.name: one.severity for one in positions(facts, "g")} == severities


@pytest.mark.parametrize(
    ("unsafe", "topic"),
    [
        (fact(2, 4), "in:2"),
        (fact(2, 101), "in:2"),
        (fact(2, 50, position_metadata("another" * 3 + "x")), "in"),
    ],
)
def test_an_unsafe_position_advises_a_reset_of_its_partition_only(unsafe: PartitionFacts, topic: str) -> None:
    """Kafka's tool resets all partitions of a topic that is named alone; a recreated topic needs that."""
    (finding,) = positions([fact(0, 50), unsafe], "g")
    assert finding.setting == f"kafka-consumer-groups --reset-offsets --topic {topic}"


CHAIN = TimeoutChain(30_000, 54_000, 60_000, 900_000)


def timeouts(chain: TimeoutChain = CHAIN, **more: Any) -> dict[str, Any]:
    return explained(settings(**{"spark": SparkSettings("local[2]"), **more}), chain, 10_080)


def beside(**more: Any) -> dict[str, int | None]:
    return {one["name"]: one["ms"] for one in timeouts(**more)["beside"]}


def test_the_chain_stands_in_its_order_with_who_sets_each_and_what_happens() -> None:
    links = timeouts()["chain"]
    order = [("request", 30_000), ("delivery", 54_000), ("transaction", 60_000), ("brokers' maximum", 900_000)]
    assert [(one["name"], one["ms"]) for one in links] == order
    assert all(one["set_by"] and one["exceeded"] for one in [*links, *timeouts()["beside"]])
    assert chain_text(timeouts()) == "request 30 s < delivery 54 s < transaction 60 s < brokers' maximum 900 s: holds"


@pytest.mark.parametrize(
    ("chain", "holds"),
    [
        (CHAIN, True),
        (TimeoutChain(54_000, 54_000, 60_000, 900_000), False),
        (TimeoutChain(30_000, 54_000, 60_000, 60_000), False),
        (TimeoutChain(30_000, 54_000, 60_000, None), None),
        (TimeoutChain(60_000, 54_000, 60_000, None), False),
    ],
)
def test_a_chain_holds_only_where_each_is_less_than_the_next(chain: TimeoutChain, holds: bool | None) -> None:
    """What the brokers do not tell can't be said to hold; what is broken before it is broken."""
    assert timeouts(chain)["holds"] is holds


def test_beside_the_chain_stands_what_this_run_has() -> None:
    """By its own options: a lease with the direct reader, heartbeats with several drivers, patience of a drain."""
    alone = beside()
    assert (alone["batch"], alone["attempt"], alone["watchdog"], alone["lease"]) == (20_000, 60_000, 120_000, 10_000)
    assert (alone["position"], alone["session"]) == (604_800_000, None)
    assert "lease" not in beside(reader=Reader.CONNECTOR)
    assert "blocked patience" not in beside(follow=True)
    several = beside(stand_by=ClaimsSettings(3.0), profiles=ProfilesSettings())
    assert [several[name] for name in ("lease", "heartbeat", "take-over", "profiles")] == [6_000, 3_000, 6_000, 120_000]


@pytest.mark.parametrize(
    ("there_ms", "ahead"), [(99_999, 0.0), (100_000, 0.0), (100_400, 0.0), (100_500, 0.1), (98_999, -1.0)]
)
def test_a_clock_is_ahead_or_behind_only_outside_of_question_and_answer(there_ms: int, ahead: float) -> None:
    """The way there and back is not mistaken for a wrong clock; milliseconds are cut off there."""
    assert ahead_s(there_ms, 100.0, 100.4) == pytest.approx(ahead)


def test_a_members_client_id_does_not_control_the_terminal() -> None:
    finding = members("in", GroupFacts("stable", ("c@host", "\x1b[2J@host"), ALL))
    assert finding.value == "2: c@host, '\\x1b[2J@host'"


def test_a_further_output_has_the_checks_of_the_output() -> None:
    """Its size and partitions were not looked at: records that it refuses were only found while the run worked."""
    facts = cluster()
    late = TopicFacts("late", "id-late", 3, 3, 3, {**CONFIG, "max.message.bytes": "1000"}, ALL)
    facts = replace(facts, topics={**facts.topics, "late": late})
    found = run_checks(settings(also_output=("late",)), facts, MOST)
    warned = {(one.name, one.setting) for one in found if one.severity is WARNING}
    assert warned == {("output-message-size", "max.message.bytes of late"), ("output-partitions", "partitions of late")}


@pytest.mark.parametrize(
    ("ms", "text"),
    [(None, "-"), (0, "0 s"), (50, "0.05 s"), (54_500, "54.5 s"), (900_000, "900 s"), (2_592_000_000, "2,592,000 s")],
)
def test_a_long_timeout_keeps_its_digits(ms: int | None, text: str) -> None:
    """Offsets kept for 30 days were shown as 2.592e+06 s."""
    assert duration_text(ms) == text


def test_a_position_that_can_not_be_read_leaves_time_for_the_other_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    While a partition had no leader, or the group no coordinator, it used up all the time: each other check was unknown,
    and so "a run can start". The remedy was Read on the group, whatever the reason.
    """
    now, left = 0.0, list[float]()

    class Surveyor(Mock):
        def facts(self, _source: object, _partitions: object, deadline: Deadline, _last: object) -> NoReturn:
            nonlocal now
            now += deadline.remaining_s()
            raise DeadlineExceeded("offsets of in: no leader")

    def asked(*given: Any) -> Unknown:
        left.extend(one.remaining_s() for one in given if isinstance(one, Deadline))
        return Unknown("not allowed")

    monkeypatch.setattr(preflight, "Deadline", lambda seconds: Deadline(seconds, lambda: now))
    source = Mock(partitions=1)
    monkeypatch.setattr(preflight, "OffsetsClient", lambda _settings: Surveyor(input_topic=lambda _: source))
    for name in ("may_describe", "feature_level", "controller_ahead_s"):
        monkeypatch.setattr(preflight, name, asked)
    monkeypatch.setattr(preflight, "ClusterQueries", lambda *given: asked(*given) and Mock(answers=cluster))
    (position,) = [one for one in preflight.all_findings(settings()) if one.name == "position"]
    assert (len(left), min(left)) == (4, 20)
    assert (position.why, position.setting) == ("offsets of in: no leader", "leaders of in, and Read on group g")
