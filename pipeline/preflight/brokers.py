"""Whether the brokers are set alike, and what protects other producers of this cluster; pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pipeline.preflight.finding import Finding, Severity
from protocol.cluster import ClusterFacts, Unknown

VERIFICATION = "transaction.partition.verification.enable"
_KIP_890 = 2


def alike(facts: ClusterFacts, settings: frozenset[str]) -> Finding:
    """Whether every broker has the same ``settings``; where they differ the other checks take the least of them."""
    told = facts.config
    setting, why = "these settings of each broker", "what holds does not depend on the broker that is asked"
    good = Finding("brokers-alike", "", "the same on every broker", setting, why, Severity.OK)
    if isinstance(told, Unknown):
        why = f"the brokers do not tell ({told.reason}); grant DescribeConfigs on the cluster"
        return replace(good, value="?", why=why, severity=Severity.UNKNOWN)
    apart = [words for name in sorted(settings) if (words := _apart(name, facts))]
    if apart:
        why = "what holds depends on the broker that leads a partition, or coordinates; the checks take the least"
        return replace(good, value="; ".join(apart), why=why, severity=Severity.WARNING)
    if isinstance(facts.brokers, int) and len(told) < facts.brokers:
        value = f"{len(told)} of {facts.brokers} brokers"
        return replace(good, value=value, why="the others did not tell", severity=Severity.UNKNOWN)
    return replace(good, value=f"{len(told)} brokers" if len(told) > 1 else "1 broker")


def _apart(name: str, facts: ClusterFacts) -> str:
    """Who has which value of a setting, where there are several; empty where all have one."""
    if isinstance(facts.config, Unknown):
        return ""
    having: dict[str, list[int]] = defaultdict(list)
    for broker, config in sorted(facts.config.items()):
        if name in config:
            having[config[name]].append(broker)
    if len(having) < 2:  # noqa: PLR2004 - two differ
        return ""
    return f"{name} is " + ", ".join(f"{value} on {' '.join(map(str, who))}" for value, who in sorted(having.items()))


def verification(facts: ClusterFacts) -> Finding:
    """Whether the brokers ask the coordinator before they take a record into a transaction."""
    found = facts.texts(VERIFICATION)
    finding = Finding(
        "transaction-verification",
        ", ".join(sorted(found)) or "?",
        "true",
        f"the brokers' {VERIFICATION}",
        "a late record opens no transaction that nobody ends",
        Severity.OK,
    )
    if not found:
        why = "not told; on Kafka before 3.6 a late record can open a transaction that nobody ends: `pipeline doctor`"
        return replace(finding, why=why, severity=Severity.UNKNOWN)
    if found != {"true"}:
        why = "a late record can open a transaction that nobody ends (KIP-890); `pipeline doctor` finds those"
        return replace(finding, why=why, severity=Severity.WARNING)
    return finding


def transaction_version(told: int | Unknown) -> Finding:
    """The cluster's level of the feature `transaction.version`; 2 moves the epoch with each transaction (KIP-890)."""
    name, need = "transaction-version", f"at least {_KIP_890}"
    setting = "kafka-features.sh upgrade --feature transaction.version=2"
    if isinstance(told, Unknown):
        why = f"the brokers do not tell ({told.reason})"
        return Finding(name, "?", need, setting, why, Severity.UNKNOWN)
    if told < _KIP_890:
        why = (
            "an upstream producer's late commit can end its next transaction: orders that it aborted could be read; "
            "this pipeline's own writers take a new epoch for each transaction"
        )
        return Finding(name, str(told), need, setting, why, Severity.WARNING)
    why = "producers that know it are safe from their own late commits; ours take a new epoch for each transaction"
    return Finding(name, str(told), need, setting, why, Severity.OK)
