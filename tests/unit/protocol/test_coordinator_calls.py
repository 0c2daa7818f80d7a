"""No program asks a group's coordinator through librdkafka's admin client."""

from __future__ import annotations

import ast
from pathlib import Path

from confluent_kafka.admin import AdminClient

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("brew", "pipeline", "operations", "downstream", "proof", "sandbox", "benchmarks", "scripts")
ALLOWED = {"list_consumer_groups", "list_groups"}
"""Every broker is asked for itself; no coordinator is looked for."""
FORBIDDEN = {
    "alter_consumer_group_offsets",
    "delete_consumer_groups",
    "describe_consumer_groups",
    "list_consumer_group_offsets",
}


def test_the_forbidden_calls_are_all_that_the_client_has_for_groups() -> None:
    """A later version of the client may have more: each has to be looked at."""
    named = {name for name in dir(AdminClient) if "group" in name and not name.startswith("_")}
    assert named - ALLOWED == FORBIDDEN


def test_no_program_asks_a_coordinator_through_librdkafka_s_admin_client() -> None:
    """
    It ends the process when the coordinator moves or restarts (assertion `eonce->refcnt > 0`, or SIGSEGV); ask through
    `brew.kafka.groups`, `cluster_admin` or `group_requests`.
    """
    assert [folder for folder in PRODUCT if not any((ROOT / folder).rglob("*.py"))] == [], "nothing would be looked at"
    assert [place for folder in PRODUCT for path in (ROOT / folder).rglob("*.py") for place in _calls(path)] == []


def _calls(path: Path) -> list[str]:
    """Attributes, and names as text: `getattr(client, "describe_consumer_groups")` is a call, too."""
    found, source = [], path.read_text()
    if not any(name in source for name in FORBIDDEN):
        return []
    for node in ast.walk(ast.parse(source)):
        name = node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else None
        if name in FORBIDDEN:
            found.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}: {name}")
    return found
