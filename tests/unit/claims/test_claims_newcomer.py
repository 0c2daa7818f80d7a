"""How a newcomer reads: the newest snapshot, what follows it, and nothing twice."""

from __future__ import annotations

import pytest
from harness.claims import MemoryLog, Shared, beat, claim, release

from brew.claims import member
from brew.claims.log import Item
from brew.claims.member import read_to_end
from brew.claims.messages import encode
from brew.claims.state import ClaimsView, Table, snapshot_of
from brew.deadline import Deadline


def folded(shared: Shared, until: int | None = None) -> Table:
    """All records applied one after another."""
    world = ClaimsView([Table()])
    for entry in shared.entries[0]:
        if until is None or entry.offset < until:
            world.apply(entry)
    return world.tables[0]


def snapshot(shared: Shared, until: int, told: int | None = None) -> None:
    """A snapshot of the records below ``until``; ``told`` says that it holds another end."""
    made = snapshot_of(folded(shared, until), "x")
    shared.append(Item(0, *encode(made if told is None else made._replace(until=told))))


def arrived(shared: Shared) -> Table:
    return read_to_end(MemoryLog(shared), Deadline(5)).tables[0]


def test_records_between_a_snapshots_end_and_the_window_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wrote while it was taken; two of them lie before the last three records."""
    monkeypatch.setattr(member, "WINDOW", 3)
    shared = Shared()
    shared.write(claim("a", 0))
    shared.write(claim("a", 1))
    shared.write(claim("b", 2))
    snapshot(shared, until=1)
    shared.write(beat("a", 0, 5))
    shared.write(beat("a", 1, 6, partition=1))
    assert arrived(shared).seats == folded(shared).seats
    assert len(arrived(shared).seats) == 3


def test_what_a_snapshot_holds_is_not_applied_again() -> None:
    """The clock would go back with it, and owners would be stale before their time."""
    shared = Shared()
    for at, message in enumerate((claim("a"), release("a", 0), claim("b"))):
        shared.now_ms += 100 * at
        shared.write(message)
    snapshot(shared, until=3)
    table = arrived(shared)
    assert (table.seats, table.clock) == (folded(shared).seats, folded(shared).clock)


@pytest.mark.parametrize("beyond", [0, 2])
def test_a_snapshot_that_tells_of_records_behind_itself_is_none(beyond: int) -> None:
    """Its own offset is the last end that it can hold; with a later one records would be passed over."""
    shared = Shared()
    shared.write(claim("a"))
    snapshot(shared, until=1, told=1 + beyond)
    shared.write(claim("b", 1))
    assert arrived(shared).seats == folded(shared).seats
    assert len(arrived(shared).seats) == 2


def test_reading_goes_on_at_the_logs_end_although_no_record_stands_before_it() -> None:
    """Compaction and markers leave gaps: a table that stood lower would call what is written next a shrunk log."""

    class Gapped(MemoryLog):
        def bounds(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
            return {p: (first, end + 5) for p, (first, end) in super().bounds(deadline).items()}

    shared = Shared()
    shared.write(claim("a"))
    assert read_to_end(Gapped(shared), Deadline(5)).ends() == {0: 6}
