"""`doctor`: find hanging and lingering transactions, show them, and abort them."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from brew.acl import advice as denied
from brew.cli import as_called, bootstrap_option, checked_group, flag, plain_option, printable, repeatable, typed_option
from brew.cluster import ONGOING, TRANSACTIONS_TOPIC, PartitionTransaction, Place, ReadBounds, Unknown
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused, UsageError
from brew.kafka.clients import admin
from brew.kafka.cluster import broker_settings
from brew.kafka.transactions_admin import (
    TransactionsAdmin,
    all_partitions,
    bounds,
    fence,
    groups,
    open_transactions_admin,
)
from brew.names import ExitCode, quantity
from operations import hanging_transactions as hanging
from operations.hanging_transactions import LONGEST_MS, UNHEALTHY, Diagnosis, Kind, aborted_by_fence
from operations.options import advice, advised, checked_topics, connected, json_option, print_json, show

_LOOK_S = 0.05
_LONGEST = "transaction.max.timeout.ms"
_NAMED, _PANEL_EDGES, _ENDING_END_S, _ASK_S = 5, 6, 30.0, 60.0
_OLDER_THAN_S = 60.0
ENDED = "aborted"
_ALREADY_ENDED = "not aborted: it has ended by itself, or its owner has begun another one"
_WITHIN_ITS_TIMEOUT = (
    "not aborted: it is within its own timeout; add --older-than and --topic or --group to abort it, too"
)
_ASSUMED = (
    f"not aborted: whether it is hanging rests on an assumed {_LONGEST}; run as a user with DescribeConfigs on the "
    "cluster, or name it with --transaction to abort it, too"
)
_STYLES = {Kind.HANGING: "bold red", Kind.LINGERING: "yellow", Kind.UNKNOWN: "cyan", Kind.OPEN: "green"}


@dataclass(frozen=True)
class Scope:
    """What to examine; ``group``: a pipeline's, or a sink's name; ``most_groups``: how many are asked for offsets."""

    topics: Collection[str] = ()
    group: str | None = None
    older_than_s: float = 60.0
    most_groups: int = 500


@dataclass(frozen=True)
class TransactionsSnapshot:
    """
    Open transactions, read bounds, groups' positions.

    ``assumed``: the longest time-out could not be read; ``unowned``: the number of hanging transactions that the
    scope's group leaves out, though their owner is not known.
    """

    cases: tuple[Diagnosis, ...]
    bounds: Mapping[Place, ReadBounds]
    groups: Mapping[str, Mapping[Place, int]]
    unavailable: tuple[str, ...]
    unread: int = 0
    assumed: bool = False
    unowned: int = 0


def examine(connection: Connection, scope: Scope, deadline: Deadline) -> TransactionsSnapshot:
    """Read the open transactions in ``scope`` from partitions and coordinators; `Unsupported` before Kafka 3.0."""
    client = admin(connection)
    places_led, leaderless = all_partitions(client, scope.topics, deadline)
    ends, unread = bounds(client, places_led, deadline)
    unread |= leaderless
    held_back = sorted(place for place, bound in ends.items() if bound.held)
    longest, assumed = _longest_timeout(broker_settings(client, deadline))
    if any(topic == TRANSACTIONS_TOPIC for topic, _ in leaderless):
        longest = sys.maxsize  # what no coordinator reports may be in that partition, and then a marker would tear it
    groups_there: Mapping[str, Mapping[Place, int]] = {}
    with open_transactions_admin(connection, deadline) as transactions:
        found, refused = _diagnosed(transactions, held_back, scope.older_than_s, longest)
        for place, why in refused.items():
            lacks = denied(why, connection.user, {"topic": place[0]}, connection.source)
            unread[place] = f"{why}; {lacks}" if lacks else why
        unavailable = [f"{topic}[{p}]: {reason}" for (topic, p), reason in sorted(unread.items())]
        found = [case for case in found if _touches(case, scope.topics)]
        cases = [case for case in found if scope.group is None or _belongs(case, scope.group)]
        nobodys = [case for case in found if case.known is None and case.kind is Kind.HANGING]
        unowned = 0 if scope.group is None else len(nobodys)
        if any(case.known is None for case in cases):  # only their kind depends on it
            unavailable += assumed
        places = {held.place for case in cases for held in case.holds}
        places |= {case.position[1] for case in cases if case.position is not None}
        if places:
            try:
                names, left_out = _groups_to_ask(groups(client, deadline), cases, scope.most_groups)
                groups_there, unanswered = transactions.readers(names, sorted(places))
                unavailable += [*left_out, *_unanswered_coordinators(unanswered)]
            except BrewError as error:
                unavailable.append(str(error))
    return TransactionsSnapshot(
        tuple(cases), ends, groups_there, tuple(unavailable), len(unread), bool(assumed), unowned
    )


def _longest_timeout(settings: Mapping[str, str] | Unknown) -> tuple[int, list[str]]:
    """Return the brokers' maximum transaction timeout in ms, and a note if it had to be assumed."""
    if not isinstance(settings, Unknown) and _LONGEST in settings:
        return int(settings[_LONGEST]), []
    reason = settings.reason if isinstance(settings, Unknown) else "not among the broker's settings"
    assumed = f"Kafka's default of {LONGEST_MS / 1000:g} s is assumed to tell whether a transaction is hanging"
    return LONGEST_MS, [f"{_LONGEST} of the brokers: {reason}; {assumed}"]


def _groups_to_ask(names: Collection[str], cases: Iterable[Diagnosis], most_groups: int) -> tuple[list[str], list[str]]:
    """Return the groups to ask for offsets, those whose positions an abort moves first, and a note on the others."""
    owners = {case.position[0] for case in cases if case.position is not None}
    ordered = sorted(names, key=lambda name: (name not in owners, name))
    left = len(ordered) - most_groups
    of = f"offsets of {left} of {len(ordered)} groups, which may wait, too"
    return ordered[:most_groups], [f"{of}; set --groups to {len(ordered)} to read all"] if left > 0 else []


def _unanswered_coordinators(unanswered: Mapping[str, str]) -> list[str]:
    names = [*sorted(unanswered)[:_NAMED], *(["others"] if len(unanswered) > _NAMED else [])]
    return [f"offsets of {len(unanswered)} groups ({', '.join(names)}): {unanswered[names[0]]}"] if unanswered else []


def _belongs(case: Diagnosis, group: str) -> bool:
    return case.position is not None and case.position[0] == group


def _touches(case: Diagnosis, topics: Collection[str]) -> bool:
    touched = case.known is not None and any(topic in topics for topic, _ in case.known.places)
    return not topics or bool(case.holds) or touched


def _diagnosed(
    transactions: TransactionsAdmin, held_back: list[Place], older_than_s: float, longest_ms: int
) -> tuple[list[Diagnosis], dict[Place, str]]:
    """Ask leaders, coordinators, and leaders again about hanging ones; also return the partitions that were refused."""
    held, refused = _held(transactions, held_back)
    known = {transaction.transactional_id: transaction for transaction in transactions.ongoing()}
    by_producer = transactions.of_producers(transaction.producer_id for transaction in held)
    known |= {transaction.transactional_id: transaction for transaction in by_producer}
    cases = hanging.diagnose(held, known.values(), older_than_s, int(time.time() * 1000), longest_ms)
    asked = [place for place in held_back if place not in refused]
    return hanging.confirm_hanging(cases, transactions.held(asked) if asked else []), refused


def _held(transactions: TransactionsAdmin, places: list[Place]) -> tuple[list[PartitionTransaction], dict[Place, str]]:
    """Ask the leaders; a partition that they refuse, as for a missing right, hides no other's transactions."""
    try:
        return (transactions.held(places) if places else []), {}
    except KafkaFailure as error:
        if len(places) == 1:
            return [], {places[0]: str(error)}
    middle = len(places) // 2
    (first, why), (second, also) = (_held(transactions, half) for half in (places[:middle], places[middle:]))
    return first + second, why | also


def abort_transaction(connection: Connection, case: Diagnosis, deadline: Deadline) -> bool:
    """
    Abort one transaction, and return once it holds back no partition; False if it, or another of its owner, goes on.

    Raises:
        Refused: the brokers refused the marker; the message has Kafka's own command.
        DeadlineExceeded: the transaction was still open at the deadline.
    """
    with open_transactions_admin(connection, deadline) as transactions:
        if aborted_by_fence(case):
            name = str(case.transactional_id)
            now = next(iter(transactions.named([name])), None)
            if now is None or not hanging.same_transaction(case, now):
                return False
            ours = now.state == ONGOING
            if ours:  # one that is already ending needs no fence, which would only hit its owner
                fence(connection, name, deadline)
        else:
            held = transactions.held(sorted({hold.place for hold in case.holds}))
            left = hanging.still_hanging(case, held, transactions.of_producers([case.producer_id]))
            for hold in left:
                _mark(transactions, hold, connection)
            ours = bool(left)
        _await_end(transactions, case, deadline)
    return ours


def _mark(transactions: TransactionsAdmin, held: PartitionTransaction, connection: Connection) -> None:
    try:
        transactions.write_abort_marker(held)
    except DeadlineExceeded:
        raise
    except BrewError as error:
        raise Refused(
            f"the abort marker was not written ({error}); as a user with ClusterAction or Alter on the cluster, run "
            f"`{hanging.kafka_abort_command(connection.bootstrap, held)}`"
        ) from error


def _await_end(transactions: TransactionsAdmin, case: Diagnosis, deadline: Deadline) -> None:
    ours = {(hold.place, hold.first_offset, hold.producer_id) for hold in case.holds}
    places = sorted({hold.place for hold in case.holds})
    while places:
        held = transactions.held(places)
        if not any((hold.place, hold.first_offset, hold.producer_id) in ours for hold in held):
            return
        deadline.check("end of the transaction")
        threading.Event().wait(_LOOK_S)


def row(case: Diagnosis, snapshot: TransactionsSnapshot, bootstrap: str) -> dict[str, Any]:
    known, owner, sink, fenced = case.known, case.owner, case.sink, aborted_by_fence(case)
    pipeline = owner and {"group": owner.group, "input": owner.topic, "partition": owner.partition}
    same = ("why", "transactional_id", "producer_id", "producer_epoch")
    return {
        "kind": case.kind.value,
        **{name: getattr(case, name) for name in same},
        "state": None if known is None else known.state,
        "age_s": None if case.age_s is None else round(case.age_s, 1),
        "timeout_s": None if known is None else known.timeout_ms / 1000,
        "pipeline": pipeline,
        "sink": sink and {"name": sink.name, "position_topic": sink.topic},
        "holds": hanging.blocked_partitions(case, snapshot.bounds, snapshot.groups),
        "read_again": hanging.reprocessed_after_abort(case, snapshot.groups),
        "ends_by": "fence" if fenced else "marker",
        "commands": [] if fenced else [hanging.kafka_abort_command(bootstrap, hold) for hold in case.holds],
    }


def render(snapshot: TransactionsSnapshot, bootstrap: str) -> list[RenderableType]:
    notes = (Text(f"unavailable: {printable(note)}", "cyan") for note in snapshot.unavailable)
    cases = (_panel(case, snapshot, bootstrap) for case in snapshot.cases)
    return [*cases, *notes] or [Text("no open transaction found")]


def _panel(case: Diagnosis, snapshot: TransactionsSnapshot, bootstrap: str) -> Panel:
    """Draw a transaction; ids and groups may have any characters, so those that control the terminal are escaped."""
    facts, title = row(case, snapshot, bootstrap), f"{case.kind.value}: {printable(case.names[0])}"
    age = "" if case.age_s is None else f", open for {case.age_s:.0f} s (timeout {facts['timeout_s']:g} s)"
    lines = [Text(case.why), Text(f"producer {case.producer_id}, epoch {case.producer_epoch}{age}")]
    if case.owner is not None:
        lines.append(Text(f"pipeline of group {case.owner.group}, input {case.owner.topic}[{case.owner.partition}]"))
    if case.sink is not None:
        said = "its query, if it runs or is restarted, aborts it at the next attempt"
        lines.append(Text(f"sink {case.sink.name}, position in {case.sink.topic}: {said}"))
    for fact in facts["holds"]:
        place = f"{fact['topic']}[{fact['partition']}] from offset {fact['from_offset']}"
        groups = [f"group {name} waits" for name in fact["groups_at_it"]]
        groups += [f"group {name} has not reached it" for name in fact["groups_on_the_way"]]
        waiting = "; ".join(groups) or "no group has a committed offset there"
        lines.append(Text(f"holds back {place}: {quantity(fact['offsets_waiting'], 'offset', ',')}; {waiting}"))
    if not facts["holds"]:
        lines.append(Text("holds back no partition yet"))
    if case.kind is Kind.HANGING:
        lines += [Text(f"Kafka's own command: {command}") for command in facts["commands"]]
    lines.append(Text(f"after an abort: {facts['read_again']}"))
    if cell_len(title) > Console().width - _PANEL_EDGES:  # the title is cut off
        lines.insert(0, Text(title))
    whole = Group(*(Text(printable(line.plain)) for line in lines))
    return Panel(whole, title=Text(title, _STYLES[case.kind]), title_align="left")


@dataclass
class AbortReport:
    """Outcome of each chosen transaction; ``over``: ended by itself; ``left``: not confirmed, or within its timeout."""

    ended: list[Diagnosis] = field(default_factory=list)
    over: list[Diagnosis] = field(default_factory=list)
    left: list[Diagnosis] = field(default_factory=list)
    failed: list[tuple[Diagnosis, str]] = field(default_factory=list)

    def unhealthy(self, cases: Iterable[Diagnosis]) -> list[Diagnosis]:
        return [case for case in cases if case.kind in UNHEALTHY and case not in self.ended and case not in self.over]

    def document(self) -> dict[str, Any]:
        named = {"ended": self.ended, "over": self.over, "left": self.left}
        failed = [{"transaction": case.names[0], "error": error} for case, error in self.failed]
        return {what: [case.names[0] for case in cases] for what, cases in named.items()} | {"failed": failed}


def abort_transactions(
    connection: Connection,
    picked: Iterable[Diagnosis],
    agreed: Callable[[Diagnosis], bool],
    tell: Callable[[Diagnosis, str], None],
) -> AbortReport:
    """Abort what ``agreed`` confirms, and pass each outcome to ``tell`` at once; a failure does not stop the others."""
    report = AbortReport()
    for case in picked:
        if not agreed(case):
            report.left.append(case)
            continue
        try:
            ended = abort_transaction(connection, case, Deadline(_ENDING_END_S))
        except BrewError as error:
            no = denied(str(error), connection.user, {}, connection.source)
            why = f"{error}; {no}" if no else advice(error)
            report.failed.append((case, why))
            tell(case, f"not aborted: {why}")
        else:
            (report.ended if ended else report.over).append(case)
            tell(case, ENDED if ended else _ALREADY_ENDED)
    return report


@click.command("doctor")
@bootstrap_option
@repeatable("--topic topics", "Check only this topic; repeatable.  [default: all]", callback=checked_topics)
@plain_option(
    "--group", "Check only this pipeline's group, or the sink of this name.  [default: all]", callback=checked_group
)
@plain_option(
    "--older-than",
    "Age from which an open transaction counts as lingering, even within its own timeout.  [default: 60]",
    type=click.FloatRange(0),
)
@typed_option("--groups", click.IntRange(1), 500, "Maximum number of groups whose committed offsets are read.")
@flag("--abort", "Abort the transactions of --transaction, or --all.")
@repeatable(
    "--transaction names",
    "Transaction to abort: its transactional id, or TOPIC/PARTITION/PRODUCER-ID; repeatable.",
    "ID",
)
@flag(
    "--all everything",
    "Abort all hanging or past their timeout; with --older-than and --topic or --group, all lingering ones.",
)
@flag("--yes", "Do not ask for confirmation.")
@json_option
@advised()
def doctor(bootstrap: str, *, names: tuple[str, ...], as_json: bool, **option: Any) -> ExitCode:
    """
    Find hanging and lingering transactions, with their owners and the groups that wait; abort them with --abort.

    Hanging: open in a partition, but unknown to its coordinator; no timeout ends it. Lingering: open for longer than
    its timeout or --older-than. Without --abort, it only reads. With --abort, it checks each transaction again before
    it aborts it, and skips one that has ended, or whose owner has begun another one.

    Examples:
      python -m pipeline doctor
      python -m pipeline doctor --older-than 10 --topic brew.orders.enriched --json
      python -m pipeline doctor --abort --transaction brew-enricher:brew.orders.v1:2
      python -m pipeline doctor --abort --all --yes
      python -m pipeline doctor --abort --all --group brew-enricher --older-than 10

    Exit codes: 0 no hanging or lingering transaction is left, 1 some are, 3 refused, brokers unreachable, an abort
    failed, or inconclusive (a partition could not be read, no coordinator reports a transaction, or --group leaves out
    a hanging one without a known owner), 64 wrong usage.
    """
    _check_usage(names, as_json=as_json, **option)
    older_than_s = _OLDER_THAN_S if option["older_than"] is None else option["older_than"]
    scope = Scope(option["topics"], option["group"], older_than_s, option["groups"])
    connection = connected(bootstrap)
    snapshot = examine(connection, scope, Deadline(_ASK_S))
    if not as_json:
        show(*render(snapshot, bootstrap))
    report = AbortReport()
    if option["abort"]:
        report = _abort_selected(connection, snapshot, names, as_json=as_json, **option)
    unhealthy, doubts = report.unhealthy(snapshot.cases), _doubts(snapshot, [*report.ended, *report.over])
    if as_json:
        summary = {"sick": len(unhealthy), **report.document(), "doubts": doubts, "unavailable": snapshot.unavailable}
        print_json(summary | {"transactions": [row(case, snapshot, bootstrap) for case in snapshot.cases]})
    elif not option["abort"] or (doubts and not unhealthy):
        _advise(unhealthy, doubts, option["group"])
    if report.failed:
        return ExitCode.REFUSED
    return ExitCode.VIOLATION if unhealthy else ExitCode.REFUSED if doubts else ExitCode.DONE


def _check_usage(
    names: tuple[str, ...], *, abort: bool, everything: bool, yes: bool, as_json: bool, **_others: Any
) -> None:
    if abort and not names and not everything:
        raise UsageError("--abort needs to know which transactions; add --transaction ID for each, or --all")
    if (names or everything or yes) and not abort:
        raise UsageError("--transaction, --all and --yes need --abort; add --abort, or leave them out")
    if abort and not yes and (as_json or not sys.stdin.isatty()):
        raise UsageError(
            "--abort asks for confirmation, which needs a terminal and no --json; add --yes to abort without asking"
        )


def _abort_selected(
    connection: Connection,
    snapshot: TransactionsSnapshot,
    names: tuple[str, ...],
    *,
    yes: bool,
    everything: bool,
    as_json: bool,
    **option: Any,
) -> AbortReport:
    known = {name for case in snapshot.cases for name in case.names}
    if unknown := [name for name in names if name not in known]:
        remedy = "there is no such open transaction; run `brew doctor` to list them"
        raise Refused(f"--transaction is {unknown[0]!r}: {remedy}")
    young = option["older_than"] is not None and bool(option["topics"] or option["group"])
    picked = hanging.select_to_abort(snapshot.cases, names, everything=everything, young=young)

    def note(case: Diagnosis) -> str:
        return hanging.reprocessed_after_abort(case, snapshot.groups)

    def agreed(case: Diagnosis) -> bool:
        return yes or click.confirm(printable(f"abort {case.names[0]}? {note(case)}"))

    def print_outcome(case: Diagnosis, outcome: str) -> None:
        if not as_json:
            show(Text(printable(f"{case.names[0]}: {outcome}" + (f"; {note(case)}" if outcome == ENDED else ""))))

    # The marker would tear a transaction that may still last: its coordinator can't be asked.
    unsure = [one for one in picked if snapshot.assumed and one.known is None and set(names).isdisjoint(one.names)]
    report = abort_transactions(connection, [one for one in picked if one not in unsure], agreed, print_outcome)
    for case in unsure:
        print_outcome(case, _ASSUMED)
        report.left.append(case)
    for case in snapshot.cases:
        if everything and case.kind is Kind.LINGERING and case not in picked:
            print_outcome(case, _WITHIN_ITS_TIMEOUT)
            report.left.append(case)
    return report


def _doubts(snapshot: TransactionsSnapshot, settled: Collection[Diagnosis] = ()) -> list[str]:
    """Return what may hide a hanging or lingering transaction; ``settled``: cases that have ended since."""
    unknown = sum(case.kind is Kind.UNKNOWN and case not in settled for case in snapshot.cases)
    doubts = (
        (unknown, "transaction", "that no coordinator reports"),
        (snapshot.unowned, "hanging transaction", "without a known owner (run without --group and GROUP_ID to see it)"),
        (snapshot.unread, "partition", "that could not be read"),
    )
    return [f"{quantity(count, what)} {why}" for count, what, why in doubts if count]


def _advise(unhealthy: list[Diagnosis], doubts: list[str], group: str | None = None) -> None:
    if not unhealthy:
        of_group = "" if group is None else f" of group {printable(group)} (--group, GROUP_ID: others are left out)"
        remedy = "run it again, as a user that may describe all topics and transactional ids"
        known = f" known, but {' and '.join(doubts)}; {remedy}" if doubts else ""
        click.echo(f"no hanging or lingering transaction{of_group}{known}")
        return
    first = shlex.quote(unhealthy[0].names[0])
    alone = f"`brew doctor --abort --transaction {first}`; an owner that still runs would be fenced"
    text = f"{quantity(len(unhealthy), 'transaction')} to abort. If the owner is gone, run {alone}. "
    text += "`brew doctor --abort --all` aborts all that are hanging or past their timeout"
    show(Text(printable(as_called(text))))
