"""The X-ray of a real log: a crash between flush and commit, the run that heals it, and the page in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.browser import WAIT, Page, rendered, tab
from harness.operate import json_of, pipeline
from harness.pipeline import Stage
from harness.waiting import markers_written

from brew.names import ExitCode

ORDERS = 12


def strips(stage: Stage, *more: str) -> dict[str, Any]:
    """Partition 0 of input and output."""
    return {strip["role"]: strip for strip in json_of(stage, "xray", *more)["strips"]}


def crash(stage: Stage, journal: Path) -> None:
    options = ("--master", "none", "--crash-prob", "1.0", "--journal", str(journal))
    ran = stage.pipeline(*options, seconds=60)
    assert ran.code == ExitCode.CRASHED_ON_PURPOSE, ran.text


def kinds(strip: dict[str, Any]) -> list[tuple[str, int]]:
    return [(run["kind"], run["records"]) for run in strip["runs"]]


def drawn(page: Page) -> dict[str, int]:
    """What the browser shows, by kind: pieces that are there at its moment, as open where they still are."""
    counts: dict[str, int] = {}
    for node in page.nodes:
        if node.tag == "rect" and "data-t" in node.attributes and node.attributes.get("data-s") != "none":
            kind = node.attributes.get("data-s") or node.attributes["class"].split()[0]
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def test_a_crash_is_seen_open_then_aborted_and_the_slider_goes_back_to_it(stage: Stage, tmp_path: Path) -> None:
    """First open records that hold back the LSO, then their abort marker and the commit, and a page that replays it."""
    stage.create(1, orders=ORDERS)
    crash(stage, tmp_path / "journal")

    before = strips(stage)
    output = before["output"]
    assert kinds(output) == [("open", ORDERS)]
    assert (output["last_stable"], output["high_watermark"]) == (0, ORDERS)
    assert output["runs"][0]["source"] == [f"{stage.names.input}/0/0", f"{stage.names.input}/0/{ORDERS - 1}"]
    assert before["input"]["records"]["plain"] == ORDERS
    assert before["input"]["group"] is None

    stage.drain_locally("--journal", str(tmp_path / "journal"))
    markers_written(stage.connection, stage.names.output)
    after = strips(stage)
    output = after["output"]
    assert kinds(output) == [("aborted", ORDERS), ("abort-marker", 1), ("committed", ORDERS), ("commit-marker", 1)]
    assert output["last_stable"] == output["high_watermark"] == 2 * ORDERS + 2
    aborted, _, committed, _ = output["runs"]
    assert aborted["source"] == committed["source"]
    assert (aborted["producer_id"], aborted["epoch"] < committed["epoch"]) == (committed["producer_id"], True)
    assert after["input"]["group"] == ORDERS

    page = tmp_path / "xray.html"
    code, output = pipeline(stage, "xray", "--journal", str(tmp_path / "journal"), "--out", str(page))
    assert code == ExitCode.DONE, output
    assert "crashed" in page.read_text()
    end = rendered(page)
    runs = {"plain": 1, "aborted": 1, "abort-marker": 1, "committed": 1, "commit-marker": 1}
    assert drawn(end) == {**runs, "position": 1}
    assert end.texts["lso-1"] == f"LSO {2 * ORDERS + 2}"
    last = int(end.attribute("moment-slider", "max"))
    assert (end.texts["when"].endswith(f"{last + 1} of {last + 1}"), "committed" in end.texts["step"]) == (True, True)

    crashed = next(
        number for number, moment in enumerate(moments_of(end)) if moment["lso"] == 0 and moment["hw"] == ORDERS
    )
    at_crash = rendered(page, f"#t={crashed}")
    assert drawn(at_crash) == {"plain": 1, "open": 1}
    assert (at_crash.texts["lso-1"], at_crash.texts["hw-1"]) == ("LSO 0", f"HW {ORDERS}")
    assert at_crash.attribute("group-0", "visibility") == "hidden"
    use_in_browser(page, last, crashed)


def use_in_browser(page: Path, last: int, crashed: int) -> None:
    """What a hand does in an open browser: point at a piece, move the slider by its keys, press play and stop."""
    with tab(page.as_uri()) as browser:
        browser.evaluate(WAIT % f"document.body?.dataset.moment === '{last}'")
        assert browser.evaluate(READOUT) == ""
        browser.point("rect.aborted[data-t]")
        readout = f"offsets 0 to {ORDERS - 1}: aborted; {ORDERS} records; producer "
        assert browser.evaluate(WAIT % f"{READOUT}.startsWith('{readout}')")
        assert f"0 to {ORDERS - 1}; ended by the marker at {ORDERS}" in browser.evaluate(READOUT)
        browser.point("rect.commit-marker[data-t]")
        browser.evaluate(WAIT % f"{READOUT}.startsWith('offset {2 * ORDERS + 1}: commit marker')")

        browser.evaluate("document.getElementById('moment-slider').focus(); 0")
        for _ in range(last - crashed):
            browser.key("ArrowLeft", 37)
        browser.evaluate(WAIT % f"document.body.dataset.moment === '{crashed}'")
        assert browser.evaluate("location.hash") == f"#t={crashed}"
        state = "[...document.querySelectorAll('rect.aborted[data-t]')].map((one) => one.dataset.s)"
        assert browser.evaluate(state) == ["open"]

        browser.key("End", 35)
        browser.key("ArrowLeft", 37)
        browser.key("ArrowLeft", 37)
        browser.evaluate(WAIT % f"document.body.dataset.moment === '{last - 2}'")
        browser.evaluate(RECORD_MOMENTS)
        browser.point("button[name=play]", press=True)
        browser.evaluate(WAIT % f"document.body.dataset.moment === '{last}' && {PLAY} === 'play'")
        assert browser.evaluate("window.seen") == [str(last - 1), str(last)]
        browser.point("button[name=play]", press=True)  # from the end it begins anew
        browser.evaluate(WAIT % f"document.body.dataset.moment === '0' && {PLAY} === 'stop'")
        browser.point("button[name=play]", press=True)
        browser.evaluate(WAIT % f"{PLAY} === 'play'")


READOUT = "document.getElementById('readout').textContent"
PLAY = "document.querySelector('button[name=play]').textContent"
RECORD_MOMENTS = """window.seen = [];
new MutationObserver(() => window.seen.push(document.body.dataset.moment)).observe(
  document.body, {attributeFilter: ["data-moment"]}); 0"""


def moments_of(page: Page) -> list[dict[str, int]]:
    """LSO and high watermark of the output at each moment, as the page's data tells them."""
    data = json.loads(page.texts["told"])
    return [{"lso": stable, "hw": end} for stable, end, _ in data["strips"][1]["bounds"]]


def test_windows_pictures_and_the_terminal(stage: Stage, tmp_path: Path) -> None:
    """A part of a log keeps its fates though the marker lies behind it; a missing topic is told; a bad name refused."""
    stage.create(1, orders=ORDERS)
    code, output = pipeline(stage, "xray")
    assert (code, f"unavailable: topic {stage.names.output} does not exist" in output) == (ExitCode.DONE, True), output
    stage.drain_locally()
    markers_written(stage.connection, stage.names.output)

    part = strips(stage, "--from", "3", "--to", "7")["output"]
    assert kinds(part) == [("committed", 4)]
    assert kinds(strips(stage, "--last", "2")["output"]) == [("committed", 1), ("commit-marker", 1)]

    picture = tmp_path / "xray.svg"
    code, output = pipeline(stage, "xray", "--out", str(picture))
    assert (code, "2 partitions, 25 offsets" in output) == (ExitCode.DONE, True), output
    assert picture.read_text().startswith("<svg")
    code, output = pipeline(stage, "xray")
    assert (code, f"{ORDERS} committed · log start 0 · LSO {ORDERS + 1}" in output) == (ExitCode.DONE, True), output

    code, output = pipeline(stage, "xray", "--out", str(tmp_path / "xray.png"))
    assert (code, "has to end in .html" in output) == (ExitCode.USAGE, True)
    code, output = pipeline(stage, "xray", "--topic", stage.names.topic("missing"))
    assert (code, "no topic " in output) == (ExitCode.REFUSED, True)
