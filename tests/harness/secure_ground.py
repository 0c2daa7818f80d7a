"""What tests of single rights stand on: a stage on a secure broker, and the names of everything beside the pipeline."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

from brew.acl import ResourceNames
from brew.deadline import Deadline
from brew.kafka import topics
from brew.offsets import SourcePosition
from downstream.__main__ import downstream
from downstream.receive.command import DemoServer
from harness.secure_stage import DOWNSTREAM, PIPELINE, SecureStage
from pipeline.__main__ import cli as pipeline
from sandbox.store import Redis

PARTITIONS = 2
QUICK = ("--patience", "1", "--poll-interval", "0.02", "--transaction-timeout", "20", "--progress", "none")


@dataclass(frozen=True)
class Ground:
    """One test's stage, and what its programs need beside Kafka."""

    stage: SecureStage
    sink: DemoServer
    redis: Redis
    folder: Path

    @property
    def place(self) -> ResourceNames:
        names = self.stage.names
        others = {name: names.topic(name) for name in ("claims", "totals")}
        others |= {"profiles": names.topic("customers"), "downstream": names.group, "upstream": f"seed:{names.input}"}
        return replace(self.stage.place, **others)

    @property
    def where(self) -> tuple[str, ...]:
        return ("--bootstrap", self.stage.broker.bootstrap)

    @functools.cached_property
    def rejected(self) -> str:
        """Where on the input an order stands that became a dead letter."""
        first = SourcePosition.of(self.stage.records(self.stage.names.dead_letter)[0].headers())
        assert first is not None
        return f"{first.partition}/{first.offset}"

    def make(self, *roles: str) -> None:
        wanted = [topics.TopicSpec(getattr(self.stage.names, role), PARTITIONS, {}) for role in roles]
        topics.create(self.stage.admin, wanted, Deadline(30))
        topics.describe_all(self.stage.admin, [one.name for one in wanted], Deadline(30))

    def run(self, *more: str) -> tuple[int, str]:
        return self.stage.here(pipeline, "run", *self.stage.options(), "--master", "none", *QUICK, *more, user=PIPELINE)

    def consume(self, command: str, *more: str) -> tuple[int, str]:
        mine = ("--topic", self.stage.names.output, "--group", self.stage.names.group)
        static = ("--partitions", "0,1", "--patience-s", "1") if command != "totals" else ()
        return self.stage.here(downstream, command, *self.where, *mine, *static, *more, user=DOWNSTREAM)
