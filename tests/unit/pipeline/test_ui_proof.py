"""The proof's file as the live view reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.pages import ROOT

from brew.deadline import Deadline
from brew.errors import Refused
from operations.ui import sources
from operations.ui.sources import ProofSource
from proof.findings import Report


def report(**more: Any) -> dict[str, Any]:
    given = {"inputs": 30, "outputs": 28, "dead_letters": 2, "backlog": 0, "unverifiable": 0, "totals": {}}
    rest = {"findings": [], "doubts": [], "counts": {"committed_transactions": 4}}
    return Report(**(given | rest | more)).document()


def read(document: object) -> Any:
    return sources.read(json.dumps(document).encode(), 5.0)


def cell(verdict: str, expected: str = "proven", **more: Any) -> dict[str, Any]:
    return {"cell": f"F-{verdict}-{expected}", "seed": 1, "verdict": verdict, "expected": expected, **more}


def test_a_verified_run_tells_its_balance() -> None:
    """The checker's own document."""
    found = read(report())
    assert (found.mark, found.lines[0], found.wrong) == ("proven", "30 inputs = 28 outputs + 2 dead letters", ())
    assert "4 transactions committed" in found.lines[1]
    lost = read(report(outputs=27, totals={"lost-output": 1}))
    assert (lost.mark, lost.lines[0].split()[2], lost.wrong) == ("violated", "≠", ("lost-output: 1",))
    assert read(report(doubts=["retention"])).wrong == ("could not tell: retention",)


def test_the_campaign_of_the_documents_is_read() -> None:
    """Controls and what is not applicable count as their runner said beforehand."""
    document = (ROOT / "docs/proof/results.json").read_bytes()
    controls = sum(one["expected"] == "violated" for one in json.loads(document)["cells"])
    found = sources.read(document, 5.0)
    assert (found.mark, found.wrong) == ("proven", ())
    assert controls > 1
    assert f"{controls} controls broke on purpose and were seen" in found.lines


@pytest.mark.parametrize(
    ("cells", "mark"),
    [
        ([cell("proven"), cell("violated")], "violated"),
        ([cell("proven"), cell("inconclusive")], "inconclusive"),
        ([cell("proven", anomalies=[{}])], "violated"),
        ([cell("proven", doubts=["?"])], "inconclusive"),
        ([cell("proven", "violated")], "inconclusive"),
        ([cell("violated", "violated"), cell("proven")], "proven"),
        ([cell("violated", "violated")], "inconclusive"),
    ],
)
def test_a_campaign_is_as_good_as_its_worst_cell(cells: list[dict[str, Any]], mark: str) -> None:
    """A result is never better than what stands beside it; a control alone proves nothing."""
    assert read({"cells": cells}).mark == mark
    lines = "".join(json.dumps(one) + "\n" for one in cells) + '{"cell": "cut o'
    assert sources.read(lines.encode(), 5.0).mark == mark


def test_what_is_no_proof_is_refused_with_the_way_to_one(tmp_path: Path) -> None:
    """It may be written later: then it is read."""
    path = tmp_path / "proof.json"
    source = ProofSource(path)
    with pytest.raises(Refused, match=r"proof\.json: No such file.*proof verify --json > FILE"):
        source.ask(Deadline(1))
    path.write_text('{"a": 1}')
    with pytest.raises(Refused, match="neither a document of `proof verify --json` nor results"):
        source.ask(Deadline(1))
    path.write_text(json.dumps(report()))
    assert source.ask(Deadline(1)).mark == "proven"
