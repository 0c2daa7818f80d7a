"""The live view's page and its parts: complete without a script, and nothing in it that a script could be."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from harness.browser import Page
from harness.ui_views import (
    TAIL,
    PollResults,
    failed,
    flow,
    holder,
    look,
    moving,
    running,
    seen,
    status,
    statuses,
    strip,
    tails,
)

from brew.html import Markup
from brew.preflight.finding import Finding, Severity
from operations.ui import page
from operations.ui.model import PollResult, View
from operations.ui.page import parts, style
from operations.ui.server import EventBroadcaster, StreamPosition

EVIL = '"><script>alert(1)</script>\u202e'


def drawn(view: View) -> Page:
    found = parts(view)
    hub = EventBroadcaster()
    hub.publish(found)
    return Page(page.page(view, found, str(hub.stand)))


def test_the_first_paint_holds_all_there_is() -> None:
    """Positions, phases, the latest transactions and the tails are in the page before any script runs."""
    answers, memory = moving(statuses=(statuses(status(running(0))),))
    seen_page = drawn(seen(answers, memory))
    texts = seen_page.texts
    assert texts["r0-state"] == "● working"
    assert texts["r0-position"] == "1,350 / 5,000"
    assert "produce 0.21 s" in texts["r0-does"]
    assert "20 in 0.25 s 100:4" in texts["r0-last"]
    assert "20 aborted" in texts["r0-tail"]
    assert "g:in:0" in texts["transactions"]
    assert texts["proof"].startswith("not verified yet: brew verify (make verify)")
    assert sum(one.tag == "rect" and one.attributes.get("class", "").startswith("step-") for one in seen_page.nodes) > 6


def test_a_blocked_partition_is_named_with_the_command_that_tells_more() -> None:
    """In the box on top, in the square, in its row."""
    view = seen(PollResults(flow(look(0, 5, 5), look(1, 10, 10, 22, holders=holder(1))), tails(strip(0), strip(1))))
    texts = drawn(view).texts
    assert "▲ partition 1 blocked: 12 offsets behind 'billing-7'" in texts["ill"]
    assert "brew doctor --bootstrap k:9092" in texts["ill"]
    assert "▲1" in texts["tile-states"]
    assert "12 offsets behind" in texts["r1-does"]


def test_64_partitions_have_a_row_and_a_square_each_that_leads_to_it() -> None:
    """And the page stays below a megabyte."""
    answers, memory = moving(partitions=64)
    view = seen(answers, memory)
    found = drawn(view)
    ids = {one.attributes.get("id") for one in found.nodes}
    leads = [one.attributes["href"][1:] for one in found.nodes if one.tag == "a"]
    assert leads == [f"p{partition}" for partition in range(64)]
    assert set(leads) <= ids
    assert sum(map(len, parts(view).values())) < 1_000_000


def test_no_name_becomes_markup() -> None:
    """Whoever names a transaction, a program or a setting writes no page."""
    finding = Finding(EVIL, EVIL, EVIL, EVIL, EVIL, Severity.WARNING)
    answers = PollResults(
        flow(look(0, 10, 10, 22, holders=holder(0, EVIL))),
        tails(strip()),
        (statuses(status(running(0, step=EVIL)), name=EVIL), statuses(status(group=EVIL), name=EVIL)),
        preflight=PollResult("preflight", 60, 30, [finding], 100.0, 50.0),
    )
    found = drawn(seen(answers))
    scripts = [one.attributes for one in found.nodes if one.tag == "script"]
    assert scripts == [{"src": "page.js", "defer": ""}]
    assert "alert(1)" in found.texts["ill"]
    assert "\\u202e" in found.texts["preflight"]


def test_the_policy_allows_the_pages_own_files_alone_and_the_page_needs_no_more() -> None:
    """No inline style, no inline script, no handler, no other host."""
    answers, memory = moving()
    found = drawn(seen(answers, memory))
    assert "default-src 'none'" in page.POLICY
    assert "unsafe" not in page.POLICY
    attributes = {name for one in found.nodes for name in one.attributes}
    assert not {name for name in attributes if name == "style" or name.startswith("on")}
    assert not [one for one in found.nodes if one.tag == "style"]
    links = [one.attributes[name] for one in found.nodes for name in ("href", "src") if name in one.attributes]
    assert [link for link in links if not re.fullmatch(r"#p\d+|page\.(css|js)|icon\.svg", link)] == []
    for name in ("page.js", "icon.svg"):
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page.asset(name))
    assert "url(" not in page.asset("page.css")


def test_a_stale_source_is_marked_where_its_numbers_stand() -> None:
    """Beside the heading and in its lamp; the others have no mark."""
    answers, memory = moving()
    texts = drawn(seen(replace(answers, flow=failed(answers.flow, "no broker")), memory, 120.0)).texts
    assert texts["mark-flow"] == "✗ stale, last answer 20 s ago: no broker"
    assert "stale" in texts["lamp-flow"]
    assert "mark-preflight" not in texts


@pytest.mark.parametrize("count", [0, 1, 90])
def test_small_pictures_are_whole(count: int) -> None:
    """With no value, one, and as many as fit."""
    view = seen(PollResults(flow(look(0, 10, 50)), tails(strip())))
    row = replace(view.rows[0], trace=(1.0,) * count, steps={}, step="fence", state="working")
    cells = parts(replace(view, rows=(row,), tail=TAIL))
    assert ("polyline" in cells["r0-rate"]) == (count > 1)
    assert "nan" not in cells["r0-rate"].lower()
    assert cells["r0-does"].count("<rect") == 6
    assert 'class="waits"' in cells["r0-tail"]


class Balanced(HTMLParser):
    """Counts elements that were opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.depth: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - the library's
        self.depth[tag] = self.depth.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        self.depth[tag] = self.depth.get(tag, 0) - 1


def test_each_part_is_one_element_with_its_own_id() -> None:
    """The page's script puts it in place of the old one."""
    answers, memory = moving()
    for name, one in parts(seen(answers, memory)).items():
        assert re.match(r"<\w+[^>]*>", one)[0].count(f' id="{name}"') == 1  # type: ignore[index]
        whole = Balanced()
        whole.feed(one)
        assert {tag for tag, depth in whole.depth.items() if depth} <= {"br"}


# What readers are told.


def test_a_reader_is_told_what_changed_behind_its_place_and_nothing_else() -> None:
    """However many changes it slept through."""
    hub = EventBroadcaster()
    hub.publish({"a": Markup("1"), "b": Markup("1")})
    first = hub.stand
    hub.publish({"a": Markup("2"), "b": Markup("1")})
    hub.publish({"a": Markup("3"), "b": Markup("1")})
    assert hub.since(first) == {"a": Markup("3")}
    assert hub.since(hub.stand) == {}
    same = hub.stand
    hub.publish({"a": Markup("3"), "b": Markup("1")})
    assert hub.stand == same
    assert StreamPosition.parse(str(first)) == first


def test_a_page_of_another_start_or_with_other_partitions_has_to_load_itself_anew() -> None:
    """Its ids would not be those of the parts."""
    hub = EventBroadcaster()
    hub.publish({"a": Markup("1")})
    old = hub.stand
    hub.publish({"a": Markup("1"), "r1-p": Markup("1")})
    assert hub.since(old) is None
    assert hub.since(StreamPosition(hub.boot, hub.change + 1)) is None
    for text in ("", "x", "a.b", "a.-1", f"a.{'9' * 20}"):
        assert StreamPosition.parse(text) is None


def test_readers_wake_with_a_change_and_with_the_end() -> None:
    """And after their patience without either."""

    async def wait() -> list[bool]:
        hub = EventBroadcaster()
        hub.publish({"a": Markup("1")})
        slept = asyncio.create_task(hub.wait_for_change(hub.stand, 30))
        await asyncio.sleep(0)
        hub.publish({"a": Markup("2")})
        await asyncio.wait_for(slept, 1)
        await asyncio.wait_for(hub.wait_for_change(hub.stand, 0.01), 1)
        ended = asyncio.create_task(hub.wait_for_change(hub.stand, 30))
        await asyncio.sleep(0)
        hub.close()
        await asyncio.wait_for(ended, 1)
        return [slept.done(), ended.done()]

    assert asyncio.run(wait()) == [True, True]


def test_the_badge_says_live_only_while_every_source_answers() -> None:
    """Not over numbers that are old, and not before the first ones."""
    fresh = PollResults(flow(look(0, 10, 50)), tails(strip()))
    assert ">live<" in str(parts(seen(fresh))["badge"])
    assert ">live<" not in str(parts(seen(fresh, now_s=160.0))["badge"])
    assert "stale: Kafka" in str(parts(seen(fresh, now_s=160.0))["badge"])
    broken = PollResults(failed(flow(look(0, 10, 50)), "no broker answers"), tails(strip()))
    assert "stale: Kafka" in str(parts(seen(broken))["badge"])
    nothing = PollResults(PollResult("flow", 1.0, 5.0, since_s=100.0), tails(strip()))
    assert ">asking<" in str(parts(seen(nothing))["badge"])


def test_the_style_is_css_and_not_escaped_as_html() -> None:
    """Its selectors have quotes; escaped ones match nothing, and the filter of the table hid no row."""
    assert "&" not in style()
    assert '[data-only="ill"]' in style()
