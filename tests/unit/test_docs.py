"""The documents say what the code says: names, tables, links, files, tests and commands that they mention exist."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from harness import commands, pages
from harness.pages import (
    PACKAGES,
    ROOT,
    column,
    named_tests,
    tables,
    unknown_commands,
    unknown_targets,
    unknown_variables,
)
from mutants.catalogue import MUTANTS

from brew import names, offsets, orders, records
from brew.__main__ import cli as brew_cli
from brew.claims import messages
from brew.claims.member import WINDOW, fair_counts
from brew.claims.messages import LIMITS, TYPES, VERSION
from brew.claims.state import PARTIAL_MS, SNAPSHOT_MS, SNAPSHOT_RECORDS, RecordEffect, status
from brew.claims.state import Status as ClaimStatus
from brew.kafka.topics import MAX_MESSAGE_BYTES
from brew.names import CrashMode, CrashPoint, ExitCode, TransactionalId
from brew.options import run_options
from brew.outcome import Status
from brew.planner import position_metadata
from brew.settings import Limits
from pipeline.enrichment import enricher
from proof.campaign.campaign import chosen
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts
from proof.findings import Name

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROTOCOL = (ROOT / "docs/PROTOCOL.md").read_text()
DESIGN = (ROOT / "docs/DESIGN.md").read_text()
OPERATIONS = (ROOT / "docs/OPERATIONS.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
PROGRAMS = {**commands.PROGRAMS, "brew": brew_cli}


# PROTOCOL.md against the code.

TOPICS = ("INPUT", "OUTPUT", "DEAD_LETTER", "CUSTOMERS", "CLAIMS", "TOTALS")


def test_the_protocols_values_are_those_of_the_code() -> None:
    """Defaults, tiers with their discounts, the metadata of an offset, and an example of a transactional id."""
    assert tables(PROTOCOL, "Defaults") == [[["group", names.GROUP_ID], ["bootstrap", names.BOOTSTRAP]]]
    assert MAX_MESSAGE_BYTES in PROTOCOL
    tiers = [(tier, float(discount)) for tier, discount in tables(PROTOCOL, "Enrichment")[0]]
    assert tiers == list(orders.DISCOUNTS.items())
    fields = (orders.TIER_FIELD, orders.DISCOUNT_FIELD, orders.STANDARD, position_metadata("<id>"))
    assert [field for field in fields if f"`{field}`" not in PROTOCOL] == []
    form, example = re.search(r"## Transactional id\n\n`([^`]+)`, of the input: `([^`]+)`", PROTOCOL).groups()  # type: ignore[union-attr]
    assert str(TransactionalId.parse(example)) == example
    assert form == "<group>:<topic>:<partition>"
    assert str(TransactionalId("<group>", "<topic>", 7)) == form.replace("<partition>", "7")


@pytest.mark.parametrize(
    ("heading", "table", "defined"),
    [
        ("Topics", 0, [getattr(names, f"{one}_TOPIC") for one in TOPICS]),
        ("Order", 0, list(orders.ORDER_FIELDS)),
        ("Source headers", 0, [name for name, _ in offsets.SourcePosition("t", 0, 0).headers()]),
        ("Dead-letter headers", 0, [value for name, value in vars(records).items() if name.startswith("ERROR_")]),
        ("Reasons", 0, list(orders.Reason)),
        ("Steps", 0, list(names.STEPS)),
        ("Crash points", 0, list(CrashPoint)),
        ("Crash points", 1, list(CrashMode)),
        ("Outcomes", 0, list(Status)),
        ("Exit codes", 0, [str(int(code)) for code in ExitCode]),
    ],
)
def test_the_protocols_names_are_those_of_the_code(heading: str, table: int, defined: list[str]) -> None:
    assert column(PROTOCOL, heading, table=table) == [str(one) for one in defined]


# OPERATIONS.md against the code.


def test_every_named_refusal_is_told_and_no_other() -> None:
    sources = "\n".join(file.read_text() for file in [ROOT / "brew/planner.py", *(ROOT / "brew/driver").glob("*.py")])
    raised = re.findall(r'raise Refused\(\s*f?"([a-z]+(?:-[a-z]+)+): ', sources)
    assert sorted(column(OPERATIONS, "Refusals")) == sorted(set(raised))


def test_the_numbers_of_a_run_are_the_options_defaults() -> None:
    @run_options
    def command() -> None: ...

    options: list[click.Parameter] = command.__click_params__  # type: ignore[attr-defined]
    defaults = {option.opts[0]: str(option.default) for option in options}
    documented = {row[0]: row[1] for row in tables(OPERATIONS, "Numbers of a run")[0]}
    assert documented == {name: defaults.get(name) for name in documented}
    choices = next(option.type for option in options if option.opts[0] == "--on-missing-position")
    assert isinstance(choices, click.Choice)
    assert column(OPERATIONS, "`--on-missing-position`") == list(choices.choices)


# DESIGN.md against the repository.


def test_the_file_map_holds_every_module_and_nothing_else_on_one_page() -> None:
    """Each module has a row of its own or lies in a folder that has one; a row that is gone leads astray."""
    modules = {str(file.relative_to(ROOT)) for package in PACKAGES for file in (ROOT / package).rglob("*.py")}
    headings = [title for title in re.findall(r"^### (.*)$", DESIGN, re.MULTILINE) if title.startswith(PACKAGES)]
    cells = [cell for title in headings for cell in column(DESIGN, title)]
    mapped = [place.strip("` ") for cell in cells for place in cell.split(",")]
    assert len(mapped) == len(set(mapped))
    assert [place for place in mapped if not (ROOT / place).exists()] == []
    folders = tuple(place for place in mapped if place.endswith("/"))
    lost = [m for m in modules if m not in mapped and not m.startswith(folders) and not m.endswith("__init__.py")]
    assert sorted(lost) == []
    section = DESIGN.partition("## File map")[2].partition("## Invariants")[0]
    assert 30 < len(re.findall(r"^\| `", section, re.MULTILINE)) <= 60, "a row is a folder or a deep module"


def test_every_invariant_names_a_test_that_exists() -> None:
    """An invariant without a guard is a wish."""
    defined = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for invariant, guards in tables(DESIGN, "Invariants")[0]:
        tests = named_tests(f"`{guards}`")
        assert tests, invariant
        assert [test for test in tests if f"def {test}(" not in defined] == [], invariant


def test_the_six_steps_stand_in_their_order() -> None:
    section = DESIGN.partition("## The six steps")[2]
    assert re.findall(r"^\d\. \*\*([a-z ]+)\*\*", section, re.MULTILINE) == [s.replace("-", " ") for s in names.STEPS]


# Versions.


def test_the_changelog_begins_with_the_version_that_is_built() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    match = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert match is not None
    assert match[1] == built


def test_the_versions_of_the_decision_are_those_that_are_pinned() -> None:
    text = (ROOT / "docs/decisions/0003-versions-of-the-jvm-parts.md").read_text()
    rows = tables(text, "Choice")[0]
    assert rows
    for part, version, file in rows:
        pinned = [line for line in (ROOT / file).read_text().splitlines() if part.removesuffix(" (image)") in line]
        assert any(version in line for line in pinned), (part, version, file)


# All pages.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_mentions_exists(page: Path) -> None:
    """Links, files, tests, targets, variables, commands, examples; nothing of one machine, or that nobody rounded."""
    text = page.read_text()
    defined = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert pages.dead_links(text, page.parent) == []
    assert pages.missing_files(text, page.parent) == []
    assert unknown_targets(text, MAKEFILE) == []
    assert unknown_variables(text, MAKEFILE) == []
    assert unknown_commands(text, PROGRAMS) == []
    assert pages.broken_examples(text) == []
    assert [test for test in named_tests(text) if f"def {test}(" not in defined] == []
    assert pages.machine_paths(text) == []
    assert pages.unrounded(text) == []


def test_the_readme_is_short_and_leads_to_every_page_of_the_guide() -> None:
    """A newcomer reads it whole. It names most targets, so an empty look would be a mistake of these tests."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    guide = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs/guide").glob("*.md"))]
    assert len(guide) >= 8
    assert [page for page in guide if f"]({page})" not in readme] == []
    for target in ("demo", "test", "seed", "run-pipeline", "run-pipeline-crash", "verify", "bench"):
        assert f"make {target}" in readme
        assert unknown_targets(f"`make {target}`", "") == [target]


def test_the_readmes_record_and_demo_lines_are_what_comes_out() -> None:
    readme, story = ((ROOT / page).read_text() for page in ("README.md", "docs/guide/crash-story.md"))
    value, enriched = re.findall(r"^```json\n(.*)\n```$", readme, re.MULTILINE)
    assert enricher(Limits())(b"gold-000016", value.encode()) == enriched.encode()
    block = re.search(r"^```text\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    position = 0
    for line in block[1].splitlines():
        position = story.find(f"\n{line}\n", position) + 1
        assert position > 0, line


def test_the_numbers_of_cells_and_mutants_are_those_of_the_code() -> None:
    text = (ROOT / "docs/guide/prove-it.md").read_text()
    named = re.search(r"^named=\((.*?)\)$", (ROOT / ".ci/run").read_text(), re.MULTILINE | re.DOTALL)
    assert named is not None
    patterns = named[1].replace("'", "").split()
    assert f"runs {len(chosen(['prove']))} cells of the fault matrix" in text
    assert f"the {len(chosen(patterns))} cells that" in text
    assert f"adds {len(MUTANTS)} deliberate bugs" in text


def test_the_glossary_is_sorted_and_says_each_word_once() -> None:
    words = re.findall(r"^\*\*([^*]+)\*\* - ", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(words) > 30
    assert words == sorted(set(words), key=str.lower)


@pytest.mark.parametrize(
    ("look", "text", "expected"),
    [
        (lambda text: pages.dead_links(text, ROOT), "[a](gone.md) [b](README.md) [c](https://x.y/z)", ["gone.md"]),
        (lambda text: pages.dead_links(text, ROOT), "[a](README.md#no-such-heading)", ["README.md#no-such-heading"]),
        (lambda text: pages.missing_files(text, ROOT), "`brew/gone.py` `Makefile` `a b`", ["brew/gone.py"]),
        (lambda text: pages.missing_files(text, ROOT), "`gone.md` `brew/names.py`", ["gone.md"]),
        (lambda text: unknown_targets(text, MAKEFILE), "`make lint tset`", ["tset"]),
        (lambda text: unknown_targets(text, MAKEFILE), "```sh\nFOLLOW=1 make run-pipline  # x\n```", ["run-pipline"]),
        (lambda text: unknown_variables(text, MAKEFILE), "`make seed SEEDS=1 SEED_COUNT=2`", ["SEEDS"]),
        (lambda text: unknown_commands(text, PROGRAMS), "`brew lags` and `brew lag --json`", ["brew lags"]),
        (lambda text: unknown_commands(text, PROGRAMS), "`brew dlq list --jsn`", ["brew dlq list --jsn"]),
        (
            lambda text: unknown_commands(text, PROGRAMS),
            "```sh\nX=1 .venv/bin/python -m proof sed --count 1  # --x\nbrew-sandbox up \\\n --port 0 --prt 1\n```",
            ["proof sed", "sandbox up --prt"],
        ),
        (pages.broken_examples, "```python\nimport brew\nbrew.Sink()\n```", ["brew.Sink"]),
        (pages.broken_examples, "```python\nfrom brew.lookup import Table, Row\n```", ["brew.lookup.Row"]),
        (pages.broken_examples, "```python\nx = \n```", ["invalid syntax: x = \n"]),
        (named_tests, "`test_a` and test_b", ["test_a"]),
        (pages.machine_paths, "in /home/me/x or ./home/", ["/home/me/x"]),
    ],
)
def test_a_page_that_lies_is_caught(look: Callable[[str], list[str]], text: str, expected: list[str]) -> None:
    assert look(text) == expected


CLAIMS = (ROOT / "docs/CLAIMS.md").read_text()


def test_the_topic_of_claims_is_made_and_hashed_as_the_page_says() -> None:
    """Name, partitions, configuration, and hashes with which another implementation can check itself."""
    assert f"`{names.CLAIMS_TOPIC}`" in CLAIMS
    settings, hashes = tables(CLAIMS, "Log")
    assert {row[0]: row[1] for row in settings} == {"partitions": str(messages.PARTITIONS), **messages.CONFIG}
    for place, *homes in hashes:
        topic, _, partition = place.rpartition(":")
        assert [messages.coordinating_partition(topic, int(partition), n) for n in (8, 3)] == [int(h) for h in homes]


def test_the_messages_and_the_limits_of_their_fields_are_those_of_the_page() -> None:
    documented = [(name, tuple(fields.split())) for name, fields, _ in tables(CLAIMS, "Messages")[0]]
    assert documented == [(name, message._fields) for name, message in TYPES.items()]
    assert f"`v` ({VERSION})" in CLAIMS
    limits = {row[0]: row[2] for row in tables(CLAIMS, "Messages")[1]}
    assert list(limits) == list(LIMITS)
    for field, text in limits.items():
        bounds = [int(number) for number in re.findall(r"-?\d+", text)]
        of_text = field.endswith("_id")
        for number, beyond in zip(bounds, (-1, 1), strict=False):
            good, bad = ("x" * number, "x" * (number + beyond)) if of_text else (number, number + beyond)
            assert LIMITS[field](good), (field, number)
            assert not LIMITS[field](bad), (field, number)


def test_states_answers_numbers_and_shares_of_claims_are_those_of_the_code() -> None:
    assert column(CLAIMS, "Time") == [str(one) for one in ClaimStatus]
    after = {9: ClaimStatus.FRESH, 10: ClaimStatus.UNKNOWN, 20: ClaimStatus.UNKNOWN, 21: ClaimStatus.STALE}
    assert {age: status(0, 10, age) for age in after} == after
    assert sorted(column(CLAIMS, "Fold")) == sorted(str(one) for one in RecordEffect)
    assert column(CLAIMS, "Snapshots", at=1) == [str(SNAPSHOT_RECORDS), str(SNAPSHOT_MS)]
    assert f"{PARTIAL_MS} ms" in CLAIMS
    assert WINDOW > SNAPSHOT_RECORDS
    for name in ("seats", "members", "pauses"):
        assert f"`{name}`" in CLAIMS
    assert messages.SNAPSHOT_KEY == b"Snapshot"
    assert fair_counts({"a": 0, "b": 2, "c": 3}, 5) == {"c": 2, "b": 2, "a": 1}
    assert fair_counts({"b": 0, "a": 0}, 3) == {"a": 2, "b": 1}


RESULTS = {"containers": "docs/proof/containers.json", "cluster": "docs/proof/cluster.json"}
PAGE = ROOT / "docs/guide/containers.md"


def _tests(folder: str) -> set[str]:
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
    results = json.loads((ROOT / RESULTS[folder]).read_text())["tests"]
    assert {name.partition("[")[0] for name in results} == _tests(folder)
    assert {name: one["outcome"] for name, one in results.items() if one["outcome"] != "passed"} == {}


def test_the_pages_times_are_those_of_the_results() -> None:
    results = json.loads((ROOT / RESULTS["containers"]).read_text())["tests"]
    measured = {str(value) for one in results.values() for value in one.get("measured", {}).values()}
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| .* \| .*\d s", line)]
    assert rows
    for row in rows:
        for number in re.findall(r"([\d.]+) s\b", row.split("|")[2]):
            assert number in measured, row


def test_the_table_of_anomalies_is_the_checkers_whose_counts_can_be_demanded() -> None:
    """A name without a meaning helps nobody; `--need` knows these counts without `--fired`."""
    rows = tables(PROTOCOL, "Anomalies")[0]
    assert sorted(name for name, _ in rows) == sorted(name.value for name in Name)
    assert all(len(meaning) > 20 for _, meaning in rows)
    counts = Checker(BrokerFacts("in", "out", "dlq", {}, {}, 1)).counts
    assert counts.keys() >= {"committed_transactions", "aborted_transactions", "aborted_records", "fences"}
