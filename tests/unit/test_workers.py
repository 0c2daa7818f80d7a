"""How tests are handed to workers: what a group names is there, and long tests come by turns before short ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from harness.programs import ROOT
from harness.workers import GROUPS, by_turns

TESTS = ROOT / "tests"


@pytest.mark.parametrize("member", [member for members in GROUPS.values() for member in members])
def test_what_a_group_names_is_there(member: str) -> None:
    """A file that was renamed would quietly start its servers once per worker."""
    file, _, test = member.partition("::")
    assert f"def {test}(" in (TESTS / file).read_text() if test else (TESTS / file).is_file()


def test_short_tests_come_first_then_scenarios_and_integration_tests_by_turns() -> None:
    """In any number of either: half of both stand in the first half."""
    names = ["integration"] * 40 + ["scenarios"] * 10 + ["unit"] * 100
    items = [SimpleNamespace(path=Path(TESTS, name, "test_x.py"), number=number) for number, name in enumerate(names)]
    by_turns(items, TESTS)  # type: ignore[arg-type]
    folders = [item.path.parent.name for item in items]
    assert sorted(item.number for item in items) == list(range(len(names)))
    assert folders[:100] == ["unit"] * 100
    assert (folders[100:125].count("scenarios"), folders[100:125].count("integration")) == (5, 20)
