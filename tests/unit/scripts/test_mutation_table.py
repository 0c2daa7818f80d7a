"""`make mutation` reads two tables; both have to fit the tree, and a survivor's explanation has to fit its mutant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from harness.commands import script
from harness.pages import ROOT

mutation = script("mutation")


def test_every_module_and_test_file_of_the_table_exists() -> None:
    areas = mutation.Area.all()
    paths = [path for area in areas for path in (*area.modules, *area.tests)]
    assert [path for path in paths if not any(ROOT.glob(path))] == []
    modules = [module for area in areas for module in area.modules]
    assert len(modules) == len(set(modules))
    assert all(area.modules and area.files() for area in areas)
    for area in areas:
        text = "".join((ROOT / module).read_text(encoding="utf-8") for module in area.modules)
        assert [name for name in area.leave if f"{name}(" not in text and f"class {name}:" not in text] == []


def test_the_committed_scores_are_those_of_modules_in_the_table() -> None:
    """A row of a module that moved or was merged says nothing of today's code: measure it again, or drop it."""
    modules = {module for area in mutation.Area.all() for module in area.modules}
    committed = json.loads(mutation.RESULTS.read_text(encoding="utf-8"))
    assert {*committed["modules"], *committed["not_measured"]} == modules
    assert mutation.page(committed) == mutation.PAGE.read_text(encoding="utf-8")


def test_measured_rows_replace_their_own_and_those_of_vanished_modules_are_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mutation, "RESULTS", tmp_path / "mutation.json")
    monkeypatch.setattr(mutation, "PAGE", tmp_path / "mutation.md")
    row = mutation.score("a.py", [MUTANT], []) | {"commit": "1", "date": "2026-01-01"}
    mutation.store({"gone.py": row, "a.py": row, "b.py": row}, ["gone.py", "a.py", "b.py"])
    mutation.store({"a.py": row | {"commit": "2"}}, ["b.py", "new.py", "a.py"])
    modules = json.loads(mutation.RESULTS.read_text(encoding="utf-8"))["modules"]
    assert [(name, of["commit"]) for name, of in modules.items()] == [("b.py", "1"), ("a.py", "2")]
    page = mutation.PAGE.read_text(encoding="utf-8")
    assert "gone.py" not in page
    assert "Not measured yet: `new.py`." in page


def test_a_run_begins_anew_or_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`--again` keeps mutmut's verdicts and brings today's tests; a plain run knows nothing of the last one."""
    monkeypatch.setattr(mutation, "WORK", tmp_path)
    area = mutation.Area("one", ("brew/deadline.py",), ("tests/unit/scripts/test_mutation_table.py",))
    verdicts, test = (tmp_path / "one" / name for name in ("mutants/brew/deadline.py.meta", area.tests[0]))
    for again, kept in ((True, True), (False, False)):
        verdicts.parent.mkdir(parents=True, exist_ok=True)
        verdicts.touch()
        test.unlink(missing_ok=True)
        mutation.prepare(area, again=again)
        assert (verdicts.exists(), test.exists()) == (kept, True)


def test_every_explanation_names_a_module_of_the_table_and_says_why() -> None:
    """An explanation of a module that moved is found before its survivors come back unexplained."""
    modules = {module for area in mutation.Area.all() for module in area.modules}
    for entry in mutation.Explained.all():
        assert entry.module in modules
        assert entry.function.rpartition(".")[2] in (ROOT / entry.module).read_text(encoding="utf-8")
        assert len(entry.why) > 10


MUTANT = {"module": "a.py", "function": "f", "was": "return x < 1", "now": "return x <= 1", "status": "survived"}
REASON = ("a.py", "f", "return x <= 1", "x is never 1")


def test_an_explanation_fits_the_changed_line_of_its_function_alone() -> None:
    explained = mutation.Explained(*REASON)
    assert explained.covers(MUTANT)
    for other in ({"module": "b.py"}, {"function": "g"}, {"now": "return x < 2"}):
        assert not explained.covers(MUTANT | other)
    assert mutation.Explained("a.py", "f", "return x *", "whatever x is").covers(MUTANT)


@pytest.mark.parametrize(
    ("status", "explained", "passes"),
    [("killed", False, True), ("timeout", False, True), ("survived", True, True)]
    + [(status, False, False) for status in ("survived", "no tests", "suspicious", "not checked")],
)
def test_a_survivor_without_an_explanation_fails_its_module(
    capsys: pytest.CaptureFixture[str], status: str, explained: bool, passes: bool
) -> None:
    """A mutant that no test calls counts as a survivor, too."""
    mutants = [MUTANT | {"status": "killed"}] * 19 + [MUTANT | {"status": status}]
    row = mutation.score("a.py", mutants, [mutation.Explained(*REASON)] if explained else [])
    assert mutation.print_score("a.py", row, []) is passes
    assert ("+ return x <= 1" in capsys.readouterr().out) is not passes


@pytest.mark.parametrize(("survivors", "passes"), [(11, False), (10, True)])
def test_a_module_below_90_of_100_fails_even_when_every_survivor_is_explained(survivors: int, passes: bool) -> None:
    mutants = [MUTANT] * survivors + [MUTANT | {"status": "killed"}] * (100 - survivors)
    assert mutation.print_score("a.py", mutation.score("a.py", mutants, [mutation.Explained(*REASON)]), []) is passes


def test_a_property_becomes_a_method_that_can_be_mutated() -> None:
    source = (
        "class A:\n    x: int = 3\n\n    @property\n    def twice(self) -> int:\n"
        '        """Two."""\n        y = self.x\n\n        return 2 * y\n\n    def one(self):\n        return 1\n'
    )
    changed = mutation.unfolded(source)
    assert "@property" not in changed
    names: dict[str, type] = {}
    exec(changed, names)
    assert names["A"]().twice == 6
    assert names["A"]().one() == 1
    stub = (
        "class P(Protocol):\n    @property\n    def x(self) -> int: ...\n    @property\n    def y(self) -> int: ...\n"
    )
    assert mutation.unfolded(stub) == stub


def test_what_is_left_alone_stands_between_two_comments() -> None:
    source = "class A:\n    x = 1\n\n\ndef f(\n    x: int,\n) -> int:\n    return x\n\n\nclass B:\n    x = 2\n"
    start, end = "# pragma: no mutate start\n", "# pragma: no mutate end\n"
    kept = mutation.excluded(source, ["f", "B"])
    first, function, second = source.split("\n\n\n")
    assert kept == f"{first}\n\n\n{start}{function}\n{end}\n\n{start}{second}{end}"
    assert mutation.excluded(source, []) == source
