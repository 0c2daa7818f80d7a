"""How tests are handed to workers: what a group names is there, and in which order they come."""

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


def test_the_longest_group_is_first_then_short_tests_other_groups_and_the_others_by_turns() -> None:
    """In any number of either: half of both stand in the first half. A long group that begins last ends alone."""
    names = ["integration"] * 40 + ["scenarios"] * 10 + ["unit"] * 100
    files = [Path(name, f"test_{number}.py") for number, name in enumerate(names)]
    files[30:33] = [Path(member) for member in (*GROUPS["spark"][:2], GROUPS["sink"][0])]
    items = [SimpleNamespace(path=TESTS / file, nodeid=f"tests/{file}::test_it") for file in files]
    by_turns(items, TESTS)  # type: ignore[arg-type]
    order = [item.path.relative_to(TESTS) for item in items]
    folders = [file.parts[0] for file in order]
    assert sorted(order) == sorted(files)
    assert str(order[0]) == GROUPS["sink"][0]
    assert folders[1:101] == ["unit"] * 100
    assert [str(file) for file in order[101:103]] == list(GROUPS["spark"][:2])
    assert (folders[103:127].count("scenarios"), folders[103:127].count("integration")) == (5, 19)
