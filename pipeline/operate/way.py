"""One order's way as JSON, and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipeline.operate.judge.fate import Fate
from pipeline.operate.judge.story import BROKEN, Copy, Story, answer
from pipeline.operate.judge.verdict import Verdict, verdict

_STYLES = {Fate.COMMITTED: "green", Fate.PLAIN: "green", Fate.ABORTED: "dim", Fate.OPEN: "yellow"}


def document(story: Story) -> dict[str, Any]:
    """One order as JSON."""
    verdict, why = answer(story)
    return {
        "order": story.place,
        "answer": verdict.value,
        "why": why,
        "group": {"committed": story.position, "view": story.group_view()},
        "order_id": None if story.order is None else story.order.order_id,
        "replay_of": None if story.order is None or story.order.replay_of is None else str(story.order.replay_of),
        "replayed_as": list(story.replays),
        "input": None if story.source is None else _copy(story.source),
        "copies": [_copy(one) for one in story.copies],
    }


def _copy(one: Copy) -> dict[str, Any]:
    written = one.written
    return {
        "role": one.role,
        "at": one.place,
        "fate": written.fate.value,
        "producer_id": written.producer_id,
        "producer_epoch": written.producer_epoch,
        "transactional_id": one.transactional_id,
        "range": None if one.span is None else [one.span.start, one.span.until],
        "reason": one.reason,
        "message": one.message or None,
        "marker": written.marker_offset,
        "marker_epoch": written.marker_epoch,
        "visible": one.view.visible,
        "rule": one.view.rule,
    }


def judged(stories: Sequence[Story]) -> dict[str, str] | None:
    """What the records are to each other, as JSON; None where one stands for itself."""
    found = verdict(stories)
    return None if found is None else {"verdict": found[0].value, "why": found[1]}


def remarks(found: Mapping[str, Any]) -> list[Text]:
    """The verdict, and what the brokers did not tell, for people."""
    lines = [Text(f"not told: {one}", "cyan") for one in found["not_told"]]
    if found["verdict"] is not None:
        style = "bold red" if found["verdict"]["verdict"] == Verdict.DELIVERED_TWICE else "bold"
        lines.insert(
            0, Text("together: ").append(found["verdict"]["verdict"], style).append(f": {found['verdict']['why']}")
        )
    return lines


def drawn(told: dict[str, Any]) -> Group:
    """One order for people."""
    table = Table(pad_edge=False, show_lines=False)
    table.add_column("where", overflow="fold")
    table.add_column("fate", no_wrap=True)
    table.add_column("transaction", overflow="fold")
    table.add_column("read_committed sees it?", ratio=1, overflow="fold")
    rows = [told["input"]] if told["input"] is not None else []
    for row in [*rows, *told["copies"]]:
        fate = Fate(row["fate"])
        seen = Text("yes: " if row["visible"] else "no: ", "green" if row["visible"] else "yellow")
        table.add_row(
            f"{row['role']}\n{row['at']}",
            Text(row["fate"], _STYLES.get(fate, "red")),
            _transaction(row),
            seen.append(row["rule"], "default"),
        )
    style = "bold red" if told["answer"] in {one.value for one in BROKEN} else "bold"
    head = Text(f"{told['order']}: ").append(told["answer"], style).append(f": {told['why']}")
    lines = [Text(f"group: {told['group']['view']}")]
    if told["replay_of"] is not None:
        lines.append(Text(f"written back from dead letter {told['replay_of']}"))
    return Group(head, table, *lines)


def _transaction(row: dict[str, Any]) -> str:
    if row["fate"] in {Fate.PLAIN, Fate.UNKNOWN}:
        return "none" if row["fate"] == Fate.PLAIN else "-"
    lines = [row["transactional_id"] or "", f"producer {row['producer_id']}, epoch {row['producer_epoch']}"]
    if row["range"] is not None:
        start, until = row["range"]
        lines.append(f"input range up to {until}" if start is None else f"input range [{start}, {until})")
    return "\n".join(line for line in lines if line)
