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


def names(chunks: list[Chunk], counts: dict[bytes, int] = COUNTS) -> set[str]:
    history = BatchHistory()
    for partition, rows in chunks:
        history.observe(partition, rows)
    return {one["name"] for one in history.findings(counts)}


def test_whole_batches_in_any_order_of_partitions_are_right() -> None:
    """Several batches may become visible between two looks, and partitions one after the other."""
    assert names(CLEAN) == set()
    assert names([], {}) == set()


@pytest.mark.parametrize(
    ("chunks", "named"),
    [
        ([(0, CLEAN[0][1][:1]), (0, CLEAN[0][1][1:]), *CLEAN[1:]], "torn-batch"),
        ([*CLEAN, (0, [SeenRow(0, A, 2)])], "torn-batch"),
        ([*CLEAN, (0, [SeenRow(2, A, 4)])], "duplicate-output"),
        ([(0, [*CLEAN[0][1], SeenRow(0, A, 2)]), *CLEAN[1:]], "duplicate-output"),
        ([CLEAN[0], CLEAN[1], (1, [SeenRow(2, B, 3)]), (0, [SeenRow(2, A, 4)])], "lost-output"),
        (CLEAN[:3], "lost-output"),
        ([*CLEAN, (0, [SeenRow(3, A, 3)])], "state-drift"),
        ([*CLEAN, (0, [SeenRow(3, A, 5)])], "state-drift"),
    ],
    ids=["in parts", "again later", "again in the next batch", "twice", "no batch", "no row", "backwards", "too much"],
)
def test_damage_is_named(chunks: list[Chunk], named: str) -> None:
    assert named in names(chunks)


def test_a_batch_without_a_row_is_lost_unless_the_query_may_have_none() -> None:
    """A join may find nothing to join in a batch."""
    history = BatchHistory()
    history.observe(0, [SeenRow(0, A, 1), SeenRow(2, A, 2)])
    assert [one["name"] for one in history.findings({A: 2})] == ["lost-output"]
    assert history.findings({A: 2}, no_batch_empty=False) == []


def test_rows_without_headers_are_compared_as_rows() -> None:
    """Spark's own sink knows no batches: what is there twice is seen, parts of a batch are not."""
    rows = [SeenRow(NO_BATCH, A, 2), SeenRow(NO_BATCH, A, 4)]
    assert names([(0, rows[:1]), (0, rows[1:])], {A: 4}) == set()
    assert names([(0, rows), (0, rows[1:])], {A: 4}) == {"duplicate-output"}
