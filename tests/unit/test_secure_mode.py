"""The switch `pytest --secure`: who a command is, what each file of tests needs, and what is left out."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness import secure_roles
from harness.secure_mode import LEFT_OUT, NEEDS, Record, left_out, needs
from harness.secure_roles import ADMIN, DOWNSTREAM, OPERATOR, PIPELINE, PROOF
from harness.servers import Names

from brew import acl
from brew.acl import Purpose
from proof import provenance

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("line", "user"),
    [
        ("python -m pipeline run --bootstrap h:1", PIPELINE),
        ("python -m pipeline preflight", PIPELINE),
        ("python -m pipeline doctor", ADMIN),
        ("python -m pipeline explain --bootstrap h:1", OPERATOR),
        ("python -m downstream count", DOWNSTREAM),
        ("python -m harness.claims_worker --bootstrap h:1", DOWNSTREAM),
        ("python -m proof verify", PROOF),
        ("python -m proof seed", ADMIN),
        ("/usr/bin/make --no-print-directory run-pipeline-crash BOOTSTRAP=h:1", PIPELINE),
        ("make run-downstream-ru", DOWNSTREAM),
        ("make end-offsets", PROOF),
        ("make topic-create-all", ADMIN),
        ("/opt/venv/bin/brew-downstream count --bootstrap h:1", DOWNSTREAM),
        ("make lint", None),
        ("python -m pytest", None),
        ("java kafka.Kafka server.properties", None),
    ],
)
def test_a_command_is_whom_its_words_make_it(line: str, user: str | None) -> None:
    assert secure_roles.user(line.split()) == user


def test_a_program_from_text_is_whom_it_imports() -> None:
    assert secure_roles.user(["python", "-c", "from pipeline.__main__ import main\nmain()", "run"]) == PIPELINE
    assert secure_roles.user(["python", "-c", "print(1)"]) is None


def test_a_command_is_about_the_brokers_that_it_names() -> None:
    known = {"h:1": None}
    assert secure_roles.place(["make", "seed", "BOOTSTRAP=h:1"], known) == "h:1"
    assert secure_roles.place(["python", "-m", "pipeline", "run", "--bootstrap", "h:1"], known) == "h:1"
    assert secure_roles.place(["python", "-m", "pipeline", "run", "--bootstrap", "other:1"], known) is None
    kafkas_own = ["java", "--bootstrap-server", "h:1"]
    assert secure_roles.is_kafkas_own(kafkas_own)
    assert not secure_roles.is_kafkas_own([*kafkas_own, "--command-config", "f"])


def test_files_with_needs_need_more_than_others_and_nothing_outside_their_own_names() -> None:
    """Each row stands on names of this test, or is one that the page gives a fixed name."""
    names = Names("it-x-1234")
    own, fixed = (names.stem, f"seed:{names.stem}"), {"brew-scan", "brew-claims", "__consumer_offsets"}
    for file in [*NEEDS, "other.py"]:
        wanted = needs(file)
        assert file == "other.py" or ((TESTS / file).exists() and wanted != needs("other.py")), file
        place = wanted.place(names)
        for user in acl.USERS:
            for right in [*acl.rights_of(user, place), *acl.extra_rights(user, wanted.purposes, place)]:
                assert right.name.startswith(own) or right.name in fixed, str(right)
    assert Purpose.MAKE in needs("other.py").purposes


def test_what_is_left_out_is_there_and_has_its_reason() -> None:
    for place, why in LEFT_OUT.items():
        file, _, name = place.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert not name or name in there, f"{place} is no test"
        assert len(why.split()) >= 4, place
        assert left_out(file, name) == why
    assert left_out("scenarios/test_story.py", "test_a") is None


def test_the_page_has_the_rows_that_are_granted() -> None:
    assert acl.extra_rights_table() in (TESTS.parent / "docs/SECURITY.md").read_text()


def _recorded(path: Path, outcomes: Mapping[str, str], out: Mapping[str, str] | None = None) -> Any:
    manager = SimpleNamespace(register=lambda *_: None)
    config = SimpleNamespace(pluginmanager=manager, getoption=lambda _name: str(path), rootpath=path.parent)
    record = Record(cast("pytest.Config", config))
    record.left_out(out or {})
    for nodeid, outcome in outcomes.items():
        report: dict[str, Any] = {"nodeid": f"tests/{nodeid}", "outcome": outcome, "longrepr": None}
        more: dict[str, Any] = {"when": "call", "keywords": {}, "location": ("", 0, ""), "duration": 1.0}
        record.pytest_runtest_logreport(pytest.TestReport(**report, **more))
    record.pytest_sessionfinish()
    return json.loads(path.read_text())


def test_a_record_keeps_the_files_of_other_sessions_and_counts_all(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for file in ("a/test_a.py", "b/test_b.py"):
        (tmp_path / "tests" / file).parent.mkdir(parents=True)
        (tmp_path / "tests" / file).touch()
    _recorded(path, {"a/test_a.py::test_1": "passed", "a/test_a.py::test_2": "failed"})
    document = _recorded(path, {"b/test_b.py::test_1": "passed"}, {"b/test_b.py::test_2": "why not"})
    assert (document["passed"], document["failed"], document["left_out"]) == (2, 1, 1)
    assert document["files"]["b/test_b.py"]["left_out"] == {"b/test_b.py::test_2": "why not"}
    document = _recorded(path, {"a/test_a.py::test_1": "passed", "a/test_a.py::test_2": "passed"})
    assert (document["passed"], document["failed"], document["left_out"]) == (3, 0, 1)
    (tmp_path / "tests/a/test_a.py").unlink()
    document = _recorded(path, {"b/test_b.py::test_1": "passed"})
    assert (document["passed"], list(document["files"])) == (1, ["b/test_b.py"]), "the other file is gone"


def test_the_committed_record_is_of_the_kernel_that_ships() -> None:
    """Red after a change of the kernel's code, until `make test-secure` has run again."""
    files = json.loads((TESTS.parent / "docs/proof/secure.json").read_text())["files"]
    assert {row.get("kernel") for row in files.values()} == {provenance.kernel()}
    assert sum(row["failed"] for row in files.values()) == 0
