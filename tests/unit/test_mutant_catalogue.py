"""The mutants without a broker: each changes the product and takes it back; the page tells what the code says."""

from __future__ import annotations

import pytest
from harness.pages import ROOT, column, tables
from mutants.catalogue import EVERY, HARMLESS, MUTANTS
from mutants.layers import HARMLESS_IN_LAYERS, LAYER_BUGS, LayerBug
from mutants.mutant import Changes
from mutants.scenarios import SCENARIOS

from brew import range_transaction
from brew.driver import micro_batches, missing_offsets, partitions
from brew.driver.partitions import OffsetsClient, PartitionSurvey
from brew.kafka import committed_offset, log_reader, transaction
from brew.kafka.committed_offset import PositionConfirmation
from brew.kafka.transaction import KafkaTransaction
from brew.names import TransactionalId
from brew.readers.direct import worker
from proof.findings import Name

PAGE = (ROOT / "docs/proof/mutants.md").read_text()
KERNEL = [micro_batches, missing_offsets, range_transaction, log_reader, committed_offset, transaction]
CLASSES = [PositionConfirmation, KafkaTransaction, TransactionalId, worker._PartitionWorker]
CHANGED = [*KERNEL, *CLASSES, worker, partitions, PartitionSurvey, OffsetsClient]


def product() -> list[dict[str, object]]:
    return [dict(vars(one)) for one in CHANGED]


@pytest.mark.parametrize("name", EVERY)
def test_a_bug_is_gone_when_its_experiment_ends(name: str) -> None:
    """What one experiment changes, the next must not meet; a run that refuses leaves its experiment by an error."""
    before = product()

    def experiment(*, refused: bool) -> None:
        with Changes() as change:
            EVERY[name].change(change)
            assert product() != before
            if refused:
                raise ValueError("amid")

    experiment(refused=False)
    assert product() == before
    with pytest.raises(ValueError, match="amid"):
        experiment(refused=True)
    assert product() == before


def test_the_page_tells_every_mutant_as_the_code_does() -> None:
    rows = [(one.name, one.breaks, one.wrong, one.on, one.named) for one in MUTANTS.values()]
    assert [tuple(row) for row in tables(PAGE, "The bugs")[0]] == rows
    assert f"So {len(rows)} bugs" in PAGE
    harmless = [(one.name, one.wrong, one.on) for one in HARMLESS.values()]
    assert [tuple(row) for row in tables(PAGE, "What breaks nothing")[0]] == harmless
    scenarios = [(name, " ".join((act.__doc__ or "").split())) for name, act in SCENARIOS.items()]
    assert [tuple(row) for row in tables(PAGE, "The scenarios")[0]] == scenarios
    assert {one.breaks for one in EVERY.values()} == set(column(PAGE, "The rules"))


def test_a_mutant_is_named_by_a_check_that_ships() -> None:
    """An anomaly of the checker, but for those that the page explains."""
    signs = {one.name for one in MUTANTS.values() if one.named not in set(Name)}
    assert signs == {"transactional-id-shared", "flush-left-out", "next-range-after-a-failure", "topic-id-left-out"}
    assert {one.on for one in EVERY.values()} == set(SCENARIOS), "a scenario without a mutant shows nothing"


def test_what_only_unit_tests_see_names_tests_that_are_there() -> None:
    named = [row[-1] for row in tables(PAGE, "What breaks nothing")[1]]
    tests = "".join(path.read_text() for path in (ROOT / "tests/unit").rglob("test_*.py"))
    assert named
    assert [name for name in named if f"def {name.strip('`')}(" not in tests] == []


@pytest.mark.parametrize("bug", [*LAYER_BUGS, *HARMLESS_IN_LAYERS], ids=lambda one: one.name)
def test_a_bug_of_a_layer_fits_into_the_source_and_its_test_exists(bug: LayerBug) -> None:
    """Where the source has changed, the entry changes with it: `python -m tests.mutants layers` shows the test red."""
    assert (ROOT / bug.file).read_text().count(bug.old) == 1
    assert bug.new != bug.old
    path, _, name = bug.test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


def test_the_page_tells_every_bug_of_a_layer_as_the_code_does() -> None:
    for heading, bugs in (
        ("The bugs of single layers", LAYER_BUGS),
        ("What breaks nothing in a layer", HARMLESS_IN_LAYERS),
    ):
        rows = [(one.name, one.wrong, one.layer, one.tested_by) for one in bugs]
        assert [tuple(row) for row in tables(PAGE, heading)[0]] == rows
