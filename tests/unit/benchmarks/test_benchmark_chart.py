"""The picture of the results: what it shows, to scale."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

from results import draw, panels, together
from runs import Latency, Restart, Results, Run, load, save

from brew.cli import exit_code_of
from brew.errors import Refused

_SVG = "{http://www.w3.org/2000/svg}"


def _run(contender: str, records: int, number: int, rate: float, cpu_s: float = 10.0) -> Run:
    parts = {"driver": 1.0, "jvm": 0.0, "workers": 0.0}
    return Run(contender, records, number, rate, rate, 1.0, 2.0, 3.0, cpu_s, 1.0, 0.0, 90.0, parts, "proven")


RESULTS = Results(
    "run.py",
    {"cores": "2"},
    {"direct": "ours", "a<b&c": "a peer"},
    ["direct"],
    [
        *(_run("direct", 1000, number, rate) for number, rate in enumerate((300.0, 400.0, 350.0), 1)),
        _run("a<b&c", 1000, 1, 700.0),
        _run("direct", 3000, 1, 500.0, cpu_s=30.0),
    ],
    [Restart("direct", 1000, 1, 5, 5, 3.5, 9.0, 0, "proven")],
    [Latency("direct", 1, 1000, 999.0, 20.0, 4.0, 33.0, 90.0, 99.0, 0.2, 300.0, "proven")],
)


def test_each_measure_has_a_panel_and_the_best_stands_first() -> None:
    """The larger backlog comes first; the price of a record needs two backlogs, so only one contender has it."""
    shown = {panel.title: [bar.name for bar in panel.bars] for panel in panels(RESULTS)}
    assert shown == {
        "3,000 orders: records/s": ["direct"],
        "1,000 orders: records/s": ["a<b&c", "direct"],
        "CPU per record, µs": ["direct"],
        "Latency at 1,000 records/s, ms": ["direct"],
        "Start to first commit, s": ["direct"],
        "Restart after kill -9, s": ["direct"],
    }


def test_what_was_not_measured_has_no_panel() -> None:
    """An empty frame would look like a zero."""
    shown = panels(replace(RESULTS, restarts=[], latencies=[]))
    assert [panel.title for panel in shown] == [
        "3,000 orders: records/s",
        "1,000 orders: records/s",
        "CPU per record, µs",
    ]
    assert ET.fromstring(draw(replace(RESULTS, runs=[], restarts=[], latencies=[]))).findall(f"{_SVG}rect") == []


def test_bars_are_to_scale_and_lines_span_the_rounds() -> None:
    """350 beside 700 is half as long; its line goes from 300 to 400; a single round has none; ours are marked."""
    svg = ET.fromstring(draw(replace(RESULTS, runs=RESULTS.runs[:4], restarts=[], latencies=[])))
    peer, mine = svg.findall(f"{_SVG}rect")
    assert float(mine.attrib["width"]) == pytest.approx(float(peer.attrib["width"]) / 2, abs=0.1)
    assert (peer.attrib["class"], mine.attrib["class"]) == ("bar", "bar ours")
    (line,) = svg.findall(f"{_SVG}line")
    unit = float(mine.attrib["width"]) / 350
    span = [float(line.attrib[name]) - float(mine.attrib["x"]) for name in ("x1", "x2")]
    assert span == pytest.approx([300 * unit, 400 * unit], abs=0.2)
    assert "a<b&c" in [text.text for text in svg.iter(f"{_SVG}text")]


def test_nothing_leaves_the_picture() -> None:
    """Every bar, line and word begins inside of the frame."""
    svg = ET.fromstring(draw(RESULTS))
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    for shape in svg.iter():
        for name, limit in {"x": width, "x2": width, "y": height, "y1": height}.items():
            assert 0 <= float(shape.attrib.get(name, 0)) <= limit


def test_files_are_taken_together_with_rounds_of_their_own(tmp_path: Path) -> None:
    """Rounds of two files are no pair; a file comes back as it was written."""
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    save(RESULTS, one)
    save(replace(RESULTS, contenders={"franz": "a peer"}, ours=[], runs=[_run("franz", 1000, 1, 9.0)]), two)
    assert load([one]) == RESULTS
    both = load([one, two])
    assert both.names(1000) == ["direct", "a<b&c", "franz"]
    assert both.by_round("franz", 1000, lambda run: run.records_per_s) == {4: 9.0}
    assert both.ratio("direct", "franz", 1000, lambda run: run.records_per_s) is None


def test_a_page_is_put_together_from_several_files(tmp_path: Path) -> None:
    """Each command stands in it, numbers of each file, and the twins beside it."""
    one, two, page = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "PAGE.md"
    save(replace(RESULTS, command="first command"), one)
    save(replace(RESULTS, command="second command", runs=[_run("direct", 7_654_321, 1, 9.0)]), two)
    assert exit_code_of(together, "results", [str(one), str(two), "--out", str(page)]) == 0
    text = page.read_text()
    assert all(told in text for told in ("first command", "second command", "7,654,321 orders", "1,000 orders"))
    assert load([tmp_path / "page.json"]) == load([one, two])
    assert (tmp_path / "page.svg").read_text() == draw(load([one, two]))


@pytest.mark.parametrize("text", ["[]", "{", '{"runs": []}', '{"format": 1}'])
def test_a_file_of_another_format_is_refused(tmp_path: Path, text: str) -> None:
    """Its numbers would mean something else."""
    file = tmp_path / "old.json"
    file.write_text(text)
    with pytest.raises(Refused, match=r"old\.json: "):
        load([file])
