"""Each cell in full: its runs, what speaks against it with the evidence, and the commands that run it again."""

from __future__ import annotations

from collections.abc import Sequence

from proof.report.marks import hint, mark, marks, section, table
from proof.report.results import Anomaly, Result, Standing
from proof.report.summary import Cell, Summary
from proof.report.times import Times, say_seconds
from protocol.markup import Child, Markup, tag

_KEPT = 25
_PARTS = (
    ("violated", "Violated cells", Standing.VIOLATED, "The promise was broken here."),
    ("inconclusive", "Inconclusive cells", Standing.INCONCLUSIVE, "Nothing is known: each cell says why."),
    (
        "controls",
        "Positive controls",
        Standing.CONTROL,
        "These break the protocol on purpose. They must be caught, or the experiment around them is not believed.",
    ),
    (
        "outdated",
        "Cells of another kernel",
        Standing.OUTDATED,
        "They held with a kernel that is not today's, so they show nothing of it.",
    ),
    ("proven", "Proven cells", Standing.PROVEN, "Open a cell for its figures and the command that runs it again."),
    (
        "senseless",
        "Not applicable",
        Standing.NOT_APPLICABLE,
        "There is nothing to break here, for the reason that each cell gives.",
    ),
)


def all_cells(summary: Summary, where: dict[tuple[str, str], str]) -> list[Markup]:
    """Every cell once, the worst first; ``where`` holds the address of each."""
    parts = []
    for name, title, standing, text in _PARTS:
        chosen = [cell for cell in summary.cells if cell.standing is standing]
        if chosen:
            body = [_cell(cell, where[cell.row, cell.name]) for cell in chosen]
            parts.append(section(name, f"{title} ({len(chosen):,})", hint(text), body))
    return parts


def _cell(cell: Cell, address: str) -> Markup:
    first = cell.results[0]
    about = " · ".join(filter(None, (first.fault, first.target, first.moment, first.path and f"{first.path} path")))
    title = tag(
        "summary", tag("span", cell.name, class_="name"), tag("span", about, class_="about"), marks(cell.results)
    )
    opened = cell.standing in {Standing.VIOLATED, Standing.INCONCLUSIVE}
    body = (_runs(cell), [_against(result) for result in cell.results], _replays(cell.results))
    inner = tag("div", body, class_="inside")
    kind = f"cell {cell.standing}"
    return tag("details", title, inner, id=address, class_=kind, data_standing=cell.standing, open=opened)


def _runs(cell: Cell) -> Markup:
    head = ("Seed", "Verdict", "Made with", "Took", "First commit", "Readers held back", "Fired", "Counted")
    rows = [
        (
            result.seed,
            tag("span", mark(result.standing, result.standing.label), " ", result.standing.label, class_="met"),
            f"{result.origin}, {result.began[:10] or 'date unknown'}",
            say_seconds(result.seconds),
            _longest(Times.recoveries([result]), result.bound_s),
            _longest(Times.stalls([result]), None),
            _fired(result),
            ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in result.counts.items()) or "-",
        )
        for result in cell.results
    ]
    return table(f"Runs of {cell.name}", head, rows, numbers=(3, 4, 5))


def _longest(times: Times, bound: float | None) -> Child:
    if not times.count:
        return "-"
    late = bound is not None and times.longest > bound
    limit = "" if bound is None else f" / {bound:g} s"
    told = tag("span", say_seconds(times.longest), limit, " (late)" if late else None, class_="late" if late else None)
    return (told, f", longest of {times.count:,}") if times.count > 1 else told


def _fired(result: Result) -> str:
    kinds = [*result.needed, *(kind for kind in result.fired if kind not in result.needed)]
    told = [(f"{result.fired.get(kind, 0):,} {kind}", result.needed.get(kind)) for kind in kinds]
    return ", ".join(text if wanted is None else f"{text} ({wanted:,} needed)" for text, wanted in told) or "-"


def _against(result: Result) -> list[Markup]:
    """What there is to say about one run beyond its figures."""
    parts = []
    if result.note:
        parts.append(tag("p", tag("b", f"Seed {result.seed}: "), result.note))
    if result.reasons:
        reasons = tag("ul", [tag("li", reason) for reason in result.reasons])
        parts.append(tag("div", tag("p", tag("b", f"Seed {result.seed} is inconclusive:")), reasons))
    if result.standing is Standing.VIOLATED and not result.anomalies:
        parts.append(tag("p", tag("b", f"Seed {result.seed}: "), "violated, and no anomaly was handed on."))
    if result.anomalies:
        parts.append(_anomalies(result))
    return parts


def _anomalies(result: Result) -> Markup:
    count = len(result.anomalies)
    shown = result.anomalies[:_KEPT]
    caption = f"Seed {result.seed}: {count:,} {'anomaly' if count == 1 else 'anomalies'}"
    head = ("Anomaly", "Where", "Producer", "Evidence")
    rows: list[Sequence[Child]] = [(one.name, one.place or "-", _producer(one), _evidence(one)) for one in shown]
    more = tag("p", f"… and {count - len(shown):,} more in the file of results.") if count > len(shown) else None
    return tag("div", tag("p", tag("b", caption)), table(caption, head, rows), more, class_="anomalies")


def _producer(one: Anomaly) -> str:
    if one.producer_id is None or one.producer_id < 0:
        return "-"
    return f"{one.producer_id}" if one.epoch is None else f"{one.producer_id}, epoch {one.epoch}"


def _evidence(one: Anomaly) -> Child:
    return tag("pre", one.evidence, tabindex=0) if one.evidence else "-"


def _replays(results: Sequence[Result]) -> Markup:
    commands = list(dict.fromkeys(result.replay for result in results))
    return tag("ul", [tag("li", tag("code", command, class_="command")) for command in commands], class_="replays")
