"""Read topics during a campaign, and journal which records came in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from brew.connection import Connection
from brew.deadline import Deadline
from brew.journal import Journal, Phase, Step, runs
from brew.kafka import offsets, topics
from brew.kafka.clients import admin
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.topic_reader import follow
from brew.names import READ_COMMITTED
from brew.offsets import SourcePosition

_ASK_S = 60.0


def read(connection: Connection, names: Sequence[str], isolation: str, folder: Path, *, following: bool) -> int:
    """
    Read ``names`` from their starts, a journal line for each run of records; return how many there were.

    Without ``following`` the end is the last stable offset (the log's end for `read_uncommitted`) of the beginning;
    with it there is none: the caller raises when it has enough.

    Raises:
        Refused: a topic does not exist.
    """
    client, deadline = admin(connection), Deadline(_ASK_S)
    logs = {
        name: offsets.log_offsets(client, name, range(topics.describe_one(client, name, deadline).partitions), deadline)
        for name in names
    }
    journal = Journal(folder, "reader")
    count = 0
    try:
        if following:
            starts = {name: {p: log.first for p, log in by_partition.items()} for name, by_partition in logs.items()}
            for name, batch in follow(connection, starts, isolation):
                count += _tell(journal, name, isolation, batch)
            return count
        for name, by_partition in logs.items():
            ends = {p: log.last_stable if isolation == READ_COMMITTED else log.end for p, log in by_partition.items()}
            ranges = {p: (log.first, ends[p]) for p, log in by_partition.items()}
            for batch in scan(connection, name, ranges, isolation):
                count += _tell(journal, name, isolation, batch)
            # The checker takes it at its word: all that is visible has been read.
            journal.write(Step.READ, Phase.DONE, topic=name, partition=-1, isolation=isolation, runs=[], final=True)
        return count
    finally:
        journal.close()


def _tell(journal: Journal, topic: str, isolation: str, batch: Iterable[LogRecord]) -> int:
    """One line for each partition of the batch, in the order of reading."""
    count = 0
    for partition, of_partition in groupby(batch, key=lambda record: record.partition()):
        records = list(of_partition)
        places = [list(run) for run in runs(_place(record) for record in records)]
        journal.write(Step.READ, Phase.DONE, topic=topic, partition=partition, isolation=isolation, runs=places)
        count += len(records)
    return count


def _place(record: LogRecord) -> tuple[int, int, int]:
    source = SourcePosition.of(record.headers())
    return (record.offset(), -1, -1) if source is None else (record.offset(), source.partition, source.offset)
