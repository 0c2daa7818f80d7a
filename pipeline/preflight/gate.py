"""What a run does with the findings: go on, go on and say so, or refuse."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.preflight.finding import Finding, Severity
from protocol.errors import Refused


def gate(findings: Iterable[Finding], allow: frozenset[str]) -> tuple[str, ...]:
    """
    The notes of what is unsafe and allowed by name.

    Raises:
        Refused: something is unsafe; all of it is named, with what to change.
    """
    unsafe = [one for one in findings if one.severity is Severity.UNSAFE]
    left = [one for one in unsafe if one.name not in allow]
    if left:
        flags = " ".join(f"--allow {one.name}" for one in left)
        told = "; ".join(f"{one.name} is {one.value}, needs {one.need} ({one.setting}): {one.why}" for one in left)
        raise Refused(
            f"preflight: {told}; change {'it' if len(left) == 1 else 'them'}, or run all the same with {flags} "
            "(`pipeline preflight` shows all checks)"
        )
    return tuple(f"allowed although unsafe: {one.name} is {one.value}, needs {one.need}: {one.why}" for one in unsafe)
