"""The fold over what a reader saw of a sink's batches: clean histories, and each kind of damage."""

from __future__ import annotations

import pytest

from proof.checking.sink_batches import NO_BATCH, BatchHistory, SeenRow

A, B = b"a", b"b"
Chunk = tuple[int, list[SeenRow]]
CLEAN: list[Chunk] = [
    (0, [SeenRow(0, A, 2), SeenRow(0, A + A, 1)]),
    (1, [SeenRow(0, B, 1)]),
    (1, [SeenRow(1, B, 2), SeenRow(2, B, 3)]),
    (0, [SeenRow(1, A, 4)]),
]
COUNTS = {A: 4, A + A: 1, B: 3}


def observed(chunks: list[Chunk]) -> BatchHistory:
    history = BatchHistory()
    for partition, rows in chunks:
        history.observe(partition, rows)
    return history


def names(chunks: list[Chunk], counts: dict[bytes, int] = COUNTS) -> set[str]:
    return {one["name"] for one in observed(chunks).findings(counts)}


def test_whole_batches_in_any_order_of_partitions_are_right() -> None:
    assert names(CLEAN) == set()
    assert names([], {}) == set()


TWICE, LOST, DRIFT = "duplicate-output", "lost-output", "state-drift"
AGAIN = "batch 0 in partition 0 behind batch {} of an earlier look"


@pytest.mark.parametrize(
    ("chunks", "damage"),
    [
        ([(0, CLEAN[0][1][:1]), (0, CLEAN[0][1][1:]), *CLEAN[1:]], [("torn-batch", AGAIN.format(0))]),
        (
            [*CLEAN, (0, [SeenRow(0, A, 2)])],
            [("torn-batch", AGAIN.format(1)), (TWICE, "b'a' with total 2 is there 2 times")],
        ),
        ([*CLEAN, (0, [SeenRow(2, A, 4)])], [(TWICE, "b'a' with total 4 is there 2 times")]),
        ([(0, [*CLEAN[0][1], SeenRow(0, A, 2)]), *CLEAN[1:]], [(TWICE, "b'a' with total 2 is there 2 times")]),
        ([*CLEAN[:2], (1, [SeenRow(2, B, 3)]), (0, [SeenRow(2, A, 4)])], [(LOST, "batch 1 has no visible row")]),
        (
            [(0, [SeenRow(2, A, 4), SeenRow(2, A + A, 1), SeenRow(2, B, 3)])],
            [(LOST, f"batch {n} has no visible row") for n in (0, 1)],
        ),
        (CLEAN[:3], [(LOST, "b'a' stands at 2 of 4")]),
        ([], [(LOST, f"{key!r} stands at 0 of {COUNTS[key]}") for key in (A, A + A, B)]),
        ([*CLEAN, (0, [SeenRow(3, A, 3)])], [(DRIFT, "b'a' fell from 4 to 3 in batch 3")]),
        ([*CLEAN, (0, [SeenRow(3, A, 5)])], [(DRIFT, "b'a' stands at 5 of 4")]),
        ([*CLEAN, (0, [SeenRow(3, b"z", 1)])], [(DRIFT, "b'z' stands at 1 of 0")]),
        ([*CLEAN, (0, [SeenRow(3, b"z", 0)])], []),
        (
            [CLEAN[0], CLEAN[1], (1, [SeenRow(2, B, 3), SeenRow(1, B, 2)]), CLEAN[3], (1, [SeenRow(2, b"z", 0)])],
            [("torn-batch", "batch 2 in partition 1 behind batch 2 of an earlier look")],
        ),
    ],
    ids=[
        "in parts", "again later", "again in the next batch", "twice", "no batch", "no first batches", "no row",
        "nothing", "backwards", "too much", "of nobody", "nobody's nothing", "in parts and out of order",
    ],
)  # fmt: skip
def test_damage_is_named_with_its_place_and_numbers(chunks: list[Chunk], damage: list[tuple[str, str]]) -> None:
    assert observed(chunks).findings(COUNTS) == [{"name": name, "evidence": evidence} for name, evidence in damage]


def test_a_batch_without_a_row_is_lost_unless_the_query_may_have_none() -> None:
    """A join may find nothing to join in a batch."""
    history = observed([(0, [SeenRow(0, A, 1), SeenRow(2, A, 2)])])
    assert [one["name"] for one in history.findings({A: 2})] == ["lost-output"]
    assert history.findings({A: 2}, no_batch_empty=False) == []


def test_rows_without_headers_are_compared_as_rows() -> None:
    """Spark's own sink knows no batches: what is there twice is seen, parts of a batch are not."""
    rows = [SeenRow(NO_BATCH, A, 2), SeenRow(NO_BATCH, A, 4)]
    assert names([(0, rows[:1]), (0, rows[1:])], {A: 4}) == set()
    assert names([(0, rows), (0, rows[1:])], {A: 4}) == {"duplicate-output"}
    mixed = [(0, [*rows, SeenRow(0, B, 1)]), (0, [SeenRow(0, B, 2)])]
    assert names(mixed, {A: 4, B: 2}) == {"torn-batch"}
