"""What `make kills` and `make claims-races` write is read by the report, and bears on its bars."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from proof.campaign.result import write_file
from proof.claims.members import Races
from proof.commands import claims
from proof.provenance import MadeWith
from proof.report.results import Result, read
from proof.report.summary import CriterionResult, acceptance_criteria
from tests.kills import __main__ as kills
from tests.kills.campaign import Killed

BEGAN = datetime(2026, 11, 24, tzinfo=UTC)
MADE = MadeWith("0123456789ab", "ba9876543210", {"kafka": "4.1.1"})


def _written(folder: Path, result: object) -> Result:
    path = write_file(folder / "new" / "r.json", {"command": "c"}, [result])  # type: ignore[list-item]
    (found,) = read(path.read_text(), path.name, MADE.kernel)[1]
    return found


def _met(result: Result, title: str) -> CriterionResult:
    (found,) = [bar.met for bar in acceptance_criteria([result]) if bar.title == title]
    return found


def _races(rounds: int, *findings: str) -> Races:
    races = Races(rounds, 8, 64)
    races.owned_after_s, races.wins = [0.1] * rounds, {"c0": 40, "c1": 24}
    races.findings += findings
    return races


@pytest.mark.parametrize(
    ("rounds", "findings", "met"),
    [(1000, (), CriterionResult.YES), (999, (), CriterionResult.SHORT), (1000, ("two owners",), CriterionResult.NO)],
)
def test_races_are_a_result(tmp_path: Path, rounds: int, findings: tuple[str, ...], met: CriterionResult) -> None:
    """With its commit, date and kernel; 999 rounds are not shown, an owner too many is missed."""
    found = _written(tmp_path, claims.result(_races(rounds, *findings), 1, BEGAN, MADE))
    assert (found.row, found.commit, found.began[:10], found.current) == ("F34", MADE.commit, "2026-11-24", True)
    assert _met(found, "Rounds of eight claimants racing") is met


@pytest.mark.parametrize(
    ("store", "count", "findings", "met"),
    [
        ("ledger", 200, {}, CriterionResult.YES),
        ("ledger", 199, {}, CriterionResult.SHORT),
        ("redis-script", 200, {"receiver-duplicate": 1}, CriterionResult.NO),
        ("redis", 200, {"receiver-duplicate": 1}, CriterionResult.YES),
        ("redis", 200, {"receiver-lost": 1}, CriterionResult.NO),
    ],
)
def test_kills_of_a_store_are_a_result(
    tmp_path: Path, store: str, count: int, findings: dict[str, int], met: CriterionResult
) -> None:
    """What a store that is at least once by design repeats is a note; what it loses is an anomaly."""
    killed = Killed(Counter({"in-commit": count}), orders=10, findings=findings)
    found = _written(tmp_path, kills.result(store, killed, count, 1, BEGAN, MADE))
    assert json.dumps(found.versions) == json.dumps(MADE.versions)
    assert _met(found, f"Kills around the commit, {store}") is met
