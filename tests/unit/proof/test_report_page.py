"""The page: one file, well formed, everything on it, hostile text harmless. A parser reads it as a browser would."""

from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from harness.campaigns import CELLS, HOSTILE, campaign
from jinja2 import UndefinedError

from brew.html import Markup, templates, visible
from proof.report.page import page
from proof.report.results import TITLES, Standing, read
from proof.report.summary import Summary

VOID = {"meta", "input", "br"}


class Reader(HTMLParser):
    """Collects what the page is made of, and every tag that is closed out of turn."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.crossed: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self.open[-1] if self.open else "", []).append(data)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def values(self, name: str) -> list[str]:
        return [value for _, found, value in self.attributes if found == name]

    def faults(self) -> list[str]:
        """All that must not be on a page that stands alone; empty when it does."""
        ids = set(self.values("id"))
        external = [f"{name}={value}" for _, name, value in self.attributes if _leaves(name, value)]
        external += [f"<{name}>" for name in ("link", "iframe", "img", "object", "base", "embed") if self.tags[name]]
        external += [
            f"css {found}" for style in self.text.get("style", []) for found in re.findall(r"url\(|@import", style)
        ]
        twice = [f"id {one} twice" for one, count in Counter(self.values("id")).items() if count > 1]
        dead = [f"{one} leads nowhere" for one in self.values("href") if one.removeprefix("#") not in ids]
        handlers = [f"{tag} {name}" for tag, name, _ in self.attributes if name.startswith("on")]
        scripts = ["more than one script"] if self.tags["script"] > 1 else []
        return [*self.crossed, *self.open, *external, *twice, *dead, *handlers, *scripts]


def _leaves(name: str, value: str) -> bool:
    return name in {"src", "srcset", "action", "data", "xlink:href"} or (name == "href" and not value.startswith("#"))


def _summary(document: dict[str, object]) -> Summary:
    return Summary.of(*read(json.dumps(document), "results.json"))


@pytest.fixture(scope="module")
def summary() -> Summary:
    return _summary(campaign())


@pytest.fixture(scope="module")
def text(summary: Summary) -> str:
    return page(summary)


@pytest.fixture(scope="module")
def found(text: str) -> Reader:
    return Reader(text)


def test_the_page_stands_alone_and_is_well_formed(found: Reader) -> None:
    """Nothing outside is named, ids are unique, links lead somewhere, every element is closed in turn."""
    assert found.faults() == []


@pytest.mark.parametrize(
    ("spoilt", "fault"),
    [
        ('<p id="a"></p><p id="a"></p>', "id a twice"),
        ('<img src="x.png">', "src=x.png"),
        ('<a href="https://x.y">z</a>', "href=https://x.y"),
        ('<a href="#gone">z</a>', "#gone leads nowhere"),
        ("<b><i></b></i>", "b"),
        ('<p onclick="x()"></p>', "p onclick"),
        ("<style>a{background:url(x)}</style>", "css url("),
        ("<script></script>", "more than one script"),
    ],
)
def test_a_page_that_does_not_is_caught(text: str, spoilt: str, fault: str) -> None:
    """The look above is not blind."""
    assert fault in Reader(text.replace("</main>", f"{spoilt}</main>")).faults()


def test_every_cell_every_seed_and_every_row_is_there(found: Reader, summary: Summary) -> None:
    """A cell in the matrix and in full; a mark per seed in both; rows without a cell are shown as not run."""
    links = [value for tag, name, value in found.attributes if (tag, name) == ("a", "href")]
    cells = [value for tag, name, value in found.attributes if (tag, name) == ("details", "id")]
    assert len(cells) == len(summary.cells) == sum(len(kind[3]) * len(kind[4]) for kind in CELLS.values())
    assert set(cells) == {link.removeprefix("#") for link in links}
    labels = Counter(value for value in found.values("aria-label") if value.startswith("seed "))
    assert labels.total() == 2 * len(summary.results)
    rows = found.text["th"]
    assert [row for row in TITLES if row not in rows] == []
    assert found.text["div"].count("not run") == len(TITLES) - len(CELLS) == len(summary.rows_not_run)


def test_every_result_can_be_run_again_from_the_page(found: Reader, summary: Summary) -> None:
    """The whole command stands there as text."""
    assert {visible(result.replay) for result in summary.results} <= set(found.text["code"])


def test_hostile_evidence_is_shown_and_does_nothing(text: str, found: Reader) -> None:
    """Markup stays text; control characters, half characters and turns of direction are spelt out."""
    assert "<script>alert" not in text
    assert any("<script>alert(1)</script>" in data and r"\x1b[31m \u202e" in data for data in found.text["pre"])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", text)
    assert text.encode("utf-8")


def test_colour_is_not_all_that_tells(found: Reader) -> None:
    """Each mark has a sign of its own or a ring, and says in words what it is."""
    for standing in Standing:
        assert any(value.endswith(f": {standing.label}") for value in found.values("aria-label"))
    assert found.tags["th"] == len([name for _, name, _ in found.attributes if name == "scope"])
    plots = [name for tag, name, _ in found.attributes if (tag, name) == ("svg", "role")]
    assert len(plots) == found.tags["title"] - 1


def test_without_the_script_nothing_is_missing(found: Reader) -> None:
    """Only the filter is hidden; violated and inconclusive cells are open from the start."""
    assert [tag for tag, name, _ in found.attributes if name == "hidden"] == ["form"]
    opened = [tag for tag, name, _ in found.attributes if name == "open"]
    assert len(opened) == 5


def test_the_policy_allows_this_style_and_this_script_only(found: Reader) -> None:
    """Even if a text got through, the browser would not run it."""
    policy = next(value for value in found.values("content") if value.startswith("default-src"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_a_page_of_nothing_says_so() -> None:
    """No results is no proof."""
    nothing = _summary({"campaign": {}, "cells": []})
    assert nothing.verdict == "inconclusive"
    assert Reader(page(nothing)).faults() == []


def test_cells_whose_names_look_alike_keep_apart() -> None:
    """An address is made of letters and digits only, so two names may give one."""
    cells = [
        campaign(1, broken=False)["cells"][0] | {"cell": name} for name in ("F01-a b", "F01-a-b", "F01-a/b", HOSTILE)
    ]
    found = Reader(page(_summary({"cells": cells})))
    assert found.faults() == []
    assert found.tags["details"] == 4


def test_text_becomes_markup_only_through_the_door() -> None:
    """Text and attributes are escaped, markup is not escaped twice, and what nobody gave is an error."""
    template = templates("proof.report").from_string('<b class="{{ x }}">{{ x }}{{ y }}</b>')
    assert template.render(x='"<', y=Markup("<i>")) == '<b class="&#34;&lt;">&#34;&lt;<i></b>'
    with pytest.raises(UndefinedError, match="'y' is undefined"):
        template.render(x=None)
    assert visible("a\tb\n\u200b\U000e0001") == "a\tb\n\\u200b\\U000e0001"
