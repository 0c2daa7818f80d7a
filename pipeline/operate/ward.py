"""Find the open transactions of a cluster and who waits behind them; end one and see that it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pipeline.operate.judge.cases import (
    Case,
    Patience,
    confirmed,
    diagnose,
    ends_by_fence,
    own_command,
    same_transaction,
    still_nobodys,
)
from protocol.cluster import Unknown
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import BrewError, DeadlineExceeded, Refused
from protocol.kafka.clients import admin
from protocol.kafka.cluster import broker_settings
from protocol.kafka.transactions import Transactions, bounds, everywhere, fence, groups, transactions
from protocol.transactions import ONGOING, Bound, Held, Place

_LOOK_S = 0.05
_LONGEST = "transaction.max.timeout.ms"
_LONGEST_MS = 900_000  # Kafka's default
_END_S = 30.0
_NAMED = 5


@dataclass(frozen=True)
class Scope:
    """
    Where to look: ``topics`` (none: all), and a pipeline's ``group`` (None: everybody's transactions).

    ``older_than_s`` makes a transaction lingering; so many groups are asked for their positions at most.
    """

    topics: Collection[str] = ()
    group: str | None = None
    older_than_s: float = 60.0
    most_groups: int = 500


@dataclass(frozen=True)
class Ward:
    """
    The open transactions, where partitions end, and the groups' positions there.

    ``not_told``: what the brokers did not tell, with their reason.
    """

    cases: tuple[Case, ...]
    bounds: Mapping[Place, Bound]
    groups: Mapping[str, Mapping[Place, int]]
    not_told: tuple[str, ...]


def examine(connection: Connection, scope: Scope, deadline: Deadline) -> Ward:
    """
    Look at all partitions in ``scope``, and at all coordinators.

    Raises:
        Unsupported: the brokers are older than Kafka 3.0.
    """
    client = admin(connection)
    found, silent = bounds(client, everywhere(client, scope.topics, deadline), deadline)
    held_back = sorted(place for place, bound in found.items() if bound.held)
    not_told = [f"{topic}[{partition}]: {reason}" for (topic, partition), reason in sorted(silent.items())]
    settings = broker_settings(client, deadline)
    longest = _LONGEST_MS if isinstance(settings, Unknown) else int(settings.get(_LONGEST, _LONGEST_MS))
    groups_there: Mapping[str, Mapping[Place, int]] = {}
    with transactions(connection, deadline) as told:
        cases = _diagnosed(told, held_back, Patience(scope.older_than_s, longest))
        cases = [one for one in cases if _within(one, scope)]
        places = {held.place for one in cases for held in one.holds}
        places |= {(owner.topic, owner.partition) for one in cases if (owner := one.owner) is not None}
        if places:
            try:
                groups_there, mute = told.readers(groups(client, scope.most_groups, deadline), sorted(places))
                not_told += _unheard(mute)
            except BrewError as error:
                not_told.append(str(error))
    return Ward(tuple(cases), found, groups_there, tuple(not_told))


def _unheard(mute: Mapping[str, str]) -> list[str]:
    """A line for the groups whose coordinators did not say where they stand."""
    names = [*sorted(mute)[:_NAMED], *(["others"] if len(mute) > _NAMED else [])]
    return [f"offsets of {len(mute)} groups ({', '.join(names)}): {mute[names[0]]}"] if mute else []


def _within(case: Case, scope: Scope) -> bool:
    if scope.group is not None and (case.owner is None or case.owner.group != scope.group):
        return False
    touched = case.known is not None and any(topic in scope.topics for topic, _ in case.known.places)
    return not scope.topics or bool(case.holds) or touched


def _diagnosed(told: Transactions, held_back: list[Place], patience: Patience) -> list[Case]:
    """The leaders first, then the coordinators, then the leaders again for what would be hanging."""
    held = told.held(held_back) if held_back else []
    known = {one.transactional_id: one for one in told.going_on()}
    known |= {one.transactional_id: one for one in told.of_producers(one.producer_id for one in held)}
    cases = diagnose(held, known.values(), patience, int(time.time() * 1000))
    return confirmed(cases, told.held(held_back) if held_back else [])


def end(connection: Connection, case: Case, deadline: Deadline) -> bool:
    """
    End one transaction, and return once no partition is held back by it any more.

    The brokers are asked again first: False when it has ended by itself, or its owner has begun another since; nothing
    is ended then. Between that answer and the fence lie milliseconds.

    Raises:
        Refused: it could not be ended from here; the text has Kafka's own command.
        DeadlineExceeded: it was still open when time ran out.
    """
    with transactions(connection, deadline) as told:
        if ends_by_fence(case):
            name = str(case.transactional_id)
            now = next(iter(told.named([name])), None)
            if now is None or not same_transaction(case, now):
                return False
            ours = now.state == ONGOING
            if ours:  # one that is ending needs no fence, which would only strike its owner
                fence(connection, name, deadline)
        else:
            held = told.held(sorted({one.place for one in case.holds}))
            left = still_nobodys(case, held, told.of_producers([case.producer_id]))
            for one in left:
                _mark(told, one, connection)
            ours = bool(left)
        _await_end(told, case, deadline)
    return ours


def _mark(told: Transactions, held: Held, connection: Connection) -> None:
    try:
        told.write_abort_marker(held)
    except DeadlineExceeded:
        raise
    except BrewError as error:
        raise Refused(
            f"the abort marker was not taken ({error}); with the cluster's rights (ClusterAction, or Alter) run "
            f"`{own_command(connection.bootstrap, held)}`"
        ) from error


def _await_end(told: Transactions, case: Case, deadline: Deadline) -> None:
    ours = {(one.place, one.first_offset, one.producer_id) for one in case.holds}
    places = sorted({one.place for one in case.holds})
    while places:
        if not any((one.place, one.first_offset, one.producer_id) in ours for one in told.held(places)):
            return
        deadline.check("end of the transaction")
        threading.Event().wait(_LOOK_S)
