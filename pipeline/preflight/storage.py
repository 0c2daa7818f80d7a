"""Whether what was acknowledged stays: replicas, replicas in sync, elections, and what compaction removes; pure."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.preflight.finding import Finding, Severity
from protocol.cluster import TopicFacts

_ENOUGH = 3
_MIN_ISR = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"
_CLEANUP = "cleanup.policy"


def storage(role: str, topic: TopicFacts, brokers: int | None) -> Iterator[Finding]:
    """
    The checks of one topic; ``brokers`` is None where nobody tells how many there are.

    What the input loses is lost by those who write it: a warning. What is ours is unsafe.
    """
    yield _replication(role, topic, brokers)
    yield _min_isr(role, topic)
    yield _unclean(role, topic)
    if role in _COMPACTED:
        yield _cleanup(role, topic)


def _worst(role: str) -> Severity:
    return Severity.WARNING if role == "input" else Severity.UNSAFE


def _replication(role: str, topic: TopicFacts, brokers: int | None) -> Finding:
    need = _ENOUGH if brokers is None else min(_ENOUGH, brokers)
    why, severity = "a broker that is lost for good takes no acknowledged record with it", Severity.OK
    if topic.replicas < need:
        lost = "its disk is the only copy" if topic.replicas == 1 else "two disks hold all there is"
        severity = _worst(role) if topic.replicas == 1 else Severity.WARNING
        why = f"{lost}: a broker that is lost for good takes acknowledged records, or their offsets, with it"
    elif topic.replicas < _ENOUGH:
        severity = Severity.WARNING
        why = f"a cluster of {brokers} can't do better, and loses what its disks lose; use three brokers"
    setting = f"replicas of {topic.name} (kafka-reassign-partitions.sh)"
    return Finding(f"{role}-replication", str(topic.replicas), f"{_ENOUGH}", setting, why, severity)


def _min_isr(role: str, topic: TopicFacts) -> Finding:
    found = topic.number(_MIN_ISR)
    need = "1" if topic.replicas == 1 else f"2 to {max(2, topic.replicas - 1)}"
    setting = f"{_MIN_ISR} of {topic.name}"

    def finding(severity: Severity, why: str) -> Finding:
        return Finding(f"{role}-min-isr", "?" if found is None else str(found), need, setting, why, severity)

    if found is None:
        return finding(Severity.UNKNOWN, "the brokers do not tell; grant DescribeConfigs on the topic")
    if found > topic.replicas:
        return finding(_worst(role), f"no record is ever acknowledged: there are {topic.replicas} replicas only")
    if topic.in_sync < found:
        return finding(Severity.WARNING, f"{topic.in_sync} replicas are in sync now: until more are, writes fail")
    if topic.replicas > 1 and found == 1:
        return finding(Severity.WARNING, "a record on one disk counts as acknowledged, and is lost with that disk")
    if topic.replicas > 1 and found == topic.replicas:
        return finding(Severity.WARNING, "one broker that is away stops all writes")
    return finding(Severity.OK, "what is acknowledged is on that many disks")


def _unclean(role: str, topic: TopicFacts) -> Finding:
    found = topic.text(_UNCLEAN)
    if found is None:
        severity, why = Severity.UNKNOWN, "the brokers do not tell; grant DescribeConfigs on the topic"
    elif found == "true" and topic.replicas > 1:
        severity = _worst(role)
        why = "a replica that lags may become leader: acknowledged records and committed transactions vanish"
    else:
        severity, why = Severity.OK, "only a replica in sync becomes leader"
    return Finding(f"{role}-unclean-election", found or "?", "false", f"{_UNCLEAN} of {topic.name}", why, severity)


_COMPACTED = {
    "input": "compaction may remove an order before it is read",
    "output": "compaction removes all but the last record of a key: orders vanish after they were delivered",
    "dead-letter": "compaction refuses records without a key, and removes all but the last of one key",
}


def _cleanup(role: str, topic: TopicFacts) -> Finding:
    found = topic.text(_CLEANUP)
    if found is None:
        severity, why = Severity.UNKNOWN, "the brokers do not tell; grant DescribeConfigs on the topic"
    elif "compact" in found:
        severity, why = _worst(role), _COMPACTED[role]
    else:
        severity, why = Severity.OK, "records go by age or size only"
    return Finding(f"{role}-cleanup", found or "?", "delete", f"{_CLEANUP} of {topic.name}", why, severity)
