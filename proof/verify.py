"""Read input, output, dead letters and the group's offset commits in step, and pass them to the checker."""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from brew.acl import COMMITS_READ, Denial, denial_in
from brew.cluster import OFFSETS_TOPIC
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError
from brew.journal import Entry, entries
from brew.kafka.clients import admin
from brew.kafka.kafka_python import RawLogs, open_transactions, raw_logs
from brew.kafka.log_reader import scan_rows
from brew.kafka.raw_log import offset_batches
from brew.load import load
from brew.names import READ_COMMITTED
from brew.offsets import LogOffsets
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts
from proof.checking.journals import Acknowledged, check_fired, check_readers, check_secrets, check_stalls
from proof.checking.transformed import Oracle
from proof.findings import Name, Report
from proof.log_feeds import Batches, Feed, Offsets, PipelineUnderTest, Records, Snapshot, snapshot
from proof.log_summary import topic_offsets
from proof.oracle import Profiles

_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """
    What to check beyond the logs.

    ``settled``: nothing is running, and every transaction has had time to end. ``healed_at``: when faults ended, in
    seconds since the epoch; a commit must follow each within ``bound_s`` seconds. ``needed``: the counts without which
    the run proves nothing; ``fired``: the counts that the caller observed. ``canaries``: secrets that must not appear
    in any file of ``artefacts`` or ``journals``. ``profiles``: the topic with the profiles that tiers came from.
    ``transform``: the name of the function that made the outputs, instead of the enrichment of orders; ``py_files``:
    where its module may be.
    """

    settled: bool = False
    strict: bool = True
    journals: Path | None = None
    healed_at: tuple[float, ...] = ()
    bound_s: float | None = None
    needed: Mapping[str, int] = field(default_factory=dict)
    fired: Mapping[str, int] = field(default_factory=dict)
    canaries: tuple[str, ...] = ()
    artefacts: tuple[Path, ...] = ()
    profiles: str | None = None
    transform: str | None = None
    py_files: tuple[str, ...] = ()


def verify(connection: Connection, claim: PipelineUnderTest, deadline: Deadline, asked: VerifyOptions) -> Report:
    """Check all that is in the topics now; raise `Refused` if a topic is missing or the position is unknown."""
    oracle = None
    if asked.transform is not None:
        loaded = load(asked.transform, asked.py_files)
        oracle = Oracle(loaded.name, loaded.target)
    logs = snapshot(connection, claim, deadline, settled=asked.settled)
    acknowledged = Acknowledged(_entries(asked), claim.input, claim.group)
    with _uncollected():
        # After the snapshot, so that the profiles of all its outputs are below the ends read now.
        profiles = None if asked.profiles is None else _profiles(connection, asked.profiles, deadline)
        checker = Checker(_facts(claim, logs, asked, profiles), acknowledged, oracle)
        unseen = _read(connection, claim, logs, checker, deadline)
    checker.finish()
    check_readers(_entries(asked), checker.layouts, checker.found, acknowledged)
    check_stalls(checker.endings.first_commit_ms, asked.bound_s, checker.found)
    for path in _files(asked):
        check_secrets(str(path), _chunks(path), asked.canaries, checker.found)
    check_fired(asked.needed, {**checker.counts, **asked.fired}, checker.found)
    holders = _holders(connection, claim, logs, deadline) if Name.HANGING in checker.found.totals else []
    notes, doubts = ([], []) if profiles is None else (profiles.notes, profiles.doubts)
    # A settled run needs its transactions checked, too: a check that could not be made is then a doubt.
    if asked.settled:
        return checker.report([*notes, *holders], [*doubts, *unseen])
    return checker.report([*notes, *unseen, *holders], doubts)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection: rows have no cycles, and searching for them takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _profiles(connection: Connection, topic: str, deadline: Deadline) -> Profiles:
    """Read the topic's visible profiles, including older ones that compaction has left."""
    logs = topic_offsets(admin(connection), topic, deadline)
    profiles = Profiles(topic, logs)
    ranges = {p: (log.first, log.last_stable) for p, log in logs.items()}
    for rows in scan_rows(connection, topic, ranges, READ_COMMITTED):
        profiles.take(rows)
    return profiles


def _facts(claim: PipelineUnderTest, logs: Snapshot, asked: VerifyOptions, profiles: Profiles | None) -> BrokerFacts:
    return BrokerFacts(
        *(claim.input, claim.output, claim.dead_letter, logs.input, logs.committed),
        output_partitions=len(logs.downstream[claim.output]),
        doubts=tuple(logs.gaps),
        downstream=logs.downstream,
        settled=asked.settled,
        strict=asked.strict,
        journals=asked.journals is not None,
        healed_ms=tuple(int(seconds * 1000) for seconds in asked.healed_at),
        profiles=profiles,
        also_output=claim.also_output,
    )


def _read(
    connection: Connection, claim: PipelineUnderTest, logs: Snapshot, checker: Checker, deadline: Deadline
) -> list[str]:
    """Feed the checker; return notes on what could not be read."""
    with ExitStack() as stack:
        raw, notes = _raw(connection, stack, deadline)
        others: list[Feed] = []
        if raw is not None:
            others, more = _offsets(raw, claim, logs, checker, connection.user)
            notes += more

        def downstream(topic: str, logs_of: dict[int, LogOffsets]) -> Records:
            lead = None if raw is None else Batches(raw, topic, logs_of, checker.batches).lead
            outputs = functools.partial(checker.output, topic=topic)
            take = outputs if topic in claim.outputs else checker.dead_letters
            return Records(connection, topic, logs_of, take, lead)

        upstream = Records(connection, claim.input, logs.input, checker.input, ahead=True)
        read_in_step(checker, upstream, [downstream(*item) for item in logs.downstream.items()], others)
    return notes


def _raw(connection: Connection, stack: ExitStack, deadline: Deadline) -> tuple[RawLogs | None, list[str]]:
    try:
        return stack.enter_context(raw_logs(connection, deadline)), []
    except BrewError as error:
        return None, [f"raw batches could not be read, so transactions were not checked: {error}"]


def _offsets(
    raw: RawLogs, claim: PipelineUnderTest, logs: Snapshot, checker: Checker, user: str
) -> tuple[list[Feed], list[str]]:
    """Return a feed of the group's offset commits if a batch of them can be read, else a note."""
    unreadable = "the group's offset commits could not be read, so regressions and gaps were not checked: "
    lacks = f"{user} lacks {COMMITS_READ} (`{COMMITS_READ.command(user)}`)"
    if logs.offset_log is None:
        return [], [f"{unreadable}no group has committed yet, or {lacks}"]
    partition, log = logs.offset_log
    try:
        next(raw.batches(OFFSETS_TOPIC, partition, log.first, min(log.end, log.first + 1)), None)
    except BrewError as error:
        return [], [f"{unreadable}{error}{f'; {lacks}' if denial_in(str(error)) is Denial.RIGHT else ''}"]
    batches = offset_batches(raw, claim.group, claim.input, partition, log.first, log.end)
    checker.offsets.begin(partition)
    return [Offsets(batches, log, checker.offsets.take)], []


def read_in_step(checker: Checker, upstream: Feed, downstream: list[Feed], others: list[Feed]) -> None:
    """Feed the checker, always from the log with the smallest fraction read, so that few records wait."""
    feeds = [*others, *downstream, upstream]
    try:
        while unread := [feed for feed in feeds if not feed.ended]:
            behind = min(unread, key=lambda feed: feed.fraction)
            behind.step()
            if behind.ended and behind is upstream:
                checker.input_ended()
            elif behind.ended and behind in downstream and all(feed.ended for feed in downstream):
                checker.downstream_ended()
    finally:
        for feed in feeds:
            feed.close()


def _holders(connection: Connection, claim: PipelineUnderTest, logs: Snapshot, deadline: Deadline) -> list[str]:
    """Describe the transactions that did not end, as the coordinator reports them."""
    holders = []
    for topic, by_partition in {claim.input: logs.input, **logs.downstream}.items():
        blocked = [p for p, log in by_partition.items() if log.last_stable < log.end]
        if blocked:
            transactions = open_transactions(connection, topic, blocked, deadline)
            holders += [f"{topic}: {transaction}" for transaction in transactions]
    return holders


def _entries(asked: VerifyOptions) -> Iterator[Entry]:
    return iter(()) if asked.journals is None else entries(asked.journals)


def _files(asked: VerifyOptions) -> Iterator[Path]:
    if not asked.canaries:
        return
    for place in (*asked.artefacts, *((asked.journals,) if asked.journals else ())):
        yield from sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]


def _chunks(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
