"""What the X-ray's renderers write: SVG, page, terminal, JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from harness.browser import seen
from xray_logs import T0, batch, crashed_and_healed, marker, strip

from operations.xray import html as xray_html
from operations.xray import text
from operations.xray.model import Kind
from operations.xray.text import document
from operations.xray.timeline import Timeline, Xray, timeline

NS = "{http://www.w3.org/2000/svg}"


def drawn(xray: Xray) -> ET.Element:
    return ET.fromstring(xray_html.svg_document(xray))


def kinds(root: ET.Element, strip_name: str) -> list[str]:
    """The classes of the pieces of one strip, from left to right."""
    (found,) = [one for one in root.iter(f"{NS}g") if (one.get("aria-label") or "").startswith(strip_name)]
    return [one.get("class", "").split()[0] for one in found.iter(f"{NS}rect") if one.get("class") != "bed"]


def test_a_strip_shows_each_fate_in_offset_order_and_says_so_in_words() -> None:
    """Aborted, its marker, committed, its marker, open; the input's are plain."""
    root = drawn(crashed_and_healed())
    assert kinds(root, "in partition 0") == ["plain", "position"]
    assert kinds(root, "out partition 0") == ["aborted", "abort-marker", "committed", "commit-marker", "open"]
    words = [one.text or "" for one in root.iter(f"{NS}title")]
    told = "offsets 0 to 7: aborted; 8 records; producer 7 epoch 0; source in[0] 0 to 7; ended by the marker at 8"
    assert told in words
    labels = {one.text for one in root.iter(f"{NS}text")}
    assert {"LSO 18", "HW 20", "group 8", "partition 0", "log start 0"} <= labels
    assert {kind.words for kind in Kind} <= labels


def test_where_readers_wait_is_where_the_line_stands() -> None:
    """The last stable offset at the open records' left edge, the high watermark at their right."""
    root = drawn(crashed_and_healed())
    found = {one.get("id"): one.get("transform", "") for one in root.iter(f"{NS}g")}
    at = {name: float(found[name][len("translate(") : -1]) for name in ("lso-1", "hw-1", "group-0")}
    assert at["lso-1"] == pytest.approx(xray_html.LEFT + xray_html.PLOT * 18 / 20, abs=0.1)
    assert at["hw-1"] == pytest.approx(xray_html.LEFT + xray_html.PLOT, abs=0.1)
    assert at["group-0"] == pytest.approx(xray_html.LEFT + xray_html.PLOT * 8 / 10, abs=0.1)


def test_what_the_group_has_committed_is_a_strip_between_input_and_output() -> None:
    """A piece for each moment that moved it, at the input's scale; a position that went back and came again, twice."""
    xray = crashed_and_healed()
    orders, copies = xray.strips
    moves = {0: [(T0 + 5, 2), (T0 + 20, 1), (T0 + 40, 8)]}
    line = timeline([orders, copies], moves, xray.told, "in", T0 + 100)
    root = ET.fromstring(xray_html.drawing(replace(xray, line=line), moving=True))
    found = {}
    for group in root.iter(f"{NS}g"):
        piece = group.find(f"{NS}rect[@class='position']")
        if piece is not None and (title := group.find(f"{NS}title")) is not None:
            found[title.text] = [piece.get(name) for name in ("x", "width", "y", "data-t")]
    each, y = xray_html.PLOT / 10, xray_html.layout(xray).rows[0].top + xray_html.HIGH + 2
    assert found == {
        "offsets 0 to 1: committed by g by 20:26:40.005": [f"{xray_html.LEFT:.1f}", f"{2 * each:.1f}", f"{y:g}", "1 1"],
        "offsets 1 to 7: committed by g by 20:26:40.040": [
            f"{xray_html.LEFT + each:.1f}",
            f"{7 * each:.1f}",
            f"{y:g}",
            "3 3",
        ],
    }
    assert xray_html.layout(xray).rows[1].top - y > xray_html.HIGH


def test_more_runs_than_pixels_become_bins_and_one_open_record_is_still_seen() -> None:
    """A picture of 3,000 transactions stays small."""
    log = [one for at in range(3000) for one in (batch(3 * at, 2, 1), marker(3 * at + 2, 1, "commit", at=T0))]
    found = strip("out", [*log, batch(9000, 1, 2)], stable=9000)
    line = timeline([found], {}, [], "in", T0 + 1)
    xray = Xray((found,), line, {"out": "output"}, "g", "k:1", T0)
    text = xray_html.svg_document(xray)
    assert len(text) < 120_000
    root = ET.fromstring(text)
    pieces = kinds(root, "out partition 0")
    assert pieces.count("open") == 1
    assert len(pieces) < 4 * xray_html.MOST_COLUMNS
    told = "16 committed, 8 commit marker; producer 1 epoch 0; source in[0] 0 to 7"
    assert [one for one in root.iter(f"{NS}title") if (one.text or "").endswith(told)]
    first, *_, last = document(xray)["strips"][0]["bins"]
    assert (first["producer_id"], first["epochs"], first["source"]) == (1, (0, 0), ["in/0/0", "in/0/7"])
    assert (last["producers"], last["producer_id"], last["epochs"]) == (1, 2, (0, 0))


def test_the_page_fetches_nothing_and_runs_only_its_own_script() -> None:
    """Its policy names style and script by their hashes."""
    text = xray_html.page(crashed_and_healed())
    assert not re.findall(r"(?:src|href)=", text)
    assert re.findall(r"https?://\S+?\"", text) == ['http://www.w3.org/2000/svg"']
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    for element in ("style", "script"):
        (inner,) = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"sha256-{digest}" in policy[1]


def test_names_are_text_on_the_page_whatever_they_hold() -> None:
    """A group is any string; it ends neither an element nor the script's data."""
    xray = replace(crashed_and_healed(), group="</script><b>", unavailable=("<i>",))
    text = xray_html.page(xray)
    assert "<b>" not in text.replace("&lt;b&gt;", "")
    assert text.count("</script>") == 2
    assert "&lt;i&gt;" in text


def test_the_pages_data_tells_the_bounds_of_every_moment() -> None:
    """Before the abort everything of the output waits; the group moves with the commit."""
    text = xray_html.page(crashed_and_healed())
    (inner,) = re.findall(r'type="application/json">(.*?)</script>', text, re.DOTALL)
    told = json.loads(inner)
    at = {moment - T0: index for index, moment in enumerate(told["moments"])}
    assert sorted(at) == [-50, 5, 20, 40, 100]
    output, orders = told["strips"][1]["bounds"], told["strips"][0]["bounds"]
    assert output[at[5]] == [0, 8, None]
    assert output[at[40]] == [18, 20, None]
    assert [orders[at[moment]][2] for moment in (20, 40, 100)] == [None, 8, 8]
    assert re.search(r'<tr class="crash" data-ms="\d+" data-told="crashed: input partition 0', text)


def test_the_terminals_strip_is_as_wide_as_there_is_room() -> None:
    """One sign or several per offset, or a cell for several offsets where open ones come first."""
    xray = crashed_and_healed()
    output = xray.strips[1]
    wide = "".join(sign for sign, _ in text.cells(output, 45))
    assert wide == "░" * 16 + "┆" * 2 + "█" * 16 + "│" * 2 + "?" * 4
    narrow = "".join(sign for sign, _ in text.cells(output, 5))
    assert narrow == "░░██?"
    for width in (40, 80, 200):
        found = [line.plain for line in text.lines(xray, width)]
        assert [len(one) <= width for one in found if one.startswith(("input", "output"))] == [True, True]
    told = [line.plain for line in text.lines(xray, 80)]
    assert "            8 committed · 8 aborted · 2 open · log start 0 · LSO 18 · HW 20" in told


def test_the_json_twin_tells_runs_with_writer_and_source() -> None:
    """What the picture shows, as numbers."""
    told = document(crashed_and_healed())
    output = told["strips"][1]
    assert (output["role"], output["last_stable"], output["high_watermark"]) == ("output", 18, 20)
    assert output["records"] == {
        "committed": 8,
        "plain": 0,
        "aborted": 8,
        "open": 2,
        "commit-marker": 1,
        "abort-marker": 1,
    }
    assert output["runs"][0]["source"] == ["in/0/0", "in/0/7"]
    assert (output["runs"][0]["producer_id"], output["runs"][0]["epoch"], output["runs"][0]["marker"]) == (7, 0, 8)
    assert told["strips"][0]["group"] == 8


def test_without_a_browser_the_test_of_the_page_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails; it does not skip."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt-get install chromium"):
        seen(tmp_path / "page.html")


def test_an_empty_partition_is_a_strip_of_nothing() -> None:
    """No division by its length."""
    empty = replace(strip("out", [batch(0, 1, 1)]), runs=[], until=0)
    xray = Xray((empty,), Timeline((T0,), ((),)), {"out": "out"}, "g", "k:1", T0)
    assert kinds(drawn(xray), "out partition 0") == []
    assert text.cells(empty, 80) == []
