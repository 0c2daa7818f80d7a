"""The page: one file, well formed, everything on it, hostile text harmless. A parser reads it as a browser would."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from harness.campaigns import CELLS, HOSTILE, campaign
from harness.commands import executable
from jinja2 import UndefinedError

from brew.cli import exit_code_of
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from brew.html import Markup, templates, visible
from brew.names import ExitCode
from proof.__main__ import proof
from proof.commands.campaign import picture
from proof.provenance import kernel
from proof.report.page import page
from proof.report.results import TITLES, Standing, read
from proof.report.summary import Summary


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
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in {"meta", "input", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.crossed.append(tag)

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self.open[-1] if self.open else "", []).append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]

    def faults(self) -> list[str]:
        ids = set(self.values("id"))
        external = [f"{name}={value}" for _, name, value in self.attributes if _leaves(name, value)]
        external += [f"<{name}>" for name in ("link", "iframe", "img", "object", "base", "embed") if self.tags[name]]
        styles = "\n".join(self.text.get("style", []))
        external += [f"css {reference}" for reference in re.findall(r"url\(|@import", styles)]
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
def parsed(text: str) -> Reader:
    return Reader(text)


def test_the_page_stands_alone_is_well_formed_and_misses_nothing_without_its_script(parsed: Reader) -> None:
    """
    Nothing outside is named, ids are unique, links lead somewhere, every element is closed in turn.

    Only the filter is hidden; violated and inconclusive cells are open from the start. Even if a text got through, the
    browser would run this script only.
    """
    assert parsed.faults() == []
    assert [tag for tag, name, _ in parsed.attributes if name == "hidden"] == ["form"]
    assert len([tag for tag, name, _ in parsed.attributes if name == "open"]) == 5
    policy = next(value for value in parsed.values("content") if value.startswith("default-src"))
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


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
    assert fault in Reader(text.replace("</main>", f"{spoilt}</main>")).faults()


def test_every_cell_every_seed_and_every_row_is_there(parsed: Reader, summary: Summary) -> None:
    """A cell in the matrix and in full; a mark per seed in both, with its command; rows without a cell as not run."""
    links = [value for tag, name, value in parsed.attributes if (tag, name) == ("a", "href")]
    cells = [value for tag, name, value in parsed.attributes if (tag, name) == ("details", "id")]
    assert len(cells) == len(summary.cells) == sum(len(kind[3]) * len(kind[4]) for kind in CELLS.values())
    assert set(cells) == {link.removeprefix("#") for link in links}
    labels = Counter(value for value in parsed.values("aria-label") if value.startswith("seed "))
    assert labels.total() == 2 * len(summary.results)
    assert {visible(result.replay) for result in summary.results} <= set(parsed.text["code"])
    rows = parsed.text["th"]
    assert [row for row in TITLES if row not in rows] == []
    assert parsed.text["div"].count("not run") == len(TITLES) - len(CELLS) == len(summary.rows_not_run)


def test_hostile_evidence_is_shown_and_does_nothing(text: str, parsed: Reader) -> None:
    assert "<script>alert" not in text
    assert any("<script>alert(1)</script>" in data and r"\x1b[31m \u202e" in data for data in parsed.text["pre"])
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", text)
    assert text.encode("utf-8")


def test_colour_is_not_all_that_tells(parsed: Reader) -> None:
    """Each mark has a sign of its own or a ring, and says in words what it is."""
    for standing in Standing:
        assert any(value.endswith(f": {standing.label}") for value in parsed.values("aria-label"))
    assert parsed.tags["th"] == len([name for _, name, _ in parsed.attributes if name == "scope"])
    plots = [name for tag, name, _ in parsed.attributes if (tag, name) == ("svg", "role")]
    assert len(plots) == parsed.tags["title"] - 1


def test_a_page_of_nothing_says_so() -> None:
    nothing = _summary({"campaign": {}, "cells": []})
    assert nothing.verdict == "inconclusive"
    assert Reader(page(nothing)).faults() == []


def test_cells_whose_names_look_alike_keep_apart() -> None:
    """An address is made of letters and digits only, so two names may give one."""
    cell = campaign(1, broken=False)["cells"][0]
    cells = [cell | {"cell": name} for name in ("F01-a b", "F01-a-b", "F01-a/b", HOSTILE)]
    drawn = Reader(page(_summary({"cells": cells})))
    assert drawn.faults() == []
    assert drawn.tags["details"] == 4


def test_text_becomes_markup_only_through_the_door() -> None:
    """Text and attributes are escaped, markup is not escaped twice, and what nobody gave is an error."""
    template = templates("proof.report").from_string('<b class="{{ x }}">{{ x }}{{ y }}</b>')
    assert template.render(x='"<', y=Markup("<i>")) == '<b class="&#34;&lt;">&#34;&lt;<i></b>'
    with pytest.raises(UndefinedError, match="'y' is undefined"):
        template.render(x=None)
    assert visible("a\tb\n\u200b\U000e0001") == "a\tb\n\\u200b\\U000e0001"


CELL = {"cell": "F01-c", "row": "F01", "seed": 1, "verdict": "proven"}


def test_lines_and_a_whole_campaign_give_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = campaign()
    half = len(whole["cells"]) // 2
    parts = [whole["cells"][:half], whole["cells"][half:]]
    (tmp_path / "all.json").write_text(json.dumps(whole))
    for name, cells in zip(("a.jsonl", "b.jsonl"), parts, strict=True):
        (tmp_path / name).write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    documents = []
    out = tmp_path / "new" / "report.html"
    for names in (["all.json"], ["a.jsonl", "b.jsonl"], ["b.jsonl", "a.jsonl", "all.json"]):
        files = [str(tmp_path / name) for name in names]
        assert exit_code_of(proof, "proof", ["report", *files, "--out", str(out), "--json"]) == ExitCode.DONE
        documents.append(json.loads(capsys.readouterr().out) | {"campaigns": None})
        assert out.read_text().startswith("<!DOCTYPE html>")
    assert documents[0] == documents[1] == documents[2], "a run in two files is one run"
    assert documents[0]["verdict"] == "violated"


def test_the_command_says_what_it_found_and_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, out, summary = tmp_path / "r.json", tmp_path / "r.html", tmp_path / "r.md"
    results.write_bytes(json.dumps(campaign(1, broken=False, kernel=kernel())).encode() + b"\n")
    code = exit_code_of(proof, "proof", ["report", str(results), "--out", str(out), "--summary-md", str(summary)])
    output = capsys.readouterr().out
    assert code == ExitCode.DONE
    assert output.startswith("Proven: of 86 cells")
    assert f"wrote {summary}" in output
    assert summary.read_text().startswith("**Proven: of 86 cells")


def test_bytes_that_are_no_text_are_shown_not_refused(tmp_path: Path) -> None:
    """A record's bytes may have come into the evidence as they are."""
    results, out = tmp_path / "r.jsonl", tmp_path / "r.html"
    results.write_bytes(json.dumps(CELL | {"note": "X"}).encode().replace(b"X", b"\xff\xfe"))
    assert exit_code_of(proof, "proof", ["report", str(results), "--out", str(out)]) == ExitCode.DONE
    assert r"\udcff\udcfe" in out.read_text("utf-8")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"verdict": "maybe"}, "r.jsonl line 2: 'verdict' is 'maybe', it must be one of proven, violated"),
        ({"verdict": []}, "'verdict' is []"),
        ({"seed": "1"}, "'seed' is '1', it must be an integer"),
        ({"seed": None}, "'seed' is None"),
        ({"cell": ""}, "'cell' is ''"),
        ({"row": 1}, "'row' is 1, it must be a text"),
        ({"recovery_s": [-1]}, "'recovery_s' is [-1]"),
        ({"recovery_s": [float("nan")]}, "'recovery_s' is [nan]"),
        ({"stall_s": 3}, "'stall_s' is 3, it must be a list"),
        ({"bound_s": True}, "'bound_s' is True"),
        ({"fired": {"kills": "3"}}, "it must be an object of counts"),
        ({"counts": []}, "'counts' is [], it must be an object"),
        ({"anomalies": ["x"]}, "r.jsonl line 2 anomaly is not a JSON object"),
        ({"anomalies": [{}]}, "'name' is missing"),
    ],
)
def test_a_result_that_is_none_is_refused_with_its_place(fields: dict[str, Any], text: str) -> None:
    lines = "\n".join(map(json.dumps, (CELL, CELL | fields)))
    with pytest.raises(Refused) as refused:
        read(lines, "r.jsonl")
    assert text in str(refused.value)
    assert "run the cell again" in str(refused.value)


@pytest.mark.parametrize("text", ["{", json.dumps(CELL) + '\n{"cell": "F0', "[1]", "7"])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    """Also the last line of a campaign that was killed while it wrote."""
    assert read("\n\n", "r") == read("", "r") == ([], []), "a campaign that has just begun"
    with pytest.raises(Refused, match=r"r line \d"):
        read(text, "r")


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.jsonl").write_text(json.dumps(CELL))
    out = tmp_path / "r.jsonl" / "r.html"
    assert exit_code_of(proof, "proof", ["report", str(tmp_path / "r.jsonl"), "--out", str(out)]) == ExitCode.REFUSED
    assert "choose another file" in capsys.readouterr().err


def test_the_browser_is_given_page_and_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of its own, which is gone afterwards."""
    monkeypatch.setenv("PATH", str(tmp_path))
    into = tmp_path / "r.png"
    executable(tmp_path / "chromium", f"import sys\nopen({str(into)!r}, 'w').write('\\n'.join(sys.argv[1:]))")
    picture(tmp_path / "r.html", into, Deadline(10))
    arguments = into.read_text().splitlines()
    assert arguments[-1] == (tmp_path / "r.html").as_uri()
    profile = next(one.partition("=")[2] for one in arguments if one.startswith("--user-data-dir="))
    assert not os.path.exists(profile)  # noqa: PTH110 - a text that the program was told


@pytest.mark.parametrize(
    ("body", "budget_s", "error", "text"),
    [
        (None, 5, Refused, "apt-get install chromium"),
        ("import sys; sys.exit('no display')", 10, Refused, "chromium"),
        ("pass", 10, Refused, "chromium"),
        ("import signal; signal.alarm(60); signal.pause()", 0.3, DeadlineExceeded, "chromium"),
    ],
    ids=["none is installed", "it fails", "it does nothing", "it hangs"],
)
def test_a_browser_that_takes_no_picture_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str | None,
    budget_s: float,
    error: type[Exception],
    text: str,
) -> None:
    """An older picture does not pass for a new one."""
    monkeypatch.setenv("PATH", str(tmp_path))
    into = tmp_path / "r.png"
    if body is not None:
        into.write_text("old")
        executable(tmp_path / "chromium", body)
    with pytest.raises(error, match=text):
        picture(tmp_path / "r.html", into, Deadline(budget_s))
    assert not into.exists()
