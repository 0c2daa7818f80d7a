"""A table as a snapshot's `state`, and back (docs/CLAIMS.md, 'Snapshots')."""

from __future__ import annotations

from protocol.claims.messages import Snapshot
from protocol.claims.table import Pause, Place, Presence, Seat, Table
from protocol.errors import Refused


def taken(table: Table, client_id: str) -> Snapshot:
    """All that the table knows now."""
    return Snapshot(
        client_id,
        table.next,
        table.clock,
        {
            "seats": [
                [*place, seat.owner, seat.token, seat.heard, seat.interval_ms, seat.position]
                for place, seat in table.seats.items()
            ],
            "members": [
                [group, topic, client, one.heard, one.interval_ms]
                for (group, topic), known in table.members.items()
                for client, one in known.items()
            ],
            "pauses": [[group, one.client, one.until] for group, one in table.pauses.items()],
        },
    )


def restored(snapshot: Snapshot) -> Table:
    """
    The table that stood when the snapshot was taken; its history counts as complete.

    Raises:
        Refused: the state is not one that this program writes.
    """
    table = Table()
    table.next = table.snapshot_until = snapshot.until
    table.clock = table.snapshot_clock = snapshot.clock
    try:
        for group, topic, partition, owner, token, heard, interval_ms, position in snapshot.state["seats"]:
            table.seats[Place(group, topic, partition)] = Seat(owner, token, heard, interval_ms, position)
        for group, topic, client, heard, interval_ms in snapshot.state["members"]:
            table.members.setdefault((group, topic), {})[client] = Presence(heard, interval_ms)
        for group, client, until in snapshot.state["pauses"]:
            table.pauses[group] = Pause(client, until)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(
            f"a snapshot of {snapshot.client_id!r} in the claims topic can't be read ({error!r}); "
            "name another topic (--claims), or update this program"
        ) from error
    return table
