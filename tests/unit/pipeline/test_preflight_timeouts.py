"""The time-outs of a run, explained: their order, who sets each, and what happens when one is over."""

from __future__ import annotations

from typing import Any

import pytest

from brew.connection import Connection
from brew.preflight.timeouts import TimeoutChain, chain_text, explained
from brew.settings import ClaimsSettings, PipelineSettings, ProfilesSettings, Reader, SparkSettings

CHAIN = TimeoutChain(30_000, 54_000, 60_000, 900_000)


def settings(**more: Any) -> PipelineSettings:
    given = {"spark": SparkSettings("local[2]"), **more}
    return PipelineSettings(Connection("k:9092"), "in", "out", "dead", "g", **given)


def told(found: TimeoutChain = CHAIN, **more: Any) -> dict[str, Any]:
    return explained(settings(**more), found, 10_080)


def beside(**more: Any) -> dict[str, int | None]:
    return {one["name"]: one["ms"] for one in told(**more)["beside"]}


def test_the_chain_stands_in_its_order_with_who_sets_each_and_what_happens() -> None:
    """`request < delivery < transaction < the brokers' maximum`."""
    links = told()["chain"]
    assert [(one["name"], one["ms"]) for one in links] == [
        ("request", 30_000),
        ("delivery", 54_000),
        ("transaction", 60_000),
        ("brokers' maximum", 900_000),
    ]
    assert all(one["set_by"] and one["exceeded"] for one in [*links, *told()["beside"]])
    assert chain_text(told()) == ("request 30 s < delivery 54 s < transaction 60 s < brokers' maximum 900 s: holds")


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (CHAIN, True),
        (TimeoutChain(54_000, 54_000, 60_000, 900_000), False),
        (TimeoutChain(30_000, 54_000, 60_000, 60_000), False),
        (TimeoutChain(30_000, 54_000, 60_000, None), None),
        (TimeoutChain(60_000, 54_000, 60_000, None), False),
    ],
)
def test_a_chain_holds_only_where_each_is_less_than_the_next(found: TimeoutChain, holds: bool | None) -> None:
    """What the brokers do not tell can't be said to hold; what is broken before it is broken."""
    assert told(found)["holds"] is holds


def test_beside_the_chain_stands_what_this_run_has() -> None:
    """By its own options: a lease with the direct reader, heartbeats with several drivers, patience of a drain."""
    alone = beside()
    assert (alone["batch"], alone["attempt"], alone["watchdog"], alone["lease"]) == (20_000, 60_000, 120_000, 10_000)
    assert (alone["position"], alone["session"]) == (604_800_000, None)
    assert "lease" not in beside(reader=Reader.CONNECTOR)
    assert "blocked patience" not in beside(follow=True)
    several = beside(stand_by=ClaimsSettings(3.0), profiles=ProfilesSettings())
    assert [several[name] for name in ("lease", "heartbeat", "take-over", "profiles")] == [6_000, 3_000, 6_000, 120_000]


def test_who_set_the_request_time_out_is_told() -> None:
    """A file of client settings, or the library's default."""
    given = Connection("k:9092", {"request.timeout.ms": "10000"})
    run = PipelineSettings(given, "in", "out", "dead", "g")
    by = [explained(one, CHAIN, None)["chain"][0]["set_by"] for one in (run, settings())]
    assert ("--client-config" in by[0], "default" in by[1]) == (True, True)
