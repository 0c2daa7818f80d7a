"""The page: one HTML document with the fault matrix and each cell in full; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from brew.html import Child, Markup, document, tag
from proof.report import figures
from proof.report.figures import SIGNS, addresses, hint, mark, marks, section, table
from proof.report.results import MATRIX, TITLES, Anomaly, Result, Row, Section, Standing
from proof.report.summary import Cell, Summary, Times, say_seconds

_FILTERS = ("all", *Standing, "not-run")
_READERS = (
    "A cell's name ends in its reader, connector or direct, and in -spark behind that where Spark ran it. Without "
    "-spark the pipeline is one process, and the connector's ranges are read without Spark; all share the six steps."
)
_LABELS = {"all": "all", "control": "controls", "not-run": "not run"}


def fault_matrix(summary: Summary, where: dict[tuple[str, str], str]) -> Markup:
    """``where`` holds the address of each cell on the page."""
    by_row: dict[str, list[Cell]] = {}
    for cell in summary.cells:
        by_row.setdefault(cell.row, []).append(cell)
    others = tuple(Row(name, "not in the matrix") for name in sorted(by_row.keys() - TITLES.keys()))
    sections = [*MATRIX, Section("Others", others)] if others else MATRIX
    heads = [tag("th", text, scope="col") for text in ("Row", "Fault and its cells", "Slowest / bound")]
    table = tag(
        "table",
        tag("caption", "Fault matrix", class_="unseen"),
        tag("thead", tag("tr", heads)),
        [_group(one, by_row, where) for one in sections],
        class_="matrix",
    )
    return section("matrix", "Fault matrix", _legend(summary), _filter(), table)


def _legend(summary: Summary) -> Markup:
    signs = [
        (tag("span", SIGNS[standing], class_=f"mark {standing}", aria_hidden="true"), " ", standing.label)
        for standing in Standing
    ]
    seeds = ", ".join(map(str, summary.seeds)) or "none"
    items = [tag("li", sign) for sign in signs]
    direct = any(result.path.startswith(("direct ", "connector ")) for cell in summary.cells for result in cell.results)
    readers = hint(_READERS) if direct else ""
    return Markup(tag("ul", items, class_="legend") + hint(f"One mark per seed, in the order {seeds}.") + readers)


def _filter() -> Markup:
    """Hidden until the script shows it: without the script it would do nothing."""
    choices = [
        tag(
            "label",
            tag("input", type="radio", name="standing", value=value, checked=value == "all"),
            tag("span", _LABELS.get(value, value)),
        )
        for value in _FILTERS
    ]
    legend = tag("legend", "Show", class_="unseen")
    told = tag("output", id="shown", aria_live="polite")
    return tag("form", tag("fieldset", legend, choices), told, id="filter", hidden=True)


def _group(one: Section, by_row: dict[str, list[Cell]], where: dict[tuple[str, str], str]) -> Markup:
    title = tag("tr", tag("th", one.title, colspan=3, scope="rowgroup"), class_="group")
    return tag("tbody", title, [_row(row, by_row.get(row.name, []), where) for row in one.rows])


def _row(row: Row, cells: list[Cell], where: dict[tuple[str, str], str]) -> Markup:
    title = tag("div", row.title, class_="title")
    if not cells:
        idle = tag("div", "not run", class_="idle")
        told = (tag("td", tag("div", title, idle, class_="fault")), tag("td"))
        return tag("tr", tag("th", row.name, scope="row"), told, class_="empty", data_standing="not-run")
    chips = tag("ul", [_chip(cell, where[cell.row, cell.name]) for cell in cells], class_="cells")
    told = (tag("td", tag("div", title, chips, class_="fault")), tag("td", _slowest(cells), class_="slowest"))
    return tag("tr", tag("th", row.name, scope="row"), told)


def _chip(cell: Cell, address: str) -> Markup:
    short = cell.name.removeprefix(f"{cell.row}-") or cell.name
    name = tag("span", short, class_="name")
    link = tag("a", name, marks(cell.results), href=f"#{address}", class_=f"chip {cell.standing}")
    return tag("li", link, data_standing=cell.standing)


def _slowest(cells: Iterable[Cell]) -> list[Markup]:
    """A line per bound of the row."""
    by_bound: dict[float, list[Times]] = {}
    for cell in cells:
        for result in cell.results:
            if result.bound_s is not None:
                by_bound.setdefault(result.bound_s, []).append(Times.recoveries([result]))
    lines = []
    for bound, times in sorted(by_bound.items()):
        measured = [one.longest for one in times if one.count]
        if measured:
            late = "late" if max(measured) > bound else None
            text = f"{say_seconds(max(measured))} / {bound:g} s"
            lines.append(tag("div", text, " (late)" if late else None, class_=late))
    return lines


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


_LISTED = 12


def page(summary: Summary) -> str:
    """The whole document."""
    where = addresses(summary.cells)
    main = tag(
        "main",
        _headline(summary),
        tag("p", summary.outdated, class_="notice") if summary.outdated else None,
        _to_look_at(summary, where),
        figures.bars(summary),
        fault_matrix(summary, where),
        figures.recoveries(summary),
        figures.stalls(summary),
        tag("div", figures.anomalies(summary), figures.fired(summary), class_="pair"),
        all_cells(summary, where),
        figures.provenance(summary),
    )
    title = f"{summary.verdict.capitalize()} - proof of exactly once"
    return document(title, _asset("page.css"), _asset("page.js"), main)


@cache
def _asset(name: str) -> Markup:
    """A file of this package; it is ours, so it is markup."""
    return Markup(files(__package__).joinpath(name).read_text("utf-8"))


def _headline(summary: Summary) -> Markup:
    lead, _, rest = summary.headline.partition(": ")
    began = min((one.began for one in summary.provenance if one.began), default="")
    eyebrow = " · ".join(filter(None, ("Proof of exactly once", began[:16].replace("T", " "))))
    cells = summary.cell_standings
    tiles = [_tile(str(standing), standing.label, cells[standing]) for standing in Standing]
    tiles.append(_tile("idle", "rows not run", len(summary.rows_not_run)))
    title = tag("h1", tag("b", lead, class_=f"verdict {summary.verdict}"), tag("span", rest[:1].upper() + rest[1:]))
    return tag("header", tag("p", eyebrow, class_="eyebrow"), title, _scope(summary), tag("ul", tiles, class_="tiles"))


def _scope(summary: Summary) -> Markup:
    """How much was done, in one line."""
    totals = summary.totals
    of = len(TITLES)
    parts = [
        f"{len(summary.results):,} runs with seeds {', '.join(map(str, summary.seeds))}"
        if summary.results
        else "0 runs",
        f"{of - len(summary.rows_not_run)} of {of} rows",
        f"{totals.get('inputs', 0):,} records",
        f"{totals.get('committed_transactions', 0):,} transactions committed",
        f"{totals.get('aborted_transactions', 0):,} aborted",
        f"{say_seconds(summary.seconds)} of faults",
    ]
    return tag("p", " · ".join(parts), class_="scope")


def _tile(kind: str, label: str, count: int) -> Markup:
    zero = " zero" if not count else ""
    return tag("li", tag("b", f"{count:,}"), tag("span", label), class_=f"tile {kind}{zero}")


def _to_look_at(summary: Summary, where: dict[tuple[str, str], str]) -> Markup | None:
    """The cells that are not as they should be, each with its first reason."""
    order = (Standing.VIOLATED, Standing.INCONCLUSIVE)
    cells = [cell for standing in order for cell in summary.cells if cell.standing is standing]
    if not cells:
        return None
    items: list[Child] = []
    for cell in cells[:_LISTED]:
        decisive = [result for result in cell.results if result.standing is cell.standing]
        names = dict.fromkeys(one.name for result in decisive for one in result.anomalies)
        reasons = [reason for result in decisive for reason in result.reasons]
        text = ", ".join(names) or (reasons[0] if reasons else "no anomaly was handed on")
        link = tag("a", cell.name, href=f"#{where[cell.row, cell.name]}")
        seeds = ", ".join(str(result.seed) for result in decisive)
        items.append(tag("li", mark(cell.standing, cell.standing.label), link, tag("span", f"seed {seeds}: {text}")))
    if len(cells) > _LISTED:
        items.append(tag("li", f"… and {len(cells) - _LISTED:,} more, in the matrix below"))
    return tag("section", tag("h2", "To look at", id="look-title"), tag("ul", items, class_="look"), id="look")
