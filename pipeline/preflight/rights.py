"""Whether this client may do what a run does, and nobody else stands in its group; pure."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.preflight.finding import Finding, Severity
from protocol.cluster import GroupFacts, TopicFacts, Unknown

_TOPIC_NEEDS = {
    "input": frozenset({"READ"}),
    "output": frozenset({"WRITE", "DESCRIBE_CONFIGS"}),
    "dead-letter": frozenset({"WRITE", "DESCRIBE_CONFIGS"}),
}
_MOST_NAMED = 3


def access(role: str, topic: TopicFacts) -> Finding:
    """What this client may do on a topic."""
    return _access(f"{role}-access", f"topic {topic.name}", _TOPIC_NEEDS[role], topic.operations)


def group(name: str, told: GroupFacts | Unknown) -> Iterator[Finding]:
    """Members and rights of the group that holds the position."""
    yield members(name, told)
    operations = None if isinstance(told, Unknown) else told.operations
    yield _access("group-access", f"group {name}", frozenset({"READ"}), operations)


def transactional_id(group: str, told: bool | Unknown) -> Finding:
    """
    The ids `<group>:<topic>:<partition>`.

    ``told``: whether the brokers let this client look at one, which Write brings with it.
    """
    name, setting = "transactional-id-access", f"ACLs of this principal on transactional ids {group}:* (prefixed)"
    if isinstance(told, Unknown):
        why = f"the brokers do not tell ({told.reason}); a missing right shows at the first fence"
        return Finding(name, "?", "WRITE", setting, why, Severity.UNKNOWN)
    if told:
        why = "they may be looked at, as Write lets us; whether Write is granted shows at the first fence"
        return Finding(name, "DESCRIBE", "WRITE", setting, why, Severity.OK)
    why = "WRITE is not granted: no transaction can begin"
    return Finding(name, "none", "WRITE", setting, why, Severity.UNSAFE)


def _access(name: str, resource: str, needed: frozenset[str], told: frozenset[str] | None) -> Finding:
    need, setting = ", ".join(sorted(needed)), f"ACLs of this principal on {resource} (kafka-acls.sh)"
    if told is None:
        why = "the brokers do not tell what this client may do; a missing right shows as a refusal later"
        return Finding(name, "?", need, setting, why, Severity.UNKNOWN)
    value = ", ".join(sorted(told & needed)) or "none"
    if missing := sorted(needed - told):
        why = f"{', '.join(missing)} is not granted: the run would be refused in the middle of its work"
        return Finding(name, value, need, setting, why, Severity.UNSAFE)
    return Finding(name, value, need, setting, "what a run does there is granted", Severity.OK)


def members(name: str, told: GroupFacts | Unknown) -> Finding:
    """Who else is in the group."""
    setting = f"group.id of whoever subscribes with {name}, or --group"
    if isinstance(told, Unknown):
        return Finding(
            "group-members", "?", "none", setting, f"the brokers do not tell: {told.reason}", Severity.UNKNOWN
        )
    if not told.members:
        why = "only this pipeline moves the position"
        return Finding("group-members", "none", "none", setting, why, Severity.OK)
    named = ", ".join(told.members[:_MOST_NAMED]) + (" ..." if len(told.members) > _MOST_NAMED else "")
    why = "a member commits positions of its own under this group: records would be skipped or come twice"
    return Finding("group-members", f"{len(told.members)}: {named}", "none", setting, why, Severity.UNSAFE)
