"""PROTOCOL.md names every anomaly that the checker knows, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts
from proof.findings import Name

PROTOCOL = (Path(__file__).resolve().parents[2] / "docs/PROTOCOL.md").read_text()


def anomalies(text: str) -> dict[str, str]:
    """The table below the heading: name -> what happened."""
    section = text.partition("## Anomalies\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", section, re.MULTILINE))


def test_the_table_of_anomalies_is_the_checkers() -> None:
    """A name without a meaning helps nobody."""
    assert set(anomalies(PROTOCOL)) == {name.value for name in Name}
    assert all(len(meaning) > 20 for meaning in anomalies(PROTOCOL).values())


def test_the_counts_that_can_be_demanded_are_told() -> None:
    """`--need` knows these without `--fired`."""
    counts = Checker(BrokerFacts("in", "out", "dlq", {}, {}, 1)).counts
    assert counts.keys() >= {"committed_transactions", "aborted_transactions", "aborted_records", "fences"}
