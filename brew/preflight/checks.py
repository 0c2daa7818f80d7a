"""All checks of a cluster before a run; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from brew.cluster import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterFacts, GroupFacts, TopicFacts, Unknown
from brew.deadline import delivery_ms
from brew.errors import Refused
from brew.names import READ_COMMITTED, quantity
from brew.planner import PartitionFacts, check, position_metadata
from brew.preflight import ROLES, Finding, Severity, timeouts
from brew.preflight.timeouts import TimeoutChain
from brew.settings import PipelineSettings, Reader

VERIFICATION = "transaction.partition.verification.enable"
_KIP_890 = 2


def brokers_agree(facts: ClusterFacts, settings: frozenset[str]) -> Finding:
    """Check that every broker has the same ``settings``; where they differ, the other checks use the lowest value."""
    values_by_broker = facts.config
    setting, why = "these settings of each broker", "the result does not depend on the broker that was asked"
    good = Finding("brokers-alike", "", "the same on every broker", setting, why, Severity.OK)
    if isinstance(values_by_broker, Unknown):
        why = f"the brokers did not report them ({values_by_broker.reason}); grant DescribeConfigs on the cluster"
        return replace(good, value="?", why=why, severity=Severity.UNKNOWN)
    apart = [words for name in sorted(settings) if (words := _apart(name, values_by_broker))]
    if apart:
        why = "the value of the broker that leads or coordinates applies; the checks use the lowest one"
        return replace(good, value="; ".join(apart), why=why, severity=Severity.WARNING)
    if isinstance(facts.brokers, int) and len(values_by_broker) < facts.brokers:
        value = f"{len(values_by_broker)} of {facts.brokers} brokers"
        return replace(good, value=value, why="the other brokers did not report them", severity=Severity.UNKNOWN)
    return replace(good, value=f"{len(values_by_broker)} brokers" if len(values_by_broker) > 1 else "1 broker")


def _apart(name: str, values_by_broker: Mapping[int, Mapping[str, str]]) -> str:
    """Return which broker has which value of a setting; empty if all have the same."""
    having: dict[str, list[int]] = defaultdict(list)
    for broker, config in sorted(values_by_broker.items()):
        if name in config:
            having[config[name]].append(broker)
    if len(having) < 2:  # noqa: PLR2004 - it takes two values to differ
        return ""
    return f"{name} is " + ", ".join(f"{value} on {' '.join(map(str, who))}" for value, who in sorted(having.items()))


def verification(facts: ClusterFacts) -> Finding:
    """Check that brokers verify with the coordinator before they add a record to a transaction."""
    verifying = facts.texts(VERIFICATION)
    severity, why = Severity.OK, "a delayed record can't open a hanging transaction"
    if not verifying:
        severity = Severity.UNKNOWN
        why = (
            "not reported; before Kafka 3.6 a delayed record can open a hanging transaction, which `brew doctor` finds"
        )
    elif verifying != {"true"}:
        severity = Severity.WARNING
        why = "a delayed record can open a hanging transaction (KIP-890), which `brew doctor` finds"
    value = ", ".join(sorted(verifying)) or "?"
    return Finding("transaction-verification", value, "true", f"the brokers' {VERIFICATION}", why, severity)


def transaction_version(level: int | Unknown) -> Finding:
    """Check the cluster's level of the feature `transaction.version`; 2 bumps the epoch per transaction (KIP-890)."""
    setting, value = "kafka-features.sh upgrade --feature transaction.version=2", str(level)
    severity = Severity.OK
    why = "producers that support it take a new epoch for each transaction, as this pipeline's own always do"
    if isinstance(level, Unknown):
        value, severity, why = "?", Severity.UNKNOWN, f"the brokers did not report it ({level.reason})"
    elif level < _KIP_890:
        severity = Severity.WARNING
        why = (
            "a delayed commit of an upstream producer can commit its next transaction, even if it aborts that one; "
            "this pipeline's own producers take a new epoch for each transaction"
        )
    return Finding("transaction-version", value, f"at least {_KIP_890}", setting, why, severity)


_ENOUGH = 3
_MIN_ISR = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"
_CLEANUP = "cleanup.policy"
_UNTOLD = "the brokers did not report it; grant DescribeConfigs on the topic"


def _worst(role: str) -> Severity:
    """Return the severity of what may lose records; on the input, for which its writers are responsible, a warning."""
    return Severity.WARNING if role == "input" else Severity.UNSAFE


def _replication(role: str, topic: TopicFacts, brokers: int | None) -> Finding:
    need = _ENOUGH if brokers is None else min(_ENOUGH, brokers)
    why, severity = "no acknowledged record is lost if one broker is lost", Severity.OK
    if topic.replicas < need:
        lost = "there is only one copy" if topic.replicas == 1 else "there are only two copies"
        severity = _worst(role) if topic.replicas == 1 else Severity.WARNING
        why = f"{lost}: if a broker is lost for good, acknowledged records or offsets can be lost with it"
    elif topic.replicas < _ENOUGH:
        severity = Severity.WARNING
        why = f"{quantity(brokers or 0, 'broker')} can't hold more replicas; use at least {_ENOUGH} brokers"
    setting = f"replicas of {topic.name} (kafka-reassign-partitions.sh)"
    return Finding(f"{role}-replication", str(topic.replicas), f"{_ENOUGH}", setting, why, severity)


def _min_isr(role: str, topic: TopicFacts) -> Finding:
    count = topic.number(_MIN_ISR)
    need = "1" if topic.replicas == 1 else f"2 to {max(2, topic.replicas - 1)}"
    severity, value, setting = Severity.WARNING, "?" if count is None else str(count), f"{_MIN_ISR} of {topic.name}"
    if count is None:
        severity, why = Severity.UNKNOWN, _UNTOLD
    elif count > topic.replicas:
        severity, why = _worst(role), f"no record can be acknowledged with only {quantity(topic.replicas, 'replica')}"
    elif topic.in_sync < count:
        why = f"writes fail now: only {topic.in_sync} of {topic.replicas} replicas are in sync"
    elif topic.replicas > 1 and count == 1:
        why = "a record is acknowledged once one broker has it, and is lost with that broker"
    elif topic.replicas > 1 and count == topic.replicas:
        why = "all writes fail while one broker is down"
    else:
        severity, why = Severity.OK, "acknowledged records are on at least that many brokers"
    return Finding(f"{role}-min-isr", value, need, setting, why, severity)


def _unclean(role: str, topic: TopicFacts) -> Finding:
    value = topic.text(_UNCLEAN)
    if value is None:
        severity, why = Severity.UNKNOWN, _UNTOLD
    elif value == "true" and topic.replicas > 1:
        severity = _worst(role)
        why = "an out-of-sync replica may become leader: acknowledged records and committed transactions are lost"
    else:
        severity, why = Severity.OK, "only an in-sync replica becomes leader"
    return Finding(f"{role}-unclean-election", value or "?", "false", f"{_UNCLEAN} of {topic.name}", why, severity)


_COMPACTED = {
    "input": "compaction may remove a record before it is read",
    "output": "compaction removes delivered records: all but the last one of a key",
    "dead-letter": "a compacted topic refuses records without a key, and keeps only the last one of a key",
}


def _cleanup(role: str, topic: TopicFacts) -> Finding:
    policy = topic.text(_CLEANUP)
    if policy is None:
        severity, why = Severity.UNKNOWN, _UNTOLD
    elif "compact" in policy:
        severity, why = _worst(role), _COMPACTED[role]
    else:
        severity, why = Severity.OK, "records are deleted by age or size only"
    return Finding(f"{role}-cleanup", policy or "?", "delete", f"{_CLEANUP} of {topic.name}", why, severity)


_TOPIC_NEEDS = {
    "input": frozenset({"READ"}),
    "output": frozenset({"WRITE", "DESCRIBE_CONFIGS"}),
    "dead-letter": frozenset({"WRITE", "DESCRIBE_CONFIGS"}),
}
_MOST_NAMED = 3


def transactional_id(group: str, allowed: bool | Unknown) -> Finding:
    """Check the rights on our ids; ``allowed``: whether this client may describe one, which Write implies."""
    name, setting = "transactional-id-access", f"ACLs of this principal on transactional ids {group}:* (prefixed)"
    if isinstance(allowed, Unknown):
        value, severity = "?", Severity.UNKNOWN
        why = f"the brokers did not report it ({allowed.reason}); without the right, the first fence fails"
    elif allowed:
        value, severity = "DESCRIBE", Severity.OK
        why = "Write implies Describe, which is granted; without Write, the first fence fails"
    else:
        value, severity, why = "none", Severity.UNSAFE, "WRITE is not granted: no transaction can begin"
    return Finding(name, value, "WRITE", setting, why, severity)


def _access(name: str, resource: str, needed: frozenset[str], access: frozenset[str] | None) -> Finding:
    need, setting = ", ".join(sorted(needed)), f"ACLs of this principal on {resource} (kafka-acls.sh)"
    severity, why = Severity.OK, "the rights that a run needs are granted"
    if access is None:
        why = "the brokers did not report this client's rights; without them, the run fails later"
        return Finding(name, "?", need, setting, why, Severity.UNKNOWN)
    if missing := sorted(needed - access):
        severity, why = Severity.UNSAFE, f"{', '.join(missing)} is not granted: the run would fail later"
    return Finding(name, ", ".join(sorted(access & needed)) or "none", need, setting, why, severity)


def members(name: str, membership: GroupFacts | Unknown) -> Finding:
    setting = f"group.id of the consumers that use {name}, or --group"
    if isinstance(membership, Unknown):
        why = f"the brokers did not report them: {membership.reason}"
        return Finding("group-members", "?", "none", setting, why, Severity.UNKNOWN)
    if not membership.members:
        why = "only this pipeline commits offsets"
        return Finding("group-members", "none", "none", setting, why, Severity.OK)
    # A client chooses its id, which may have characters that control the terminal.
    first = [one if one.isprintable() else repr(one) for one in membership.members[:_MOST_NAMED]]
    named = ", ".join(first) + (" ..." if len(membership.members) > _MOST_NAMED else "")
    why = "a member commits its own offsets in this group: records would be skipped or duplicated"
    return Finding("group-members", f"{len(membership.members)}: {named}", "none", setting, why, Severity.UNSAFE)


_OUTPUT_ROOM = 16_384
_DEAD_LETTER_ROOM = 4096
"""For the headers that say why a record was rejected, and where it came from."""
_MOST_COPIES = 3
_REQUEST_MS = 30_000  # librdkafka's default for request.timeout.ms, which --client-config may not set
_MAX_BYTES = "max.message.bytes"
_MADE_WITH = {  # broker settings with which brokers create their internal topics at first use
    "transactions": ("transaction.state.log.replication.factor", "transaction.state.log.min.isr"),
    "offsets": ("offsets.topic.replication.factor", _MIN_ISR),
}
_BROKERS = frozenset(
    {
        timeouts.MAX_TRANSACTION_MS,
        timeouts.OFFSETS_RETENTION_MIN,
        VERIFICATION,
        _MIN_ISR,
        _UNCLEAN,
        *(setting for settings in _MADE_WITH.values() for setting in settings),
    }
)
"""Broker settings that the checks read."""


def roles(settings: PipelineSettings) -> dict[str, str]:
    topics = (settings.input, settings.output, settings.dead_letter, TRANSACTIONS_TOPIC, OFFSETS_TOPIC)
    return dict(zip(ROLES, topics, strict=True))


def topics_of(settings: PipelineSettings) -> list[str]:
    return [*roles(settings).values(), *settings.also_output]


def run_checks(settings: PipelineSettings, facts: ClusterFacts, message_max_bytes: int) -> list[Finding]:
    """Run every check that does not need the position; ``message_max_bytes`` is our own producer's limit."""
    findings: list[Finding] = []
    known: defaultdict[str, list[TopicFacts]] = defaultdict(list)  # by role; several outputs
    count = facts.brokers if isinstance(facts.brokers, int) else None
    for role, name in [*roles(settings).items(), *(("output", name) for name in settings.also_output)]:
        described = facts.topics.get(name)
        topic = _as_it_will_be(role, name, facts) if described is None else described
        if isinstance(topic, Unknown):
            severity = Severity.UNSAFE if role == "input" and described is None else Severity.UNKNOWN
            findings.append(Finding(f"{role}-replication", "?", "3", f"replicas of {name}", topic.reason, severity))
            continue
        findings += [_replication(role, topic, count), _min_isr(role, topic), _unclean(role, topic)]
        if role in _COMPACTED:
            findings.append(_cleanup(role, topic))
        if described is not None and role in ROLES[:3]:
            known[role].append(topic)
            findings.append(_access(f"{role}-access", f"topic {name}", _TOPIC_NEEDS[role], topic.operations))
    findings += _sizes(settings, known, message_max_bytes)
    findings += timeouts.check_chain(chain_of(settings, facts))
    transaction_bytes = settings.direct.transaction_bytes if settings.reader is Reader.DIRECT else None
    timeout_ms = int(settings.transaction_timeout_s * 1000)
    why = "aborted records are never read; no setting changes that (--client-config refuses it)"
    operations = None if isinstance(facts.group, Unknown) else facts.group.operations
    return [
        *findings,
        timeouts.size(settings.max_records_per_transaction, transaction_bytes, timeout_ms),
        timeouts.retention(facts.number(timeouts.OFFSETS_RETENTION_MIN)),
        verification(facts),
        brokers_agree(facts, _BROKERS),
        # No setting changes it; listed for completeness.
        Finding("isolation-level", READ_COMMITTED, READ_COMMITTED, "isolation.level", why, Severity.OK),
        members(settings.group, facts.group),
        _access("group-access", f"group {settings.group}", frozenset({"READ"}), operations),
    ]


def positions(facts: Iterable[PartitionFacts], group: str) -> Iterator[Finding]:
    """Check that the group's position is still valid; if it is not, a run refuses even without this check."""
    seen = list(facts)
    moved = "kafka-consumer-groups --reset-offsets"
    for fact in seen:
        try:
            check(fact, group)
        except Refused as error:
            kind, _, why = str(error).partition(": ")
            position = "none" if fact.committed is None else str(fact.committed.offset)
            recreated = kind == "topic-recreated"
            need = f"topic id {fact.topic_id}" if recreated else f"{fact.log.first} to {fact.log.end}"
            name = "topic-identity" if recreated else "position"
            where = fact.topic if recreated else f"{fact.topic}:{fact.partition}"
            found, setting = f"{position} in partition {fact.partition}", f"{moved} --topic {where}"
            yield Finding(name, found, need, setting, why, Severity.UNSAFE)
            return
    begun = [fact for fact in seen if fact.committed is not None]
    text = f"{len(begun)} of {len(seen)} partitions"
    yield Finding("position", text, "within the log", moved, "no record was lost before it was read", Severity.OK)
    named = [f for f in begun if f.committed is not None and f.committed.metadata == position_metadata(f.topic_id)]
    known = len(named) == len(begun)
    why = "a topic that is deleted and recreated is detected"
    if not known:
        why = "an offset committed by hand has no topic id: until the next commit, a recreated topic is not detected"
    value = f"{len(named)} of {len(begun)} positions"
    severity = Severity.OK if known else Severity.UNKNOWN
    yield Finding("topic-identity", value, "the topic id beside each committed offset", moved, why, severity)


def _as_it_will_be(role: str, name: str, facts: ClusterFacts) -> TopicFacts | Unknown:
    """Return a topic that does not exist yet, with the settings that it will be created with."""
    if role == "input":
        return Unknown(
            "there is no such topic; create it (`brew topics`, `make topic-create-all`), or set --input to another"
        )
    if role in _MADE_WITH:
        copies, needed = (facts.number(setting) for setting in _MADE_WITH[role])
    else:
        count = facts.brokers if isinstance(facts.brokers, int) else None
        copies, needed = None if count is None else min(_MOST_COPIES, count), facts.number(_MIN_ISR)
    if copies is None or isinstance(facts.config, Unknown):
        return Unknown("it is created at first use, with settings that the brokers did not report")
    config = {
        _MIN_ISR: "?" if needed is None else str(needed),
        _UNCLEAN: "true" if "true" in facts.texts(_UNCLEAN) else "false",
        _CLEANUP: "delete",
    }
    return TopicFacts(name, "", 0, copies, copies, config)


def chain_of(settings: PipelineSettings, facts: ClusterFacts) -> TimeoutChain:
    """Return the timeouts of these settings, and the brokers' maximum."""
    timeout_s = settings.transaction_timeout_s
    broker_ms = facts.number(timeouts.MAX_TRANSACTION_MS)
    return TimeoutChain(_REQUEST_MS, delivery_ms(timeout_s), int(timeout_s * 1000), broker_ms)


def _sizes(settings: PipelineSettings, known: Mapping[str, list[TopicFacts]], most: int) -> Iterator[Finding]:
    sources, outputs, dead_letters = (known.get(role, []) for role in ROLES[:3])
    largest = sources[0].number(_MAX_BYTES) if sources else None
    if largest is None:
        return
    wanted = min(largest, settings.limits.max_bytes)
    for output in outputs:
        more = f"enrichment and headers add up to {_OUTPUT_ROOM} bytes"
        yield _size("output", output, wanted + _OUTPUT_ROOM, (more, "records close to the limit are rejected instead"))
    for dead in dead_letters:
        fits = "every rejected record fits, with value and headers; a long message of the rejection is cut"
        left_out = "the value or the headers of a larger record are left out of its dead letter; they stay in the input"
        yield _size("dead-letter", dead, largest + _DEAD_LETTER_ROOM, (fits, left_out))
    value, need, setting = f"{most} bytes", f"at least {largest} bytes", f"{_MAX_BYTES} of {settings.input}"
    severity, reason = Severity.OK, "the pipeline's producer accepts all records of the input"
    if largest > most:
        severity, reason = Severity.WARNING, "the pipeline's producer refuses records that the input accepts"
    yield Finding("producer-message-size", value, need, setting, reason, severity)
    for output in outputs:
        value, need, setting = str(output.partitions), str(sources[0].partitions), f"partitions of {output.name}"
        severity, reason = Severity.OK, "a crash in one input partition holds back only one output partition"
        if value != need:
            severity = Severity.WARNING
            reason = "keys choose the partition: a crash in one input partition can hold back all output partitions"
        yield Finding("output-partitions", value, need, setting, reason, severity)


def _size(role: str, topic: TopicFacts, need: int, why: tuple[str, str]) -> Finding:
    size = topic.number(_MAX_BYTES)
    severity = Severity.UNKNOWN if size is None else Severity.OK if size >= need else Severity.WARNING
    reason = _UNTOLD if size is None else why[size < need]
    value = "?" if size is None else f"{size} bytes"
    setting = f"{_MAX_BYTES} of {topic.name}"
    return Finding(f"{role}-message-size", value, f"at least {need} bytes", setting, reason, severity)
