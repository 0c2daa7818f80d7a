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
from harness.pages import (
    ROOT,
    column,
    dead_links,
    machine_paths,
    missing_files,
    named_tests,
    tables,
    unknown_targets,
    unknown_variables,
    unrounded,
)

from brew import names, offsets, orders, records
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
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts
from proof.findings import Name

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = ("brew", "pipeline", "operations", "downstream", "proof", "sandbox")

PROTOCOL = (ROOT / "docs/PROTOCOL.md").read_text()
DESIGN = (ROOT / "docs/DESIGN.md").read_text()
OPERATIONS = (ROOT / "docs/OPERATIONS.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


# PROTOCOL.md against the code.


def test_the_topics_are_those_of_the_code() -> None:
    """All of them, the input first."""
    topics = [names.INPUT_TOPIC, names.OUTPUT_TOPIC, names.DEAD_LETTER_TOPIC]
    assert column(PROTOCOL, "Topics") == [*topics, names.CUSTOMERS_TOPIC, names.CLAIMS_TOPIC, names.TOTALS_TOPIC]
    assert MAX_MESSAGE_BYTES in PROTOCOL


def test_the_defaults_are_those_of_the_code() -> None:
    """Group and bootstrap servers."""
    assert tables(PROTOCOL, "Defaults") == [[["group", names.GROUP_ID], ["bootstrap", names.BOOTSTRAP]]]


def test_the_orders_fields_are_those_of_the_code() -> None:
    """In the order in which the seeder writes them."""
    assert tuple(column(PROTOCOL, "Order")) == orders.ORDER_FIELDS


def test_tiers_and_discounts_are_those_of_the_code() -> None:
    """The table that both the pipeline and the checker's oracle use."""
    told = [(tier, float(discount)) for tier, discount in tables(PROTOCOL, "Enrichment")[0]]
    assert told == list(orders.DISCOUNTS.items())
    for field in (orders.TIER_FIELD, orders.DISCOUNT_FIELD, orders.STANDARD):
        assert f"`{field}`" in PROTOCOL


def test_the_source_headers_are_those_of_the_code() -> None:
    """In the order in which they stand on a record."""
    written = [name for name, _ in offsets.SourcePosition("t", 0, 0).headers()]
    assert column(PROTOCOL, "Source headers") == written


def test_the_dead_letter_headers_are_those_of_the_code() -> None:
    """Every `ERROR_...` constant is told, and no other."""
    defined = [value for name, value in vars(records).items() if name.startswith("ERROR_")]
    assert column(PROTOCOL, "Dead-letter headers") == defined


@pytest.mark.parametrize(
    ("heading", "table", "defined"),
    [
        ("Reasons", 0, list(orders.Reason)),
        ("Steps", 0, list(names.STEPS)),
        ("Crash points", 0, list(CrashPoint)),
        ("Crash points", 1, list(CrashMode)),
        ("Outcomes", 0, list(Status)),
        ("Exit codes", 0, [str(int(code)) for code in ExitCode]),
    ],
)
def test_the_codes_are_those_of_the_code(heading: str, table: int, defined: list[str]) -> None:
    """All of them, and in the same order."""
    assert column(PROTOCOL, heading, table=table) == [str(one) for one in defined]


def test_the_transactional_id_of_the_page_is_one() -> None:
    """The example is read back, and the form is what `str()` writes."""
    form, example = re.search(r"## Transactional id\n\n`([^`]+)`, of the input: `([^`]+)`", PROTOCOL).groups()  # type: ignore[union-attr]
    assert str(TransactionalId.parse(example)) == example
    assert form == "<group>:<topic>:<partition>"
    assert str(TransactionalId("<group>", "<topic>", 7)) == form.replace("<partition>", "7")


def test_the_offsets_metadata_of_the_page_is_what_is_committed() -> None:
    """An outside tool may read it."""
    assert f"`{position_metadata('<id>')}`" in PROTOCOL


# OPERATIONS.md against the code.


def test_every_named_refusal_is_told_and_no_other() -> None:
    """A refusal with a name starts its sentence with it."""
    sources = "\n".join(file.read_text() for file in [ROOT / "brew/planner.py", *(ROOT / "brew/driver").glob("*.py")])
    raised = re.findall(r'raise Refused\(\s*f?"([a-z]+(?:-[a-z]+)+): ', sources)
    assert sorted(column(OPERATIONS, "Refusals")) == sorted(set(raised))


def test_the_numbers_of_a_run_are_the_options_defaults() -> None:
    """Each option of the table exists, with that default."""

    @run_options
    def command() -> None: ...

    options: list[click.Parameter] = command.__click_params__  # type: ignore[attr-defined]
    defaults = {option.opts[0]: str(option.default) for option in options}
    told = {row[0]: row[1] for row in tables(OPERATIONS, "Numbers of a run")[0]}
    assert told == {name: defaults.get(name) for name in told}
    choices = next(option.type for option in options if option.opts[0] == "--on-missing-position")
    assert isinstance(choices, click.Choice)
    assert column(OPERATIONS, "`--on-missing-position`") == list(choices.choices)


# DESIGN.md against the repository.


def test_the_file_map_holds_every_module_and_nothing_else() -> None:
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


def test_the_file_map_fits_on_one_page() -> None:
    """A newcomer reads it whole; a row is a folder or a deep module (HOUSE: at most 60)."""
    section = DESIGN.partition("## File map")[2].partition("## Invariants")[0]
    assert 30 < len(re.findall(r"^\| `", section, re.MULTILINE)) <= 60


def test_every_invariant_names_a_test_that_exists() -> None:
    """An invariant without a guard is a wish."""
    defined = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    for invariant, guards in tables(DESIGN, "Invariants")[0]:
        found = named_tests(f"`{guards}`")
        assert found, invariant
        assert [test for test in found if f"def {test}(" not in defined] == [], invariant


def test_the_six_steps_stand_in_their_order() -> None:
    """The same six words, and the same order."""
    section = DESIGN.partition("## The six steps")[2]
    assert re.findall(r"^\d\. \*\*([a-z ]+)\*\*", section, re.MULTILINE) == [s.replace("-", " ") for s in names.STEPS]


# Versions.


def test_the_changelog_begins_with_the_version_that_is_built() -> None:
    """Who installs a version finds what is new in it."""
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == built


def test_the_versions_of_the_decision_are_those_that_are_pinned() -> None:
    """Each part's version stands in the file that the table names, beside the part's name."""
    text = (ROOT / "docs/decisions/0003-versions-of-the-jvm-parts.md").read_text()
    rows = tables(text, "Choice")[0]
    assert rows
    for part, version, file in rows:
        pinned = [line for line in (ROOT / file).read_text().splitlines() if part.removesuffix(" (image)") in line]
        assert any(version in line for line in pinned), (part, version, file)


# All pages.


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_mentions_exists(page: Path) -> None:
    """Links, file names, tests, make targets and variables; nothing of one machine only, or that nobody rounded."""
    text = page.read_text()
    defined = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))

    assert dead_links(text, page.parent) == []
    assert missing_files(text, page.parent) == []
    assert unknown_targets(text, MAKEFILE) == []
    assert unknown_variables(text, MAKEFILE) == []
    assert [test for test in named_tests(text) if f"def {test}(" not in defined] == []
    assert machine_paths(text) == []
    assert unrounded(text) == []


def test_the_readme_shows_only_commands_that_exist() -> None:
    """It names most targets, so an empty look would be a mistake of this test."""
    readme = (ROOT / "README.md").read_text()
    for target in ("demo", "test", "seed", "run-pipeline", "run-pipeline-crash", "verify", "bench"):
        assert f"make {target}" in readme
        assert unknown_targets(f"`make {target}`", "") == [target]


def test_the_readme_is_short_and_leads_to_every_page_of_the_guide() -> None:
    """A stranger reads it whole; what does not fit is a page of its own, and none of them is lost."""
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 150
    guide = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs/guide").glob("*.md"))]
    assert len(guide) >= 8
    assert [page for page in guide if f"]({page})" not in readme] == []


def test_the_readmes_record_is_what_the_application_makes_of_an_order() -> None:
    """The first block is read, the second is what comes out, byte by byte."""
    given, made = re.findall(r"^```json\n(.*)\n```$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert enricher(Limits())(b"gold-000016", given.encode()) == made.encode()


def test_the_readmes_demo_lines_are_those_of_the_whole_output() -> None:
    """In the same order as on the page of the crash story."""
    readme, story = ((ROOT / page).read_text() for page in ("README.md", "docs/guide/crash-story.md"))
    block = re.search(r"^```text\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert block is not None
    at = 0
    for line in block[1].splitlines():
        at = story.find(f"\n{line}\n", at) + 1
        assert at > 0, line


def test_the_glossary_is_sorted_and_says_each_word_once() -> None:
    """One meaning each."""
    words = re.findall(r"^\*\*([^*]+)\*\* - ", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(words) > 30
    assert words == sorted(set(words), key=str.lower)


@pytest.mark.parametrize(
    ("look", "text", "found"),
    [
        (lambda text: dead_links(text, ROOT), "[a](gone.md) [b](README.md) [c](https://x.y/z)", ["gone.md"]),
        (lambda text: dead_links(text, ROOT), "[a](README.md#no-such-heading)", ["README.md#no-such-heading"]),
        (lambda text: missing_files(text, ROOT), "`brew/gone.py` `Makefile` `a b`", ["brew/gone.py"]),
        (lambda text: missing_files(text, ROOT), "`gone.md` `brew/names.py`", ["gone.md"]),
        (lambda text: unknown_targets(text, MAKEFILE), "`make lint tset`", ["tset"]),
        (lambda text: unknown_targets(text, MAKEFILE), "```sh\nFOLLOW=1 make run-pipline  # x\n```", ["run-pipline"]),
        (lambda text: unknown_variables(text, MAKEFILE), "`make seed SEEDS=1 SEED_COUNT=2`", ["SEEDS"]),
        (named_tests, "`test_a` and test_b", ["test_a"]),
        (machine_paths, "in /home/me/x or ./home/", ["/home/me/x"]),
    ],
)
def test_a_page_that_lies_is_caught(look: Callable[[str], list[str]], text: str, found: list[str]) -> None:
    """Each look finds the one thing that is wrong."""
    assert look(text) == found


CLAIMS = (ROOT / "docs/CLAIMS.md").read_text()


def test_the_topic_is_made_as_the_page_says() -> None:
    """Name, partitions, configuration."""
    assert f"`{names.CLAIMS_TOPIC}`" in CLAIMS
    told = {row[0]: row[1] for row in tables(CLAIMS, "Log")[0]}
    assert told == {"partitions": str(messages.PARTITIONS), **messages.CONFIG}


def test_the_hash_of_the_page_is_the_codes() -> None:
    """Another implementation can check itself by these."""
    for place, *homes in tables(CLAIMS, "Log")[1]:
        topic, _, partition = place.rpartition(":")
        assert [messages.coordinating_partition(topic, int(partition), n) for n in (8, 3)] == [int(h) for h in homes]


def test_the_messages_are_those_of_the_page() -> None:
    """Types and fields, in order."""
    told = [(name, tuple(fields.split())) for name, fields, _ in tables(CLAIMS, "Messages")[0]]
    assert told == [(name, made._fields) for name, made in TYPES.items()]
    assert f"`v` ({VERSION})" in CLAIMS


def test_every_field_is_told_with_its_limits() -> None:
    """The numbers of the page are the last good ones."""
    limits = {row[0]: row[2] for row in tables(CLAIMS, "Messages")[1]}
    assert list(limits) == list(LIMITS)
    for field, text in limits.items():
        found = [int(number) for number in re.findall(r"-?\d+", text)]
        of_text = field.endswith("_id")
        for number, beyond in zip(found, (-1, 1), strict=False):
            good, bad = ("x" * number, "x" * (number + beyond)) if of_text else (number, number + beyond)
            assert LIMITS[field](good), (field, number)
            assert not LIMITS[field](bad), (field, number)


def test_states_and_answers_are_those_of_the_code() -> None:
    """All of them, and in the same order; the bounds between states are one and two intervals."""
    assert column(CLAIMS, "Time") == [str(one) for one in ClaimStatus]
    assert [status(0, 10, age) for age in (9, 10, 20, 21)] == [*ClaimStatus][:1] + [ClaimStatus.UNKNOWN] * 2 + [
        ClaimStatus.STALE
    ]
    assert sorted(column(CLAIMS, "Fold")) == sorted(str(one) for one in RecordEffect)


def test_the_numbers_of_snapshots_and_newcomers_are_those_of_the_code() -> None:
    """Records, milliseconds, and how long a log without its begin counts as partial."""
    assert column(CLAIMS, "Snapshots", at=1) == [str(SNAPSHOT_RECORDS), str(SNAPSHOT_MS)]
    assert f"{PARTIAL_MS} ms" in CLAIMS
    assert WINDOW > SNAPSHOT_RECORDS
    for name in ("seats", "members", "pauses"):
        assert f"`{name}`" in CLAIMS
    assert messages.SNAPSHOT_KEY == b"Snapshot"


def test_the_shares_are_dealt_as_the_page_says() -> None:
    """Those that hold the most may hold one more; equal ones by their names."""
    assert fair_counts({"a": 0, "b": 2, "c": 3}, 5) == {"c": 2, "b": 2, "a": 1}
    assert fair_counts({"b": 0, "a": 0}, 3) == {"a": 2, "b": 1}


RESULTS = {"containers": "docs/proof/containers.json", "cluster": "docs/proof/cluster.json"}
PAGE = ROOT / "docs/guide/containers.md"


def _tests(folder: str) -> set[str]:
    """Every test of a folder, as a file and a name."""
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
    told = json.loads((ROOT / RESULTS[folder]).read_text())["tests"]
    assert {name.partition("[")[0] for name in told} == _tests(folder)
    assert {name: one["outcome"] for name, one in told.items() if one["outcome"] != "passed"} == {}


def test_the_pages_times_are_those_of_the_results() -> None:
    """Each number in the table of the image stands in the results."""
    told = json.loads((ROOT / RESULTS["containers"]).read_text())["tests"]
    measured = {str(value) for one in told.values() for value in one.get("measured", {}).values()}
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| .* \| .*\d s", line)]
    assert rows
    for row in rows:
        for number in re.findall(r"([\d.]+) s\b", row.split("|")[2]):
            assert number in measured, row


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
