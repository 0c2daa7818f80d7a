"""Checks of a cluster before a run: storage, rights, positions, time-outs, clocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from brew.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterFacts, GroupFacts, TopicFacts, Unknown
from brew.connection import Connection
from brew.deadline import delivery_ms
from brew.errors import Refused, UsageError
from brew.kafka import clients
from brew.kafka.cluster import ahead_s
from brew.offsets import Committed, LogOffsets
from brew.planner import PartitionFacts, position_metadata
from brew.preflight import NAMES, POSITION_NAMES, Finding, Severity, allowed, enforce
from brew.preflight.checks import positions, run_checks, transaction_version
from brew.preflight.timeouts import TimeoutChain, chain_text, check_chain, explained, skew
from brew.settings import ClaimsSettings, DirectSettings, PipelineSettings, ProfilesSettings, Reader, SparkSettings

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
ROLES = {
    "input": "in",
    "output": "out",
    "dead-letter": "dead",
    "transactions": TRANSACTIONS_TOPIC,
    "offsets": OFFSETS_TOPIC,
}
Change = Callable[[ClusterFacts], ClusterFacts]


def settings(**more: Any) -> PipelineSettings:
    return PipelineSettings(Connection("k:9092"), "in", "out", "dead", "g", **more)


def topic(name: str, **config: str) -> TopicFacts:
    return TopicFacts(name, f"id-{name}", 4, 3, 3, CONFIG | config, ALL)


def cluster() -> ClusterFacts:
    """Three brokers on which nothing is wrong."""
    return ClusterFacts(
        3,
        dict.fromkeys((1, 2, 3), BROKER),
        GroupFacts("empty", (), ALL),
        {name: topic(name) for name in ROLES.values()},
    )


def on(role: str, config: Mapping[str, str] | None = None, **facts: Any) -> Change:
    """The cluster with one topic changed."""

    def change(found: ClusterFacts) -> ClusterFacts:
        old = found.topics[ROLES[role]]
        assert isinstance(old, TopicFacts)
        assert not isinstance(old.config, Unknown)
        new = replace(old, **{"config": {**old.config, **(config or {})}, **facts})
        return replace(found, topics={**found.topics, ROLES[role]: new})

    return change


def brokers(**config: str) -> Change:
    """One of them has other settings; it is neither the first nor the last."""
    other = {**BROKER, **{n.replace("_", "."): v for n, v in config.items()}}
    return lambda found: replace(found, config={1: BROKER, 2: other, 3: BROKER})


def without(role: str, told: Unknown | None = None) -> Change:
    return lambda found: replace(found, topics={**found.topics, ROLES[role]: told})


def found(facts: ClusterFacts, given: PipelineSettings | None = None) -> dict[str, Finding]:
    return {one.name: one for one in run_checks(given or settings(), facts, MOST)}


def one_broker(facts: ClusterFacts) -> ClusterFacts:
    """As the sandbox is: a single copy of everything."""
    for role in ROLES:
        facts = on(role, {"min.insync.replicas": "1"}, replicas=1, in_sync=1)(facts)
    return replace(facts, brokers=1)


def test_nothing_is_wrong_with_a_good_cluster() -> None:
    """Every check is there, and all are green; Kafka's defaults and ours make a chain of time-outs."""
    told = found(cluster())
    assert {one.severity for one in told.values()} == {Severity.OK}
    assert set(told) == set(NAMES)
    values = [int(told[f"{name}-timeout"].value.split()[0]) for name in ("request", "delivery", "transaction")]
    assert values == sorted({*values})
    assert values[-1] < 900_000, "the brokers' maximum"


def test_a_cluster_of_one_broker_is_warned_of_and_not_refused() -> None:
    """The demo's sandbox can't do better."""
    told = found(one_broker(cluster()))
    assert {told[f"{role}-replication"].severity for role in ROLES} == {Severity.WARNING}
    assert "can't hold more replicas" in told["output-replication"].why
    assert enforce(told.values(), frozenset()) == ()


RED: list[tuple[str, Severity, Change]] = [
    ("output-replication", Severity.UNSAFE, on("output", {"min.insync.replicas": "1"}, replicas=1, in_sync=1)),
    ("output-replication", Severity.WARNING, on("output", {"min.insync.replicas": "1"}, replicas=2, in_sync=2)),
    ("input-replication", Severity.WARNING, on("input", {"min.insync.replicas": "1"}, replicas=1, in_sync=1)),
    ("transactions-replication", Severity.UNSAFE, on("transactions", {"min.insync.replicas": "1"}, replicas=1)),
    ("offsets-replication", Severity.UNSAFE, on("offsets", {"min.insync.replicas": "1"}, replicas=1)),
    ("output-replication", Severity.UNKNOWN, without("output", Unknown("not allowed"))),
    ("input-replication", Severity.UNSAFE, without("input")),
    ("output-min-isr", Severity.UNSAFE, on("output", {"min.insync.replicas": "4"})),
    ("input-min-isr", Severity.WARNING, on("input", {"min.insync.replicas": "4"})),
    ("dead-letter-min-isr", Severity.WARNING, on("dead-letter", {"min.insync.replicas": "1"})),
    ("dead-letter-min-isr", Severity.WARNING, on("dead-letter", {"min.insync.replicas": "3"})),
    ("output-min-isr", Severity.WARNING, on("output", in_sync=1)),
    ("output-min-isr", Severity.UNKNOWN, on("output", {"min.insync.replicas": "?"})),
    ("output-unclean-election", Severity.UNSAFE, on("output", {"unclean.leader.election.enable": "true"})),
    ("input-unclean-election", Severity.WARNING, on("input", {"unclean.leader.election.enable": "true"})),
    ("output-cleanup", Severity.UNSAFE, on("output", {"cleanup.policy": "compact,delete"})),
    ("input-cleanup", Severity.WARNING, on("input", {"cleanup.policy": "compact"})),
    ("output-access", Severity.UNSAFE, on("output", operations=frozenset({"READ"}))),
    ("input-access", Severity.UNSAFE, on("input", operations=frozenset({"WRITE"}))),
    ("input-access", Severity.UNKNOWN, on("input", operations=None)),
    ("output-message-size", Severity.WARNING, on("output", {"max.message.bytes": "1000000"})),
    ("dead-letter-message-size", Severity.WARNING, on("dead-letter", {"max.message.bytes": "1048587"})),
    ("producer-message-size", Severity.WARNING, on("input", {"max.message.bytes": str(MOST + 1)})),
    ("output-partitions", Severity.WARNING, on("output", partitions=3)),
    ("transaction-timeout", Severity.UNSAFE, brokers(transaction_max_timeout_ms="59999")),
    ("transaction-timeout", Severity.WARNING, brokers(transaction_max_timeout_ms="60000")),
    ("transaction-timeout", Severity.UNKNOWN, lambda facts: replace(facts, config=Unknown("not allowed"))),
    ("offsets-retention", Severity.WARNING, brokers(offsets_retention_minutes="10079")),
    ("offsets-retention", Severity.UNKNOWN, lambda facts: replace(facts, config=Unknown("not allowed"))),
    ("transaction-verification", Severity.WARNING, brokers(transaction_partition_verification_enable="false")),
    ("transaction-verification", Severity.UNKNOWN, lambda facts: replace(facts, config={1: {}})),
    ("brokers-alike", Severity.WARNING, brokers(transaction_max_timeout_ms="900001")),
    ("brokers-alike", Severity.WARNING, brokers(min_insync_replicas="1")),
    ("brokers-alike", Severity.OK, brokers(log_dirs="/b")),
    ("brokers-alike", Severity.UNKNOWN, lambda facts: replace(facts, config={1: BROKER, 3: BROKER})),
    ("brokers-alike", Severity.UNKNOWN, lambda facts: replace(facts, config=Unknown("not allowed"))),
    ("group-members", Severity.UNSAFE, lambda facts: replace(facts, group=GroupFacts("stable", ("c@host",), ALL))),
    ("group-members", Severity.UNKNOWN, lambda facts: replace(facts, group=Unknown("not allowed"))),
    ("group-access", Severity.UNSAFE, lambda facts: replace(facts, group=GroupFacts("empty", (), frozenset()))),
]


@pytest.mark.parametrize(("name", "severity", "change"), RED)
def test_what_is_wrong_is_found_by_its_name(name: str, severity: Severity, change: Change) -> None:
    """And says what is needed, which setting to change, and why."""
    told = found(change(cluster()))[name]
    assert told.severity is severity
    assert all((told.need, told.setting, told.why))


GIVEN: list[tuple[str, Severity, PipelineSettings]] = [
    ("transaction-timeout", Severity.OK, settings(transaction_timeout_s=899.999)),
    ("transaction-timeout", Severity.WARNING, settings(transaction_timeout_s=900)),
    ("request-timeout", Severity.WARNING, settings(transaction_timeout_s=33.333)),
    ("request-timeout", Severity.OK, settings(transaction_timeout_s=33.335)),
    ("transaction-size", Severity.OK, settings(reader=Reader.CONNECTOR, max_records_per_transaction=1_000_000)),
    ("transaction-size", Severity.WARNING, settings(reader=Reader.CONNECTOR, max_records_per_transaction=1_000_001)),
    (
        "transaction-size",
        Severity.WARNING,
        settings(reader=Reader.DIRECT, direct=DirectSettings(transaction_bytes=400_000_001)),
    ),
    ("transaction-size", Severity.OK, settings(reader=Reader.DIRECT, max_records_per_transaction=10_000_000)),
]


@pytest.mark.parametrize(("name", "severity", "given"), GIVEN)
def test_the_runs_own_settings_are_checked_at_their_edges(
    name: str, severity: Severity, given: PipelineSettings
) -> None:
    """The last good value and the first bad one."""
    assert found(cluster(), given)[name].severity is severity


LINKS: list[tuple[str, Severity, TimeoutChain]] = [
    ("request-timeout", Severity.OK, TimeoutChain(9, 10, 20, 30)),
    ("request-timeout", Severity.WARNING, TimeoutChain(10, 10, 20, 30)),
    ("delivery-timeout", Severity.OK, TimeoutChain(5, 19, 20, 30)),
    ("delivery-timeout", Severity.WARNING, TimeoutChain(5, 20, 20, 30)),
    ("delivery-timeout", Severity.UNSAFE, TimeoutChain(5, 21, 20, 30)),
    ("transaction-timeout", Severity.OK, TimeoutChain(5, 10, 29, 30)),
    ("transaction-timeout", Severity.WARNING, TimeoutChain(5, 10, 30, 30)),
    ("transaction-timeout", Severity.UNSAFE, TimeoutChain(5, 10, 31, 30)),
]


@pytest.mark.parametrize(("name", "severity", "links"), LINKS)
def test_each_link_of_the_chain_is_shorter_than_the_next(name: str, severity: Severity, links: TimeoutChain) -> None:
    """The last good value, the one that just works, and the first bad one."""
    told = {one.name: one for one in check_chain(links)}
    assert told[name].severity is severity
    assert {one.severity for other, one in told.items() if other != name} == {Severity.OK}


def test_the_writers_own_time_out_is_the_one_that_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client library is told; an idempotent writer without a transaction has all of its time."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(clients, "Producer", told.append)
    for name in ("g:in:0", None):
        clients.producer(Connection("k:9092"), name, timeout_s=60.0, message_max_bytes=MOST)
    assert [one["message.timeout.ms"] for one in told] == [delivery_ms(60.0), 60_000]
    assert told[0]["message.timeout.ms"] < told[0]["transaction.timeout.ms"]


def test_brokers_that_differ_are_named_with_what_each_has() -> None:
    """Whoever mends it has to know where."""
    told = found(brokers(transaction_max_timeout_ms="120000")(cluster()))
    assert told["brokers-alike"].value == "transaction.max.timeout.ms is 120000 on 2, 900000 on 1 3"
    assert told["transaction-timeout"].need == "less than 120000 ms"


@pytest.mark.parametrize(
    ("check", "told", "severity"),
    [
        *((transaction_version, version, Severity.OK) for version in (2, 3)),
        *((transaction_version, version, Severity.WARNING) for version in (1, 0)),
        *((skew, ahead, Severity.OK) for ahead in (0.0, 1.0, -1.0)),
        *((skew, ahead, Severity.WARNING) for ahead in (1.001, -1.001)),
        *((check, Unknown("old"), Severity.UNKNOWN) for check in (transaction_version, skew)),
    ],
)
def test_brokers_that_let_late_commits_through_or_whose_clocks_differ_are_warned_of(
    check: Callable[[Any], Finding], told: object, severity: Severity
) -> None:
    """KIP-890's second part came with `transaction.version` 2; clocks make ages wrong, and nothing comes twice."""
    assert check(told).severity is severity
    assert ("ahead" in skew(75.0).value, "behind" in skew(-75.0).value) == (True, True)


def test_topics_that_are_not_there_yet_are_judged_by_what_they_will_be_made_with() -> None:
    """Kafka makes its own logs at first use, the pipeline makes its own topics."""
    facts = without("output")(without("offsets")(without("transactions")(cluster())))
    assert {one.severity for one in run_checks(settings(), facts, MOST)} == {Severity.OK}
    poor = brokers(transaction_state_log_replication_factor="1")(facts)
    assert found(poor)["transactions-replication"].severity is Severity.UNSAFE
    assert found(replace(facts, config=Unknown("no")))["offsets-replication"].severity is Severity.UNKNOWN


def test_a_run_refuses_what_is_unsafe_and_says_how_to_go_on() -> None:
    """By names, one of which is not enough for two."""
    facts = on("output", {"cleanup.policy": "compact"})(on("output", {"min.insync.replicas": "4"})(cluster()))
    told = run_checks(settings(), facts, MOST)
    with pytest.raises(Refused, match="--allow output-min-isr --allow output-cleanup"):
        enforce(told, frozenset())
    with pytest.raises(Refused, match=r"output-cleanup is compact.*with --allow output-cleanup \("):
        enforce(told, frozenset({"output-min-isr"}))
    notes = enforce(told, frozenset({"output-min-isr", "output-cleanup", "group-members"}))
    assert [note.split()[3] for note in notes] == ["output-min-isr", "output-cleanup"]


def test_only_names_of_checks_are_allowed() -> None:
    """A typo must not pass for an override."""
    assert allowed(["output-cleanup"]) == {"output-cleanup"}
    for wrong in ("output-clean", *POSITION_NAMES):
        with pytest.raises(UsageError, match=f"'{wrong}'"):
            allowed(["output-cleanup", wrong])


def fact(partition: int, offset: int | None, metadata: str = position_metadata("id-in")) -> PartitionFacts:
    at = None if offset is None else Committed(offset, metadata)
    return PartitionFacts("in", partition, "id-in", at, LogOffsets(5, 90, 100))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ([fact(0, 5), fact(1, None)], {"position": Severity.OK, "topic-identity": Severity.OK}),
        ([fact(0, 50, "")], {"position": Severity.OK, "topic-identity": Severity.UNKNOWN}),
        ([fact(0, 4)], {"position": Severity.UNSAFE}),
        ([fact(0, 101)], {"position": Severity.UNSAFE}),
        ([fact(0, 50, position_metadata("another" * 3 + "x"))], {"topic-identity": Severity.UNSAFE}),
    ],
)
def test_the_position_has_to_mean_what_it_meant(facts: list[PartitionFacts], told: dict[str, Severity]) -> None:
    """Inside the log, of the topic that it was committed for."""
    assert {one.name: one.severity for one in positions(facts, "g")} == told


CHAIN = TimeoutChain(30_000, 54_000, 60_000, 900_000)


def told(found: TimeoutChain = CHAIN, **more: Any) -> dict[str, Any]:
    return explained(settings(**{"spark": SparkSettings("local[2]"), **more}), found, 10_080)


def beside(**more: Any) -> dict[str, int | None]:
    return {one["name"]: one["ms"] for one in told(**more)["beside"]}


def test_the_chain_stands_in_its_order_with_who_sets_each_and_what_happens() -> None:
    """`request < delivery < transaction < the brokers' maximum`."""
    links = told()["chain"]
    assert [(one["name"], one["ms"]) for one in links] == [
        ("request", 30_000),
        ("delivery", 54_000),
        ("transaction", 60_000),
        ("brokers' maximum", 900_000),
    ]
    assert all(one["set_by"] and one["exceeded"] for one in [*links, *told()["beside"]])
    assert chain_text(told()) == ("request 30 s < delivery 54 s < transaction 60 s < brokers' maximum 900 s: holds")


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (CHAIN, True),
        (TimeoutChain(54_000, 54_000, 60_000, 900_000), False),
        (TimeoutChain(30_000, 54_000, 60_000, 60_000), False),
        (TimeoutChain(30_000, 54_000, 60_000, None), None),
        (TimeoutChain(60_000, 54_000, 60_000, None), False),
    ],
)
def test_a_chain_holds_only_where_each_is_less_than_the_next(found: TimeoutChain, holds: bool | None) -> None:
    """What the brokers do not tell can't be said to hold; what is broken before it is broken."""
    assert told(found)["holds"] is holds


def test_beside_the_chain_stands_what_this_run_has() -> None:
    """By its own options: a lease with the direct reader, heartbeats with several drivers, patience of a drain."""
    alone = beside()
    assert (alone["batch"], alone["attempt"], alone["watchdog"], alone["lease"]) == (20_000, 60_000, 120_000, 10_000)
    assert (alone["position"], alone["session"]) == (604_800_000, None)
    assert "lease" not in beside(reader=Reader.CONNECTOR)
    assert "blocked patience" not in beside(follow=True)
    several = beside(stand_by=ClaimsSettings(3.0), profiles=ProfilesSettings())
    assert [several[name] for name in ("lease", "heartbeat", "take-over", "profiles")] == [6_000, 3_000, 6_000, 120_000]


def test_who_set_the_request_time_out_is_told() -> None:
    """A file of client settings, or the library's default."""
    given = replace(settings(), connection=Connection("k:9092", {"request.timeout.ms": "10000"}))
    by = [explained(one, CHAIN, None)["chain"][0]["set_by"] for one in (given, settings())]
    assert ("--client-config" in by[0], "default" in by[1]) == (True, True)


@pytest.mark.parametrize(
    ("there_ms", "told"), [(99_999, 0.0), (100_000, 0.0), (100_400, 0.0), (100_500, 0.1), (98_999, -1.0)]
)
def test_a_clock_is_ahead_or_behind_only_outside_of_question_and_answer(there_ms: int, told: float) -> None:
    """The way there and back is not mistaken for a wrong clock; milliseconds are cut off there."""
    assert ahead_s(there_ms, 100.0, 100.4) == pytest.approx(told)
