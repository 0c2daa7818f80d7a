"""Row F34's cells on a real broker: sleepers are proven, and members that believe too much are caught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from harness.brokers import Broker

from proof.campaign import campaign
from proof.campaign.cells import claims
from proof.campaign.cluster import ExternalCluster
from proof.campaign.runner import RunSettings, run


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three members of eight partitions: the same cell, sooner."""
    monkeypatch.setattr(claims, "MEMBERS", 3)
    monkeypatch.setattr(claims, "PARTITIONS", 8)


def test_a_claimant_that_sleeps_is_proven_to_own_nothing_that_others_have(broker: Broker, tmp_path: Path) -> None:
    """It sleeps once; what it wrote on waking was late, and no position of the log has two owners."""
    cell = replace(campaign.named("F34-sleepers"), needed={"pauses": 1, "takeovers": 1, "late": 1, "views": 3})
    found = run(replace(cell, bound_s=None), 1, ExternalCluster(broker.bootstrap), RunSettings(tmp_path, kills=1))
    assert (found.verdict, found.anomalies, found.doubts) == ("proven", [], [])
    assert len(found.recovery_s) == 1


def test_members_that_do_not_hear_what_they_lost_are_caught(broker: Broker, tmp_path: Path) -> None:
    """The control goes red, or the others' green would mean nothing."""
    cell = replace(campaign.named("F34-believers-control"), bound_s=None)
    found = run(cell, 1, ExternalCluster(broker.bootstrap), RunSettings(tmp_path, kills=1))
    assert (found.verdict, found.expected) == ("violated", "violated")
    assert {one["name"] for one in found.anomalies} == {"two-owners"}
