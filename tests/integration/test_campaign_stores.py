"""The campaign's cells beyond Kafka: a control, and a machine without the server; `make prove` shows the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.brokers import Broker

from proof.campaign import campaign
from proof.campaign.cluster import ExternalCluster
from proof.campaign.runner import RunSettings, run


def test_a_ledger_whose_position_is_committed_afterwards_is_violated(broker: Broker, tmp_path: Path) -> None:
    """The control: the same deaths, and the double rows are named; a stall would not be enough."""
    found = run(
        campaign.named("F29-consumer-control"), 1, ExternalCluster(broker.bootstrap), RunSettings(tmp_path, kills=1)
    )
    assert (found.verdict, found.as_expected) == ("violated", True), found.doubts
    assert {one["name"] for one in found.anomalies} == {"ledger-duplicate", "ledger-drift"}


def test_a_cell_whose_server_is_not_installed_says_how_to_install_it(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is inconclusive, which ends a campaign with exit code 3, and never left out in silence."""
    monkeypatch.setenv("PATH", str(tmp_path))
    found = run(campaign.named("F32-forgetting"), 1, ExternalCluster(broker.bootstrap), RunSettings(tmp_path))
    assert (found.verdict, found.as_expected) == ("inconclusive", False)
    assert any("make setup-stores" in doubt for doubt in found.doubts)
