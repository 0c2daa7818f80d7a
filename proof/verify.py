"""Read input, output, dead letters and offset commits in step, up to their present ends, and feed the checker."""

from __future__ import annotations

import functools
import gc
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from brew.acl import COMMITS_READ, Denial, denial_in
from brew.cluster import OFFSETS_TOPIC, OffsetBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, Refused
from brew.journal import Entry, journal_entries
from brew.kafka import offsets, topics
from brew.kafka.clients import AdminClient, admin
from brew.kafka.cluster_admin import coordinator_partition
from brew.kafka.kafka_python import RawLogs, open_transactions, raw_logs
from brew.kafka.log_reader import HeadersAt, scan_rows, unreadable
from brew.kafka.raw_log import RawHeaders, offset_batches
from brew.load import load
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import LogOffsets
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts, Row
from proof.checking.journals import Acknowledged, check_fired, check_readers, check_secrets, check_stalls
from proof.checking.transactions import lacks_records
from proof.checking.transformed import Oracle
from proof.findings import Name, Report
from proof.log_summary import topic_offsets
from proof.oracle import Profiles

_CHUNK = 1024 * 1024
# Inputs are read this far ahead, so that an output's input has been read although partitions take turns.
_AHEAD = 50_000
_OFFSET_BATCHES, _SETTLE_S, _COMMITTED_S, _PAUSE_S = 200, 5.0, 10.0, 0.1


@dataclass(frozen=True, slots=True)
class PipelineUnderTest:
    """The pipeline to check: its input, its outputs and its group."""

    input: str
    output: str
    dead_letter: str
    group: str
    also_output: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output, *self.also_output)

    @property
    def written(self) -> tuple[str, ...]:
        return (*self.outputs, self.dead_letter)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All logs' offsets at one position of the group; ``offset_log``: that of its commits, None if it can't be read."""

    input: dict[int, LogOffsets]
    downstream: dict[str, dict[int, LogOffsets]]
    committed: dict[int, int | None]
    offset_log: tuple[int, LogOffsets] | None

    @property
    def gaps(self) -> list[str]:
        """The reasons why downstream records may not be visible."""
        gaps = []
        for topic, logs in self.downstream.items():
            for partition, log in sorted(logs.items()):
                place = f"{topic}[{partition}]"
                if log.first > 0:
                    advice = "verify earlier, or raise the topic's retention"
                    gaps.append(f"{place} begins at offset {log.first} because of retention; {advice}")
                if log.last_stable < log.end:
                    advice = "run the pipeline again, which ends its own transactions, or wait for the time-out"
                    gaps.append(f"{place} has an open transaction at offset {log.last_stable}; {advice}")
        return gaps


def snapshot(connection: Connection, claim: PipelineUnderTest, deadline: Deadline, *, settled: bool) -> Snapshot:
    """
    Read all offsets between two equal reads of the group's position; `Refused` if it moves, or is pending.

    ``settled``: a position that is still pending after some seconds will stay pending; use the one before it.
    """
    client = admin(connection)
    sizes = {n: topics.describe_one(client, n, deadline).partitions for n in (claim.input, *claim.written)}

    def logs(name: str) -> dict[int, LogOffsets]:
        return offsets.log_offsets(client, name, range(sizes[name]), deadline)

    patience = Deadline(_SETTLE_S)
    while True:
        before = _committed(connection, claim, range(sizes[claim.input]), settled=settled)
        source, downstream = logs(claim.input), {name: logs(name) for name in claim.written}
        found = Snapshot(source, downstream, before, _offset_log(client, claim.group, deadline))
        moved = before != _committed(connection, claim, range(sizes[claim.input]), settled=settled)
        # A commit's markers may reach the partitions shortly after the group's position is visible.
        pending = any(log.last_stable < log.end for some in downstream.values() for log in some.values())
        if not moved and (not pending or patience.expired()):
            return found
        if moved and patience.expired():
            moved_on = f"the position of group {claim.group!r} kept changing for {_SETTLE_S:g} s while it was read"
            raise Refused(f"{moved_on}; stop the pipeline, then verify again")
        time.sleep(min(_PAUSE_S, patience.remaining_s()))


def _offset_log(client: AdminClient, group: str, deadline: Deadline) -> tuple[int, LogOffsets] | None:
    """Return the group's partition of `__consumer_offsets`; None without the right to read it, or before any commit."""
    try:
        partition = coordinator_partition(group, topics.describe_one(client, OFFSETS_TOPIC, deadline).partitions)
        return partition, offsets.log_offsets(client, OFFSETS_TOPIC, [partition], deadline)[partition]
    except BrewError:
        return None


def _committed(
    connection: Connection, claim: PipelineUnderTest, partitions: range, *, settled: bool
) -> dict[int, int | None]:
    """Return the group's position as a `read_committed` reader sees it."""
    try:
        return _query_offsets(connection, claim, partitions, READ_COMMITTED)
    except DeadlineExceeded as error:
        try:
            before = _query_offsets(connection, claim, partitions, READ_UNCOMMITTED)
        except DeadlineExceeded:
            why = f"no broker answers as the coordinator of group {claim.group!r}"
            raise Refused(f"{why}; start those that hold its partition of {OFFSETS_TOPIC}") from error
        if settled:
            return before
        raise Refused(
            f"the committed offset of group {claim.group!r} is part of a transaction that has not ended; "
            "run the pipeline again, which ends it, or wait for its time-out"
        ) from error


def _query_offsets(
    connection: Connection, claim: PipelineUnderTest, partitions: range, isolation: str
) -> dict[int, int | None]:
    deadline = Deadline(_COMMITTED_S)
    committed = offsets.committed_by(connection, claim.group, claim.input, partitions, isolation, deadline)
    return {p: None if position is None else position.offset for p, position in committed.items()}


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
    # Read before the logs' ends: what a run and its readers write meanwhile may not be in these logs.
    lines = Counter[tuple[str, int]]()
    acknowledged = Acknowledged(_counted(_entries(asked), lines), claim.input, claim.group)
    logs = snapshot(connection, claim, deadline, settled=asked.settled)
    gc.disable()  # rows have no cycles, and searching for them takes a third of the time
    try:
        # After the snapshot, so that the profiles of all its outputs are below the ends read now.
        profiles = None if asked.profiles is None else _profiles(connection, asked.profiles, deadline)
        requests = Deadline(deadline.budget_s)  # not the rest of the first one: profiles are read without a limit
        compacted = functools.partial(_is_compacted, connection, claim.input, logs.input, deadline.budget_s)
        checker = Checker(_facts(claim, logs, asked, profiles, functools.cache(compacted)), acknowledged, oracle)
        unseen = _read(connection, claim, logs, checker, requests)
    finally:
        gc.enable()
    checker.finish()
    check_readers(_without_later(_entries(asked), lines), checker.layouts, checker.found, acknowledged)
    check_stalls(checker.endings.first_commit_ms, asked.bound_s, checker.found)
    for path in _files(asked):
        with path.open("rb") as file:
            chunks = iter(functools.partial(file.read, _CHUNK), b"")
            check_secrets(str(path), chunks, asked.canaries, checker.found)
    check_fired(asked.needed, {**checker.counts, **asked.fired}, checker.found)
    holders = []
    if Name.HANGING in checker.found.totals:
        holders = _holders(connection, claim, logs, Deadline(deadline.budget_s))
    notes, doubts = ([], []) if profiles is None else (profiles.notes, profiles.doubts)
    # A settled run needs its transactions checked, too: a check that could not be made is then a doubt.
    if asked.settled:
        return checker.report([*notes, *holders], [*doubts, *unseen])
    return checker.report([*notes, *unseen, *holders], doubts)


def _profiles(connection: Connection, topic: str, deadline: Deadline) -> Profiles:
    """Read the topic's visible profiles, including older ones that compaction has left."""
    logs = topic_offsets(admin(connection), topic, deadline)
    profiles = Profiles(topic, logs)
    ranges = {p: (log.first, log.last_stable) for p, log in logs.items()}
    for rows in scan_rows(connection, topic, ranges, READ_COMMITTED):
        profiles.take(rows)
    return profiles


def _facts(
    claim: PipelineUnderTest,
    logs: Snapshot,
    asked: VerifyOptions,
    profiles: Profiles | None,
    compacted: Callable[[], bool],
) -> BrokerFacts:
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
        compacted=compacted,
    )


def _is_compacted(connection: Connection, topic: str, logs: Mapping[int, LogOffsets], limit_s: float) -> bool:
    """Return whether compaction may remove records, or did so before the topic's present settings."""
    with suppress(BrewError):  # a reader need not have the right to read settings
        if "compact" in topics.cleanup_policy(admin(connection), topic, Deadline(limit_s)):
            return True
    with suppress(BrewError), raw_logs(connection, Deadline(limit_s)) as raw:
        for partition, log in logs.items():
            expected = log.first
            for batch, _ in raw.batches(topic, partition, log.first, log.end):
                if lacks_records(batch, expected):
                    return True
                expected = batch.last_offset + 1
    return False


def _read(
    connection: Connection, claim: PipelineUnderTest, logs: Snapshot, checker: Checker, deadline: Deadline
) -> list[str]:
    """Feed the checker; return notes on what could not be read."""
    with ExitStack() as stack:
        raw: RawLogs | None = None
        others: list[Feed] = []
        try:
            raw = stack.enter_context(raw_logs(connection, deadline))
        except BrewError as error:
            notes = [f"raw batches could not be read, so transactions were not checked: {error}"]
        else:
            others, notes = _offsets(raw, claim, logs, checker, connection.user)

        def downstream(topic: str, logs_of: dict[int, LogOffsets]) -> Feed:
            outputs = functools.partial(checker.output, topic=topic)
            take = outputs if topic in claim.outputs else checker.dead_letters
            leads = () if raw is None else (_raw_batches(raw, topic, logs_of, checker),)
            return _records(connection, topic, logs_of, take, *leads, headers_at=headers_at)

        headers_at = unreadable if raw is None else RawHeaders(raw)
        upstream = _records(connection, claim.input, logs.input, checker.input, ahead=_AHEAD, headers_at=headers_at)
        _read_in_step(checker, upstream, [downstream(*item) for item in logs.downstream.items()], others)
    return notes


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
    checker.offsets.begin(partition, log.first)
    return [_offset_commits(batches, log, checker)], []


def _read_in_step(checker: Checker, upstream: Feed, downstream: list[Feed], others: list[Feed]) -> None:
    """Feed the checker, always from the log with the smallest fraction read, so that few records wait."""
    feeds = [*others, *downstream, upstream]
    try:
        unread = {feed: next(feed) for feed in feeds}
        while unread:
            behind = min(unread, key=unread.__getitem__)
            if (fraction := next(behind, None)) is not None:
                unread[behind] = fraction
                continue
            del unread[behind]
            if behind is upstream:
                checker.input_ended()
            elif behind in downstream and unread.keys().isdisjoint(downstream):
                checker.downstream_ended()
    finally:
        for feed in feeds:
            feed.close()


Feed = Generator[float]
"""Passes one log to the checker step by step; yields the fraction passed so far, first before any step."""
Lead = Callable[[int, int], None]


def _records(
    connection: Connection,
    topic: str,
    logs: dict[int, LogOffsets],
    take: Callable[[Iterable[Row]], None],
    lead: Lead = lambda _partition, _offset: None,
    *,
    ahead: int = 0,
    headers_at: HeadersAt = unreadable,
) -> Feed:
    """Pass on a topic's visible records, so many ``ahead`` of others; ``lead`` is called with their last offsets."""
    ranges = {p: (log.first, log.last_stable) for p, log in logs.items()}
    total, done = max(1, sum(last - first for first, last in ranges.values())), dict.fromkeys(logs, 0)
    with closing(scan_rows(connection, topic, ranges, READ_COMMITTED, headers_at)) as batches:
        yield -ahead / total
        for rows in batches:
            reached = {row[0]: row[1] for row in rows}
            for partition, offset in reached.items():
                lead(partition, offset)
            take(rows)
            done |= {partition: offset + 1 - logs[partition].first for partition, offset in reached.items()}
            yield (sum(done.values()) - ahead) / total
    for partition, log in logs.items():
        lead(partition, log.end)


def _raw_batches(raw: RawLogs, topic: str, logs: dict[int, LogOffsets], checker: Checker) -> Lead:
    """Return a function that passes on a partition's raw batches, up to the one that contains an offset."""
    left = {p: (batch for batch, _ in raw.batches(topic, p, log.first, log.end)) for p, log in logs.items()}
    reached = {p: log.first - 1 for p, log in logs.items()}

    def lead(partition: int, offset: int) -> None:
        batches = []
        while reached[partition] < offset and (batch := next(left[partition], None)) is not None:
            batches.append(batch)
            reached[partition] = batch.last_offset
        if batches:
            checker.batches(topic, partition, batches)

    return lead


def _offset_commits(batches: Iterator[OffsetBatch], log: LogOffsets, checker: Checker) -> Feed:
    yield 0.0
    while some := list(islice(batches, _OFFSET_BATCHES)):
        checker.offsets.take(some)
        if len(some) < _OFFSET_BATCHES:
            return
        yield (some[-1].raw.last_offset + 1 - log.first) / max(1, log.end - log.first)


def _holders(connection: Connection, claim: PipelineUnderTest, logs: Snapshot, deadline: Deadline) -> list[str]:
    """Describe the transactions that did not end, as the coordinator reports them."""
    holders = []
    for topic, by_partition in {claim.input: logs.input, **logs.downstream}.items():
        if blocked := [p for p, log in by_partition.items() if log.last_stable < log.end]:
            try:
                transactions = open_transactions(connection, topic, blocked, deadline)
            except BrewError as error:
                holders.append(f"{topic}: its open transactions could not be read: {error}")
            else:
                holders += [f"{topic}: {transaction}" for transaction in transactions]
    return holders


def _entries(asked: VerifyOptions) -> Iterator[Entry]:
    return iter(()) if asked.journals is None else journal_entries(asked.journals, "--journals")


def _counted(entries: Iterable[Entry], lines: Counter[tuple[str, int]]) -> Iterator[Entry]:
    """Yield all entries, and count them by process."""
    for entry in entries:
        lines[entry.who, entry.pid] += 1
        yield entry


def _without_later(entries: Iterable[Entry], lines: Counter[tuple[str, int]]) -> Iterator[Entry]:
    """Yield as many entries of each process as were counted."""
    for entry in entries:
        lines[entry.who, entry.pid] -= 1
        if lines[entry.who, entry.pid] >= 0:
            yield entry


def _files(asked: VerifyOptions) -> Iterator[Path]:
    if not asked.canaries:
        return
    for place in (*asked.artefacts, *((asked.journals,) if asked.journals else ())):
        yield from sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
