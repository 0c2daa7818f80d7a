"""What the page on containers and clusters rests on: committed results, of tests that exist, all of them passed."""

from __future__ import annotations

import ast
import json
import re

import pytest
from harness.pages import ROOT

RESULTS = {"containers": "docs/proof/containers.json", "cluster": "docs/proof/cluster.json"}
PAGE = ROOT / "docs/guide/containers.md"


def _tests(folder: str) -> set[str]:
    """Every test of a folder, as a file and a name."""
    files = sorted((ROOT / "tests" / folder).glob("test_*.py"))
    return {
        f"{file.relative_to(ROOT)}::{one.name}"
        for file in files
        for one in ast.parse(file.read_text()).body
        if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
    }


@pytest.mark.parametrize("folder", RESULTS)
def test_every_test_of_the_targets_own_has_a_result_and_passed(folder: str) -> None:
    """CI has no engine and no time for them; whoever changes one runs its target, and commits what came out."""
    told = json.loads((ROOT / RESULTS[folder]).read_text())["tests"]
    assert {name.partition("[")[0] for name in told} == _tests(folder)
    assert {name: one["outcome"] for name, one in told.items() if one["outcome"] != "passed"} == {}


def test_the_pages_times_are_those_of_the_results() -> None:
    """Each number in the table of the image stands in the results."""
    told = json.loads((ROOT / RESULTS["containers"]).read_text())["tests"]
    measured = {str(value) for one in told.values() for value in one.get("measured", {}).values()}
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| .* \| .*\d s", line)]
    assert rows
    for row in rows:
        for number in re.findall(r"([\d.]+) s\b", row.split("|")[2]):
            assert number in measured, row
