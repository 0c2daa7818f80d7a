"""Effects beyond Kafka: the ledger, the receivers and the totals, on real PostgreSQL and Redis."""

from __future__ import annotations

import functools
from collections.abc import Callable

from proof.campaign.cell import Cell
from proof.campaign.cells import stores_ledger as ledger
from proof.campaign.cells import stores_members as members
from proof.campaign.cells import stores_receive as receive
from proof.campaign.cells import stores_totals as totals
from proof.campaign.result import VIOLATED
from proof.campaign.stage import Stage

_RECEIVER = "receiver"
_AROUND, _INSIDE, _BETWEEN = "around the commit", "between INSERT and COMMIT", "between batches"
_BACK_S, _RESTORED_S = 10.0, 20.0


def _cell(
    name: str,
    fault: str,
    moment: str,
    play: Callable[[Stage], None],
    *marks: str,
    target: str = "",
    bound_s: float | None = None,
    **needed: int,
) -> Cell:
    """A cell of these rows; one whose name ends with `control` has a bug, or a weaker promise, that has to be seen."""
    row, control = name.partition("-")[0], name.endswith("-control")
    targets = {"F29": "ledger", "F30": "ledger", "F31": "ledger", "F32": _RECEIVER, "F33": "totals"}
    return Cell(
        name=name,
        row=row,
        fault=fault,
        target=(target or targets[row]) + (" (control)" if control else ""),
        moment=moment,
        play=play,
        path="downstream",
        needed=needed,
        bound_s=None if control else bound_s,
        limit_s=900.0,
        expected=VIOLATED if control else "proven",
        marks=frozenset(marks),
    )


CELLS = (
    _cell("F29-consumer", "SIGKILL", _AROUND, ledger.consumer_killed, "prove", bound_s=_BACK_S, kills=0),
    _cell("F29-consumer-control", "SIGKILL", _AROUND, ledger.offsets_afterwards, kills=0),
    _cell("F29-backend", "SIGKILL of its backend", _INSIDE, ledger.backend_killed, bound_s=_BACK_S, database_kills=2),
    _cell("F29-postmaster", "SIGKILL of the server", _INSIDE, ledger.server_killed, bound_s=_BACK_S, database_kills=2),
    _cell("F29-reply", "the COMMIT's reply lost", _AROUND, ledger.reply_lost, bound_s=_BACK_S, lost_replies=3),
    _cell("F29-receiver", "SIGKILL", _AROUND, receive.receiver_killed, target=_RECEIVER, bound_s=_BACK_S, kills=0),
    _cell("F29-receiver-control", "SIGKILL", _AROUND, receive.claims_afterwards, target=_RECEIVER, kills=0),
    _cell(
        "F30-row-locked",
        "SIGSTOP until another took over, then SIGCONT or SIGKILL",
        "rows locked",
        members.row_locked,
        bound_s=members.LOCK_BOUND_S,
        pauses=2,
        kills=1,
        overtaken=1,
    ),
    _cell("F30-row-locked-control", "SIGSTOP, another goes on", "behind the commit", members.row_unguarded, pauses=1),
    _cell(
        "F30-rebalance",
        "members join, leave, hang and die",
        "under load",
        members.rebalance,
        bound_s=members.REBALANCED_S,
        joins=3,
        kills=1,
        pauses=1,
    ),
    _cell("F31-restore", "database set back", "Kafka ahead", members.restored, restores=1, alarms=1),
    _cell("F31-restore-control", "database set back", "Kafka ahead", members.larger_of_both, restores=1),
    _cell("F32-consumer", "SIGKILL", "around the script", receive.script_killed, "prove", kills=0),
    _cell("F32-redis", "SIGKILL of Redis", "before the script", receive.redis_killed, store_kills=2),
    _cell("F32-flushall", "FLUSHALL", _BETWEEN, receive.flushed, flushes=1, losses_seen=1),
    _cell("F32-failover", "an empty replica takes over", _BETWEEN, receive.failed_over, fail_overs=1, losses_seen=1),
    _cell("F32-forgetting", "eviction, short claims", "start", receive.forgetful, refusals=2, redeliveries=1),
    _cell("F32-expiry-control", "claims run out", "before a redelivery", receive.run_out, expiries=1),
    _cell("F32-beside-control", "SIGKILL", "between effect and `done`", receive.beside_the_effect, kills=0),
    _cell(
        "F33-before-commit",
        "SIGKILL",
        "before the changelog's commit",
        functools.partial(totals.killed, totals.BEFORE),
        "prove",
        bound_s=_RESTORED_S,
        kills=3,
    ),
    _cell(
        "F33-after-commit",
        "SIGKILL",
        "behind the changelog's commit",
        functools.partial(totals.killed, totals.AFTER),
        bound_s=_RESTORED_S,
        kills=3,
    ),
    _cell("F33-state", "local state wiped", "between runs", totals.state_wiped, bound_s=_RESTORED_S, wipes=3),
    _cell("F33-offsets-control", "SIGKILL", "commit-in-flight", totals.offsets_afterwards, kills=1),
)
