"""The campaign's cells beyond Kafka, short: one that is proven, its control, and a machine without the server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from harness.brokers import Broker

from proof.campaign import matrix
from proof.campaign.cluster import Foreign
from proof.campaign.runner import Terms, run


def test_a_ledger_that_is_killed_around_its_commit_is_proven(broker: Broker, tmp_path: Path) -> None:
    """Two deaths; rows and cents are counted in the database and in the topic, and nothing is left on the brokers."""
    unhurried = replace(matrix.named("F29-consumer"), bound_s=None)
    found = run(unhurried, 1, Foreign(broker.bootstrap), Terms(tmp_path, kills=2))
    assert (found.verdict, found.anomalies, found.doubts) == ("proven", [], [])
    assert found.fired["kills"] == found.needed["kills"] == 2
    assert f"{found.counts['orders']} rows of {found.counts['orders']} outputs" in found.note
    assert f"{found.counts['cents']} of {found.counts['cents']} cents" in found.note
    assert found.counts["orders"] == found.counts["outputs"]


def test_a_ledger_whose_position_is_committed_afterwards_is_violated(broker: Broker, tmp_path: Path) -> None:
    """The control: the same deaths, and the double rows are named; a stall would not be enough."""
    found = run(matrix.named("F29-consumer-control"), 1, Foreign(broker.bootstrap), Terms(tmp_path, kills=1))
    assert (found.verdict, found.as_expected) == ("violated", True), found.doubts
    assert {one["name"] for one in found.anomalies} == {"ledger-duplicate", "ledger-drift"}


def test_a_cell_whose_server_is_not_installed_says_how_to_install_it(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is inconclusive, which ends a campaign with exit code 3, and never left out in silence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    found = run(matrix.named("F32-forgetting"), 1, Foreign(broker.bootstrap), Terms(tmp_path))
    assert (found.verdict, found.as_expected) == ("inconclusive", False)
    assert any("make setup-stores" in doubt for doubt in found.doubts)
