"""`make mutation` reads two tables; both have to fit the tree, and a survivor's explanation has to fit its mutant."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def mutation() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation", ROOT / "scripts/mutation.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["mutation"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_module_and_test_file_of_the_table_exists(mutation: ModuleType) -> None:
    """A module that moved would otherwise drop out of the scores without a word."""
    areas = mutation.Area.all()
    paths = [path for area in areas for path in (*area.modules, *area.tests)]
    assert [path for path in paths if not any(ROOT.glob(path))] == []
    modules = [module for area in areas for module in area.modules]
    assert len(modules) == len(set(modules))
    assert all(area.modules and area.files() for area in areas)


def test_every_explanation_names_a_module_of_the_table_and_says_why(mutation: ModuleType) -> None:
    """An explanation of a module that moved is found before its survivors come back unexplained."""
    modules = {module for area in mutation.Area.all() for module in area.modules}
    for entry in mutation.Explained.all():
        assert entry.module in modules
        assert entry.function.rpartition(".")[2] in (ROOT / entry.module).read_text(encoding="utf-8")
        assert len(entry.why) > 10


MUTANT = {"module": "a.py", "function": "f", "was": "return x < 1", "now": "return x <= 1", "status": "survived"}


def test_an_explanation_fits_the_changed_line_of_its_function_alone(mutation: ModuleType) -> None:
    """The same line in another function, or another change of the same line, is a survivor of its own."""
    explained = mutation.Explained("a.py", "f", "return x <= 1", "x is never 1")
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
    mutation: ModuleType, capsys: pytest.CaptureFixture[str], status: str, explained: bool, passes: bool
) -> None:
    """A mutant that no test calls counts as a survivor, too."""
    mutants = [MUTANT | {"status": "killed"}] * 19 + [MUTANT | {"status": status}]
    reasons = [mutation.Explained("a.py", "f", "return x <= 1", "x is never 1")] if explained else []
    row = mutation.score("a.py", mutants, reasons)
    assert mutation.tell("a.py", row, []) is passes
    assert ("+ return x <= 1" in capsys.readouterr().out) is not passes


def test_a_module_below_the_bar_fails_even_when_every_survivor_is_explained(mutation: ModuleType) -> None:
    """89 of 100 is too few, 90 is enough."""
    reasons = [mutation.Explained("a.py", "f", "return x <= 1", "x is never 1")]
    for survivors, passes in ((11, False), (10, True)):
        mutants = [MUTANT] * survivors + [MUTANT | {"status": "killed"}] * (100 - survivors)
        assert mutation.tell("a.py", mutation.score("a.py", mutants, reasons), []) is passes


def test_a_property_becomes_a_method_that_can_be_mutated(mutation: ModuleType) -> None:
    """The class behaves as before; a protocol's stub stays."""
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
