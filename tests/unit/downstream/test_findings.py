"""What checks of stores share: every finding is counted, and each name keeps its first examples."""

from __future__ import annotations

from downstream.check import Findings


def test_each_name_is_counted_and_has_examples_of_its_own() -> None:
    found = Findings()
    assert (found.judged()["verdict"], found.lines("all is well")) == ("proven", ["proven: all is well"])
    for number in range(20):
        found.found("often", f"number {number}")
    found.found("once", "the only one", 7)
    told = found.judged(rows=3)
    assert (told["verdict"], told["rows"], told["findings"]) == ("violated", 3, {"often": 20, "once": 7})
    assert told["examples"] == [*(f"often: number {n}" for n in range(5)), "once: the only one"]
    assert found.lines("all is well")[-1] == "20 often, 7 once"
