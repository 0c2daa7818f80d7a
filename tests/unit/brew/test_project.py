"""`brew init`: what it writes passes its own tests, with nothing but the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from harness.pages import ROOT

from brew.__main__ import cli
from brew.cli import exit_code_of
from brew.testing import record, transform

FILES = ["Makefile", "README.md", "clicks.jsonl", "seed.py", "test_transformation.py", "transformation.py"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def init(*arguments: str) -> int:
    return exit_code_of(cli, "brew", ["init", *arguments])


def test_a_project_is_written_and_its_own_tests_pass_until_its_function_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make test`, in a folder that knows nothing of the repository; no value is left open in a file."""
    assert init("clicks", "--bootstrap", "k:1", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"directory": str(folder / "clicks"), "files": FILES}
    project = folder / "clicks"
    assert sorted(one.name for one in project.iterdir()) == FILES
    texts = {one.name: one.read_text() for one in project.iterdir()}
    assert [name for name, text in texts.items() if "@@" in text] == []
    assert "BOOTSTRAP ?= k:1\n" in texts["Makefile"]
    tested = _tested(project)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "Ran 3 tests" in tested.stderr
    function = project / "transformation.py"
    function.write_text(function.read_text().replace(".hostname", ".path"))
    tested = _tested(project)
    assert tested.returncode != 0
    assert "FAILED (failures=1)" in tested.stderr


def _tested(project: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = ["make", "test", f"PYTHON={sys.executable}"]
    return subprocess.run(line, cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_projects_makefile_takes_servers_with_a_blank_between_them(folder: Path) -> None:
    """As `brew run --bootstrap` does; the second one was an argument of its own, and refused."""
    assert init("clicks", "--bootstrap", "k1:1, k2:2") == 0
    line = ["make", "--silent", "seed", "run", "PYTHON=printf '[%s]'", "BREW=printf '[%s]'"]
    made = subprocess.run(line, cwd=folder / "clicks", capture_output=True, text=True, timeout=60, check=True)
    assert made.stdout.count("[--bootstrap][k1:1, k2:2]") == 2


def test_the_example_records_hold_each_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert init("clicks") == 0
    monkeypatch.syspath_prepend(folder / "clicks")
    from transformation import add_domain  # type: ignore[import-not-found]  # noqa: PLC0415 - written above

    lines = (folder / "clicks/clicks.jsonl").read_bytes().splitlines()
    transformed = transform(add_domain, [record(line) for line in lines])
    assert (len(lines), len(transformed.outputs), len(transformed.dropped), len(transformed.rejected)) == (60, 53, 4, 3)


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        *(("1x", 64, "NAME is '1x'"), ("a/b", 64, "NAME is 'a/b'")),
        *(("full", 3, "full already exists and is not empty"), ("file", 3, "file already exists")),
    ],
)
def test_a_name_that_can_not_be_is_refused_and_nothing_is_overwritten(
    folder: Path, name: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "full").mkdir()
    (folder / "full/Makefile").write_text("mine")
    (folder / "file").write_text("mine")
    assert init(name) == code
    assert message in capsys.readouterr().err
    assert [(folder / one).read_text() for one in ("full/Makefile", "file")] == ["mine", "mine"]
    (folder / "empty").mkdir()
    assert init("empty") == 0


def test_a_server_without_a_port_is_refused_as_in_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`make seed` would take 9092 for it, and `make run` refuse it."""
    assert init("clicks", "--bootstrap", "kafka1") == 64
    assert "'kafka1' is not HOST:PORT" in capsys.readouterr().err
    assert list(folder.iterdir()) == []
