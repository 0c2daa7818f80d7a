"""The site is built from the pages without a dead link, and the configuration reference says what the code says."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from harness.pages import ROOT, tables

PACKAGES = ("brew", "pipeline", "operations", "downstream", "proof", "sandbox")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """scripts/reference.py, which is no module of a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        return importlib.import_module("reference")


# The configuration reference.


def test_the_reference_says_what_the_programs_say(reference: ModuleType) -> None:
    """After a change of options: make reference."""
    assert reference.PAGE.read_text() == reference.page(), "run `make reference` and look at what changed"


def test_an_option_is_told_with_limits_variables_and_default(reference: ModuleType) -> None:
    """Limits are those that the settings hold, found by asking them for too much."""
    rows = {row[0]: row[1:] for row in tables(reference.page(), "pipeline run")[0]}
    assert rows["--lanes"][:2] == ["integer, 1 to 64", "2"]
    assert rows["--transaction-bytes"][0] == "integer, 1024 to 1073741824"
    assert rows["--profiles-timeout"][0] == "number, 1 to 3600"
    assert rows["--claim-interval"][0].startswith("number, ")
    assert rows["--bootstrap"][1:4] == ["localhost:9092", "BOOTSTRAP", "BOOTSTRAP"]
    assert rows["--crash-point"][3] == "CRASH_POINT"


def test_each_command_of_brew_is_told_with_its_long_name(reference: ModuleType) -> None:
    """In the order of the sections; those that `brew` has not are told, too."""
    rows = tables(reference.page(), "brew")[0]
    pairs = [pair for _, short, long in rows for pair in zip(_words(short), _words(long), strict=False)]
    assert [short for short, _ in pairs if short] == [f"brew {name}" for name in reference.BREW]
    assert {("brew lag", "pipeline lag"), ("brew verify", "proof verify"), ("brew sandbox", "sandbox")} <= set(pairs)
    assert "proof replay" in rows[-1][-1]


def _words(cell: str) -> list[str]:
    return [word.strip("` ") for word in cell.split(",")]


def _names_asked_for(source: str) -> Iterator[str]:
    """Literal names in `os.environ[...]`, its `get(...)` and `setdefault(...)`, and `... in os.environ`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))):
                yield name
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="environ"), attr="get" | "setdefault"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[ast.Attribute(attr="environ")]):
                yield name


def test_every_variable_that_the_code_asks_for_is_told(reference: ModuleType) -> None:
    """What Spark and its driver say to each other is nobody's setting."""
    sources = [file.read_text() for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    asked = {name for source in sources for name in _names_asked_for(source)}
    told = {row[0] for row in tables(reference.page(), "Environment")[0]}
    assert {name for name in asked if not name.startswith("PYSPARK_GATEWAY_")} - told == set()
    assert set(reference.ENVIRONMENT) <= asked


def test_every_make_variable_is_told_in_words(reference: ModuleType) -> None:
    """One that no program's option explains needs a line of its own."""
    rows = {row[0]: row[1] for row in tables(reference.page(), "Make variables")[0]}
    assert [name for name, words in rows.items() if not words.strip()] == []
    assert set(reference.MAKE) <= set(rows)


# The site.


def _site(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(root / "scripts/docs.sh"), str(out)], capture_output=True, text=True, check=False, timeout=120
    )


def test_the_site_holds_every_page_and_asks_no_network(tmp_path: Path) -> None:
    """Strict: a dead link or anchor would have ended the build."""
    ran = _site(ROOT, tmp_path)
    assert ran.returncode == 0, ran.stderr
    pages = {file.relative_to(ROOT) for file in (ROOT / "docs").rglob("*.md")}
    wanted = {page.with_name("index.html") if page.name == "README.md" else page.with_suffix(".html") for page in pages}
    built = {file.relative_to(tmp_path) for file in tmp_path.rglob("*.html")}
    assert sorted(map(str, wanted - built)) == []
    index = (tmp_path / "index.html").read_text()
    assert "docs/reference/configuration.html" in index
    loaded = re.compile(
        r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*href=["']?https?://[^>]*stylesheet"""
    )
    assert [name for name in built if loaded.search((tmp_path / name).read_text())] == []


def test_a_dead_link_ends_the_build(tmp_path: Path) -> None:
    """A copy of the pages, with one link that leads nowhere."""
    copy = tmp_path / "copy"
    for folder in ("docs/decisions", "benchmarks", "models"):
        (copy / folder).mkdir(parents=True)
    for name in ("mkdocs.yml", "docs/nav.yml", "LICENSE", "scripts/docs.sh"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    for name in ("CHANGELOG.md", "CONTRIBUTING.md"):
        (copy / name).write_text("# A page\n")
    (copy / "README.md").write_text("# A page\n\n[gone](docs/GONE.md)\n")
    ran = _site(copy, tmp_path / "site")
    assert ran.returncode != 0
    assert "docs/GONE.md" in ran.stderr
