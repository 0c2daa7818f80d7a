"""Checks of a cluster before a run: what they find, their names, and whether a finding stops the run; pure."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from brew.errors import Refused, UsageError


class Severity(enum.StrEnum):
    """Severity of a finding; a run refuses to start if one is unsafe."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    UNSAFE = "unsafe"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: the value found, the value needed, the setting to change, and why it matters."""

    name: str
    value: str
    need: str
    setting: str
    why: str
    severity: Severity

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"severity": self.severity.value}


ROLES = ("input", "output", "dead-letter", "transactions", "offsets")
"""Roles of topics in a run; the last two are Kafka's internal logs."""

NAMES = (
    *(f"{role}-{check}" for role in ROLES for check in ("replication", "min-isr", "unclean-election")),
    *(f"{role}-{check}" for role in ROLES[:3] for check in ("cleanup", "access")),
    *(f"{role}-message-size" for role in ROLES[1:3]),
    "output-partitions",
    "producer-message-size",
    "request-timeout",
    "delivery-timeout",
    "transaction-timeout",
    "transaction-size",
    "offsets-retention",
    "transaction-verification",
    "brokers-alike",
    "isolation-level",
    "group-members",
    "group-access",
)
POSITION_NAMES = ("position", "topic-identity", "transactional-id-access", "transaction-version", "clock-skew")
"""Checks that only the command runs; a run itself refuses what they find unsafe, and `--allow` has no say in it."""


def allowed(names: Iterable[str]) -> frozenset[str]:
    """Return the check names given with `--allow`; raises `UsageError` if there is no such check."""
    wanted = frozenset(names)
    if unknown := sorted(wanted - set(NAMES)):
        raise UsageError(f"--allow is {unknown[0]!r}: no check has that name; run `brew preflight --all` to list them")
    return wanted


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    order = list(reversed(Severity))
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def refusing(findings: Iterable[Finding], allow: frozenset[str]) -> list[Finding]:
    """Return the unsafe findings that are not allowed by name."""
    return [finding for finding in findings if finding.severity is Severity.UNSAFE and finding.name not in allow]


def enforce(findings: Iterable[Finding], allow: frozenset[str]) -> tuple[str, ...]:
    """Return notes on unsafe findings that are allowed by name; raises one `Refused` that names all the others."""
    unsafe = [finding for finding in findings if finding.severity is Severity.UNSAFE]
    if left := refusing(unsafe, allow):
        flags = " ".join(f"--allow {finding.name}" for finding in left)
        reasons = "; ".join(
            f"{finding.name} is {finding.value}, needs {finding.need} ({finding.setting}): {finding.why}"
            for finding in left
        )
        raise Refused(
            f"preflight: {reasons}; change {'it' if len(left) == 1 else 'them'}, or run anyway with {flags} "
            "(`brew preflight` shows all findings)"
        )
    return tuple(
        f"allowed although unsafe: {finding.name} is {finding.value}, needs {finding.need}: {finding.why}"
        for finding in unsafe
    )
