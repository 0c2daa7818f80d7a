"""The claims of one test: topics, workers as programs, their effects, and the log's content."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brew.claims import messages
from brew.connection import Connection
from brew.kafka.clients import producer
from brew.kafka.transaction import connect_early
from downstream.claims.admin import Filter, Row, Watcher
from harness.programs import ROOT, Running
from harness.servers import Names, make_topics

INTERVAL_S = 0.5
PARTITIONS = 4


@dataclass
class ClaimsStage:
    """Topics with records at contiguous offsets, so that missing ones can be counted."""

    bootstrap: str
    names: Names
    folder: Path

    @property
    def topic(self) -> str:
        return self.names.topic("worked")

    @property
    def claims(self) -> str:
        return self.names.topic("claims")

    @property
    def effects(self) -> Path:
        return self.folder / "effects"

    @property
    def connection(self) -> Connection:
        return Connection(self.bootstrap)

    def create(self) -> None:
        """Create both topics, so that the claims can be watched from before the first of them."""
        make_topics(self.connection, self.topic, partitions=PARTITIONS)
        make_topics(self.connection, self.claims, partitions=messages.PARTITIONS, config=messages.CONFIG)

    def seed(self, per_partition: int) -> None:
        writer = producer(self.connection, None, timeout_s=30, message_max_bytes=1_000_000)
        connect_early(writer, self.topic)
        for number in range(per_partition * PARTITIONS):
            writer.produce(self.topic, b"%d" % number, b"k", number % PARTITIONS)
        assert writer.flush(30) == 0

    def worker(self, client: str, *more: str) -> Running:
        words = ["--bootstrap", self.bootstrap, "--topic", self.topic, "--group", self.names.group]
        words += ["--claims", self.claims, "--client-id", client, "--interval-s", str(INTERVAL_S)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        command = [sys.executable, "-m", "harness.claims_worker", *words, "--effects", str(self.effects), *more]
        return Running(command, environment)

    def done(self) -> list[tuple[str, int, int]]:
        """Return client, partition and offset of each complete line, in order."""
        if not self.effects.exists():
            return []
        lines = self.effects.read_text().split("\n")[:-1]
        return [(client, int(partition), int(offset)) for client, partition, offset in map(str.split, lines)]

    def counts(self) -> Counter[tuple[int, int]]:
        return Counter((partition, offset) for _, partition, offset in self.done())

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `downstream claims ...` on this stage's log."""
        name, *rest = words
        where = ["--bootstrap", self.bootstrap, "--claims", self.claims]
        return subprocess.run(
            [sys.executable, "-m", "downstream", "claims", name, *where, *rest],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    @contextlib.contextmanager
    def watching(self) -> Iterator[Watching]:
        """Read the log inside the test's process: a separate command would take a second."""
        watcher = Watcher(self.connection, self.claims)
        try:
            yield Watching(watcher)
        finally:
            watcher.close()


@dataclass(frozen=True)
class Watching:
    """The current state of the log's partitions."""

    watcher: Watcher

    def rows(self) -> list[Row]:
        self.watcher.read_new()
        return self.watcher.snapshot(Filter()).rows

    def owners(self) -> set[str | None]:
        return {row.owner for row in self.rows()}

    def positions(self) -> set[int]:
        return {row.position for row in self.rows()}
