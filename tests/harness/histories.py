"""Histories of a pipeline as its logs show them: a plan of transactions, and the resulting logs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.journal import Entry, Phase, Run, Step, runs
from brew.offsets import LogOffsets, SourcePosition
from brew.orders import DISCOUNTS, tier_of_key
from brew.records import ERROR_REASON
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts, InputPartition, Record, SeenSources
from proof.checking.journals import Acknowledged, check_fired, check_readers, check_secrets, check_stalls
from proof.findings import Report
from proof.oracle import key_hash
from proof.seed import orders, spoiled


def read_by(dice: random.Random, pid: int, visible: dict[str, list[Record]], *, final: bool = False) -> list[Entry]:
    """Return a reader's journal: each partition in pieces; one that is not final may have stopped early."""
    entries = []
    for topic, rows in visible.items():
        for partition in sorted({row.partition for row in rows}):
            rows_left = [row for row in rows if row.partition == partition]
            rows_left = rows_left if final else rows_left[: dice.randint(len(rows_left) // 2, len(rows_left))]
            while rows_left:
                piece, rows_left = rows_left[:6], rows_left[6:]
                entries.append(read_line(pid, topic, partition, [_place_of(row) for row in piece]))
    if final:
        entries.append(Entry(2.0, "reader", pid, Step.READ, Phase.DONE, {"final": True}))
    return entries


def read_line(pid: int, topic: str, partition: int, places: list[tuple[int, int, int]]) -> Entry:
    folded: list[Run] = runs(places)
    fields = {"topic": topic, "partition": partition, "isolation": "read_committed", "runs": folded}
    return Entry(1.0, "reader", pid, Step.READ, Phase.DONE, fields)


def _place_of(row: Record) -> tuple[int, int, int]:
    source = SourcePosition.of(row.headers)
    return (row.offset, -1, -1) if source is None else (row.offset, source.partition, source.offset)


def batch(
    base: int, records: int = 1, key: tuple[int, int] = (7, 0), marker: str | None = None, at_ms: int = 0
) -> RawBatch:
    """Return a batch of a transaction, or with ``marker`` its end; the key (-1, -1) is of no transaction."""
    sequence = 0 if marker is None else -1
    return RawBatch(base, base + records - 1, records, *key, sequence, key[0] >= 0, marker is not None, marker, at_ms)


def waiting_in(inputs: InputPartition) -> int:
    """Return the number of records that wait for their counterpart."""
    return len(inputs.queue) + len(inputs.passed) + len(inputs.early)


def waiting(checker: Checker) -> int:
    return sum(map(waiting_in, checker._lanes.values()))


def gap_bytes(inputs: InputPartition) -> int:
    return sum(ends.itemsize * len(ends) for ends in (inputs._gaps._starts, inputs._gaps._ends))


def page_bytes(seen: SeenSources) -> int:
    return 512 * len(seen._pages)


def held_bytes(checker: Checker) -> int:
    """Return the memory that is never released: 16 bytes per gap in the input, and a bit per output without one."""
    return sum(gap_bytes(inputs) + page_bytes(inputs.below_start) for inputs in checker._lanes.values())


KINDS = ("not-json", "not-an-object", "no-customer-id", "no-value")
OUT, DEAD, OFFSETS = "out", "dlq", "offsets"
OLD = [("source.topic", b"older"), ("trace", None)]


@dataclass
class Txn:
    """One attempt at a range: its records and its outcome; in a corrupted plan, ``outcomes`` differ by log."""

    partition: int
    pid: int
    epoch: int
    until: int | None
    rows: list[tuple[str, Record]]
    outcome: str | None = "commit"
    marker_epoch: int = -1
    outcomes: dict[str, str | None] = field(default_factory=dict)
    start: int = 0
    journaled: bool = True
    wrote: list[tuple[str, Record]] = field(default_factory=list, init=False)


@dataclass
class HistoryPlan:
    """A plan: inputs, and each input partition's transactions in order; valid until a mutation corrupts it."""

    dice: random.Random
    inputs: list[Record] = field(default_factory=list)
    logs: dict[int, LogOffsets] = field(default_factory=dict)
    transactions: dict[int, list[Txn]] = field(default_factory=dict)
    shape: int = 1

    def done(self, partition: int | None = None) -> list[Txn]:
        """Return the committed transactions with records."""
        partitions = self.transactions if partition is None else [partition]
        return [t for p in partitions for t in self.transactions[p] if t.outcome == "commit" and t.rows]

    def pick(self, least: int = 1, topic: str = OUT) -> Txn:
        """Return a random committed transaction with at least ``least`` records on that topic."""
        return self.dice.choice([t for t in self.done() if sum(name == topic for name, _ in t.rows) >= least])

    def last(self, partition: int) -> Txn:
        return self.done(partition)[-1]


def enriched(key: bytes, value: bytes | None) -> bytes:
    tier = tier_of_key(key)
    return (value or b"")[:-1] + f',"loyalty_tier":"{tier}","loyalty_discount":{DISCOUNTS[tier]}}}'.encode()


def random_plan(seed: int, partitions: int = 2, shape: int | None = None, per_partition: int = 40) -> HistoryPlan:
    """Plan ranges of every length, each tried until it commits, with aborted, fenced and timed-out attempts."""
    dice = random.Random(seed)
    world, order, number = HistoryPlan(dice, shape=shape or partitions), orders(seed), 0
    for p in range(partitions):
        offset = first = dice.choice([0, 0, 7])
        records: list[tuple[Record, tuple[str, Record]]] = []
        for _ in range(per_partition):
            offset += dice.choice([0, 0, 0, 1, 3])
            kind = dice.randrange(10)
            key, value = order(number) if kind >= 4 else spoiled(order(number), kind)
            record = Record(p, offset, key, value, OLD if dice.random() < 0.2 else [], 1000 + number)
            target = p if shape in {None, partitions} else key_hash(key) % (shape or 1)
            records.append((record, _result(record, kind, target)))
            offset, number = offset + 1, number + 1
        world.inputs += [record for record, _ in records]
        world.logs[p] = LogOffsets(first, offset + 2, offset + 2)
        world.transactions[p] = list(_attempts(dice, p, records, offset + 2, first))
    return world


def _result(record: Record, kind: int, target: int) -> tuple[str, Record]:
    source = SourcePosition("in", record.partition, record.offset).headers()
    assert record.key is not None
    if kind >= 4:
        value = enriched(record.key, record.value)
        return OUT, Record(target, -1, record.key, value, [*record.headers, *source], record.created)
    headers = [*record.headers, (ERROR_REASON, KINDS[kind].encode()), *source]
    return DEAD, Record(target, -1, record.key, record.value, headers, record.created)


def _attempts(
    dice: random.Random, partition: int, records: list[tuple[Record, tuple[str, Record]]], end: int, start: int
) -> Iterator[Txn]:
    pid, epoch, index = 100 + partition, dice.choice([0, 5, 32000]), 0
    while index < len(records):
        count = dice.choice([2, 5, 9, 15])
        part = records[index : index + count]
        until = records[index + count][0].offset if index + count < len(records) else end
        rows = [result for _, result in part]
        while (outcome := dice.choice(["commit", "commit", "abort", "fenced", "died"])) != "commit":
            written = rows[: dice.randint(0, len(rows))] if outcome == "died" else rows
            yield Txn(partition, pid, epoch, None if outcome == "died" else until, list(written), "abort", start=start)
            # The coordinator ends a fenced or timed-out transaction with a marker of the next epoch.
            last = Txn(partition, pid, epoch + (outcome != "abort"), None, [], None)
            epoch = last.epoch + 1
            yield replace(last, journaled=False, outcome="mark")
        yield Txn(partition, pid, epoch, until, list(rows), "commit", start=start)
        epoch, index, start = epoch + 1, index + count, until


@dataclass
class History:
    """The final content of the logs, and of the processes' journals."""

    facts: BrokerFacts
    inputs: list[Record]
    visible: dict[str, list[Record]]
    batches: dict[tuple[str, int], list[RawBatch]]
    offsets: list[OffsetBatch]
    entries: list[Entry]
    hidden: list[tuple[str, Record]]
    needed: dict[str, int] = field(default_factory=dict)
    fired: dict[str, int] = field(default_factory=dict)
    bound_s: float | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    held: int = 0
    offsets_begin: int = 0

    def report(self, seed: int = 0) -> Report:
        """Check the history, with the logs arriving in a random interleaving, batches before their records."""
        dice, acknowledged = random.Random(seed), Acknowledged(self.entries, "in")
        checker = Checker(self.facts, acknowledged)
        checker.offsets.begin(0, self.offsets_begin)
        raw = {place: list(records) for place, records in self.batches.items()}
        left = {"in": list(self.inputs), OUT: list(self.visible[OUT]), DEAD: list(self.visible[DEAD])}
        commits = list(self.offsets)
        while any(left.values()) or commits:
            name = dice.choice([*(n for n, rest in left.items() if rest), *([OFFSETS] if commits else [])])
            if name == OFFSETS:
                checker.offsets.take([commits.pop(0)])
                continue
            records = [left[name].pop(0) for _ in range(min(len(left[name]), dice.randint(1, 9)))]
            if name == "in":
                checker.input(records)
                continue
            for row in records:
                rest = raw.get((name, row.partition), [])
                while rest and rest[0].base_offset <= row.offset:
                    checker.batches(name, row.partition, [rest.pop(0)])
            (checker.output if name == OUT else checker.dead_letters)(records)
        for (topic, partition), rest in raw.items():
            checker.batches(topic, partition, rest)
        for end in dice.sample([checker.input_ended, checker.downstream_ended], 2):
            end()
        checker.finish()
        check_readers(self.entries, checker.layouts, checker.found, acknowledged)
        check_stalls(checker.endings.first_commit_ms, self.bound_s, checker.found)
        check_fired(self.needed, {**checker.counts, **self.fired}, checker.found)
        for name, text in self.files.items():
            chunks = [text[n : n + 7] for n in range(0, len(text), 7)]
            check_secrets(name, chunks, ["the-canary"], checker.found)
        self.held = waiting(checker)
        return checker.report()


class Brokers:
    """Appends the transactions' effects, each partition in its order, partitions interleaved."""

    def __init__(self, world: HistoryPlan) -> None:
        self._world = world
        self._ends: dict[tuple[str, int], int] = {}
        self._pending: dict[int, Txn] = {}
        self.batches: dict[tuple[str, int], list[RawBatch]] = {}
        self.offsets: list[OffsetBatch] = []
        self.rows: dict[str, list[Record]] = {OUT: [], DEAD: []}
        self.hidden: list[tuple[str, Record]] = []
        self.committed: dict[int, int | None] = dict.fromkeys(world.logs)
        self.entries: list[Entry] = []
        self.clock = 1_000_000

    def run(self) -> None:
        left = {p: [step for txn in txns for step in self._steps(txn)] for p, txns in self._world.transactions.items()}
        while any(left.values()):
            partition = self._world.dice.choice([p for p, rest in left.items() if rest])
            left[partition].pop(0)()

    def _steps(self, txn: Txn) -> list[Any]:
        size = self._world.dice.randint(1, 4)
        chunks = [txn.rows[n : n + size] for n in range(0, len(txn.rows), size)]
        return [*(lambda c=c: self._produce(txn, c) for c in chunks), lambda: self._end(txn)]

    def _append(self, place: tuple[str, int], txn: Txn, records: int, marker: str | None = None) -> RawBatch:
        base = self._ends.get(place, 0)
        self._ends[place] = base + records
        self.clock += 10
        epoch = txn.epoch if marker is None or txn.marker_epoch < 0 else txn.marker_epoch
        return batch(base, records, (txn.pid, epoch), marker, self.clock)

    def _produce(self, txn: Txn, rows: list[tuple[str, Record]]) -> None:
        for topic, record in rows:
            place = topic, record.partition
            batch = self._append(place, txn, 1)
            self.batches.setdefault(place, []).append(batch)
            txn.wrote.append((topic, record._replace(offset=batch.base_offset)))

    def _end(self, txn: Txn) -> None:
        if txn.until is not None:
            commit = (OffsetCommit(txn.partition, txn.until),)
            self.offsets.append(OffsetBatch(self._append((OFFSETS, 0), txn, 1), commit))
        if txn.outcome == "mark":
            aborted = self._pending.pop(txn.partition)
            self._mark(aborted, replace(txn, marker_epoch=txn.epoch), "abort")
            self.hidden += aborted.wrote
        elif txn.outcome == "abort":
            self._pending[txn.partition] = txn
        elif txn.outcome == "commit":
            self._mark(txn, txn, "commit")
            self._journal(txn)
            for topic, record in txn.wrote:
                if txn.outcomes.get(topic, "commit") == "commit":
                    self.rows[topic].append(record)
                else:
                    self.hidden.append((topic, record))

    def _mark(self, txn: Txn, marker: Txn, outcome: str) -> None:
        places = {(topic, record.partition) for topic, record in txn.wrote}
        for place in sorted(places):
            written = txn.outcomes.get(place[0], outcome)
            if written is not None:
                self.batches[place].append(self._append(place, marker, 1, written))
        written = txn.outcomes.get(OFFSETS, outcome)
        if txn.until is not None and written is not None:
            self.offsets.append(OffsetBatch(self._append((OFFSETS, 0), marker, 1, written)))
            if written == "commit":
                self.committed[txn.partition] = txn.until

    def _journal(self, txn: Txn) -> None:
        if txn.journaled and txn.until is not None and txn.until > txn.start:
            fields = {"topic": "in", "partition": txn.partition, "start": txn.start, "until": txn.until}
            for phase in (Phase.INTENT, Phase.DONE):
                self.entries.append(Entry(self.clock / 1000, "writer", 1, Step.COMMIT, phase, dict(fields)))

    def log(self, *place: Any) -> LogOffsets:
        end = self._ends.get(place, 0)
        return LogOffsets(0, end, end)


def run_plan(world: HistoryPlan) -> History:
    """Execute the plan; return the history."""
    brokers = Brokers(world)
    brokers.run()
    downstream = {topic: {p: brokers.log(topic, p) for p in range(max(world.shape, 1))} for topic in (OUT, DEAD)}
    more = {"downstream": downstream, "settled": True, "journals": True}
    facts = BrokerFacts("in", OUT, DEAD, world.logs, brokers.committed, world.shape, **more)
    visible = {name: sorted(rows, key=lambda r: (r.partition, r.offset)) for name, rows in brokers.rows.items()}
    entries = list(brokers.entries)
    for pid in (11, 12):
        entries += read_by(world.dice, pid, visible)
    entries += read_by(world.dice, 99, visible, final=True)
    return History(facts, world.inputs, visible, brokers.batches, brokers.offsets, entries, brokers.hidden)
