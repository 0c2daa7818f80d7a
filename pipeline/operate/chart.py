"""A ward for people and for programs: a panel, or a JSON row, per open transaction."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from pipeline.operate.judge.cases import Case, Kind, Waiting, ends_by_fence, own_command, read_again, waiting
from pipeline.operate.ward import Ward

_STYLES = {Kind.HANGING: "bold red", Kind.LINGERING: "yellow", Kind.UNKNOWN: "cyan", Kind.OPEN: "green"}


def row(case: Case, ward: Ward, bootstrap: str) -> dict[str, Any]:
    """One open transaction as JSON."""
    known, owner = case.known, case.owner
    return {
        "kind": case.kind.value,
        "why": case.why,
        "transactional_id": case.transactional_id,
        "producer_id": case.producer_id,
        "producer_epoch": case.producer_epoch,
        "state": None if known is None else known.state,
        "age_s": None if case.age_s is None else round(case.age_s, 1),
        "timeout_s": None if known is None else known.timeout_ms / 1000,
        "pipeline": None
        if owner is None
        else {"group": owner.group, "input": owner.topic, "partition": owner.partition},
        "holds": [_wait(one) for one in waiting(case, ward.bounds, ward.groups)],
        "read_again": read_again(case, ward.groups),
        "ends_by": "fence" if ends_by_fence(case) else "marker",
        "commands": [] if ends_by_fence(case) else [own_command(bootstrap, one) for one in case.holds],
    }


def _wait(one: Waiting) -> dict[str, Any]:
    return {
        "topic": one.held.topic,
        "partition": one.held.partition,
        "from_offset": one.held.first_offset,
        "offsets_waiting": one.offsets,
        "groups_at_it": list(one.at_it),
        "groups_on_the_way": list(one.on_the_way),
    }


def drawn(ward: Ward, bootstrap: str) -> list[RenderableType]:
    """A panel per transaction; none is a good sign."""
    parts: list[RenderableType] = [_panel(one, ward, bootstrap) for one in ward.cases]
    parts += [Text(f"not told: {one}", "cyan") for one in ward.not_told]
    return parts or [Text("no transaction is open")]


def _panel(case: Case, ward: Ward, bootstrap: str) -> Panel:
    facts = row(case, ward, bootstrap)
    age = "" if case.age_s is None else f", open for {case.age_s:.0f} s of {facts['timeout_s']:g} s"
    lines = [Text(case.why), Text(f"producer {case.producer_id}, epoch {case.producer_epoch}{age}")]
    if case.owner is not None:
        lines.append(Text(f"pipeline of group {case.owner.group}, input {case.owner.topic}[{case.owner.partition}]"))
    for one in facts["holds"]:
        place = f"{one['topic']}[{one['partition']}] from offset {one['from_offset']}"
        groups = [f"{name} waits" for name in one["groups_at_it"]]
        groups += [f"{name} is on its way" for name in one["groups_on_the_way"]]
        told = "; ".join(groups) or "no group has a position there"
        lines.append(Text(f"holds back {place}: {one['offsets_waiting']:,} offsets wait; {told}"))
    if not facts["holds"]:
        lines.append(Text("holds no partition back yet"))
    if case.kind is Kind.HANGING:
        lines += [Text(f"Kafka's own command: {command}") for command in facts["commands"]]
    lines.append(Text(f"read again after an abort: {facts['read_again']}"))
    style = _STYLES[case.kind]
    return Panel(Group(*lines), title=Text(f"{case.kind.value}: {case.names[0]}", style), title_align="left")
