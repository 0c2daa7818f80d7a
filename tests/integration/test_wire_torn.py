"""F11 and F12 in small: the control is hurt, the strict writer is not, and every late frame was answered."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from harness.brokers import Broker
from harness.programs import ROOT

from brew.connection import Connection
from proof.campaign.cells.wire import against_pipeline
from proof.wire.torn import experiment

TRIES = 6


def test_a_reused_producer_tears_transactions_and_loses_commits(broker: Broker) -> None:
    """The positive control: without it a clean strict writer would show nothing."""
    tally = experiment(Connection(broker.bootstrap), "reuse", TRIES).tally
    assert (tally.broken, tally.inconclusive) == (TRIES, 0)
    assert tally.names == {"torn-txn": TRIES / 2, "lost-commit": TRIES / 2}
    assert tally.late == {"ok": TRIES}


def test_a_producer_per_transaction_is_not_hurt_by_a_late_commit_or_abort(broker: Broker) -> None:
    """Every late frame found a newer epoch and was refused."""
    tally = experiment(Connection(broker.bootstrap), "strict", TRIES).tally
    assert (tally.clean, tally.broken, tally.inconclusive) == (TRIES, 0, 0), tally
    assert tally.late == {"INVALID_PRODUCER_EPOCH": TRIES}


def test_a_late_offset_moves_a_reused_producers_group_back(broker: Broker) -> None:
    """F12: the group falls behind a commit that was acknowledged, so the next reader writes it all again."""
    tally = experiment(Connection(broker.bootstrap), "reuse", 2, ["late-offsets"]).tally
    assert tally.names == {"offset-regression": 2}


@pytest.mark.parametrize("script", ["late-offsets", "late-records"])
def test_a_producer_per_transaction_is_not_hurt_by_late_offsets_or_records(broker: Broker, script: str) -> None:
    """F12: refused as well."""
    tally = experiment(Connection(broker.bootstrap), "strict", 2, [script]).tally
    assert (tally.clean, tally.late) == (2, {"INVALID_PRODUCER_EPOCH": 2}), tally


def test_sequence_numbers_protect_a_reused_producer_from_late_records(broker: Broker) -> None:
    """F12: the broker knows the batch already, answers as if it had just come, and appends nothing."""
    tally = experiment(Connection(broker.bootstrap), "reuse", 2, ["late-records"]).tally
    assert (tally.clean, tally.late) == (2, {"ok": 2}), tally


def test_the_pipeline_itself_is_not_hurt_by_late_commits(broker: Broker) -> None:
    """The product as a process behind the proxy, and the checker's word on all of its orders."""
    result = against_pipeline(Connection(broker.bootstrap), 5)
    assert result.document()["verdict"] == "proven", result
    assert (result.late, result.epochs_behind) == ({"INVALID_PRODUCER_EPOCH": 5}, {1: 5})


def test_the_demonstration_shows_both_timelines_and_the_conclusion(broker: Broker) -> None:
    """Plain text without a terminal, no escape sequences; `--json` has the counts."""
    command = [sys.executable, "-m", "proof", "torn", "--bootstrap", broker.bootstrap, "--tries", "2"]
    ran = subprocess.run([*command, "--show"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for text in ("HELD by the proxy", "connection is CUT", "RELEASED, too late", "<- taken", "<- refused"):
        assert text in ran.stdout
    assert "torn-txn in 1" in ran.stdout
    assert "0 anomalies of 2 tries" in ran.stdout
    assert "\x1b" not in ran.stdout
    printed = subprocess.run(
        [*command, "--writer", "reuse", "--json"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    (control,) = json.loads(printed.stdout)["writers"]
    assert control["broken"] == 2
