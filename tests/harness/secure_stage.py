"""A stage on a secure broker: its programs are users with exactly the rights that the page lists."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import click

from brew import acl
from brew.acl import Kind, ResourceNames, Right
from brew.cli import exit_code_of
from brew.connection import CLIENT_CONFIG, Connection
from brew.offsets import SourcePosition
from downstream.__main__ import downstream
from downstream.receive.command import DemoServer
from pipeline.__main__ import cli as pipeline
from sandbox.store import Redis

from .pipeline import Stage, environment
from .programs import Running
from .secure import Secure
from .transactions import make_topics

PIPELINE, DOWNSTREAM, PROOF, OPERATOR = "pipeline", "downstream", "proof-reader", "operator"


@dataclass(frozen=True)
class SecureStage(Stage):
    """Topics and group of one test; programs run as ``user``, the test's own checks as the administrator."""

    secure: Secure
    user: str = PIPELINE

    @property
    def connection(self) -> Connection:
        return self.secure.cluster.connection

    @property
    def place(self) -> ResourceNames:
        names = self.names
        return ResourceNames(names.input, names.output, names.dead_letter, names.group)

    def rights(self, user: str) -> list[Right]:
        return acl.rights_of(user, self.place)

    def grant_all(self) -> None:
        """Grant each user all rights that the page lists, and no others."""
        for user in acl.USERS:
            self.secure.grant(user, *self.rights(user))

    def start(self, command: Sequence[str], user: str | None = None) -> Running:
        return Running(command, {**environment(self.names.stem), CLIENT_CONFIG: str(self._config(user or self.user))})

    def run_as(self, program: click.Command, *words: str, user: str) -> tuple[int, str]:
        """Run a program in this process as ``user``; return its exit code and all its output."""
        output = io.StringIO()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with self.acting_as(user), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                code = exit_code_of(program, program.name or "", list(words))
        finally:  # a run installs its own handlers for these two
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return code, output.getvalue()

    @contextmanager
    def acting_as(self, user: str) -> Iterator[None]:
        """Within the block, programs of this process run as ``user``."""
        with patch.dict(os.environ, {CLIENT_CONFIG: str(self._config(user))}):
            yield

    def assert_named(self, right: Right, user: str, output: str) -> None:
        """Assert that a program names what it lacks: operation, resource, user, and where to look or what to type."""
        assert right.seen in output, output
        assert f"User:{user}" in output, output
        name = right.name if right.kind is not Kind.TRANSACTIONAL_ID else right.name.partition(":")[0]
        assert name in output, output
        assert right.operation.replace("Configs", "_Configs").upper() in output.upper() or str(right) in output, output
        assert "docs/SECURITY.md" in output or "kafka-acls" in output, output
        assert "Traceback" not in output

    def _config(self, user: str) -> Path:
        return self.secure.security.config(user)


PARTITIONS = 2
QUICK = ("--patience", "1", "--poll-interval", "0.02", "--transaction-timeout", "20", "--progress", "none")


@dataclass(frozen=True)
class SecurePrograms:
    """The stage of one test, and what its programs need besides Kafka."""

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
        """The input position of an order that became a dead letter."""
        first = SourcePosition.of(self.stage.records(self.stage.names.dead_letter)[0].headers())
        assert first is not None
        return f"{first.partition}/{first.offset}"

    def make(self, *roles: str) -> None:
        make_topics(self.stage.connection, *(getattr(self.stage.names, role) for role in roles), partitions=PARTITIONS)

    def run(self, *more: str) -> tuple[int, str]:
        return self.stage.run_as(
            pipeline, "run", *self.stage.options(), "--master", "none", *QUICK, *more, user=PIPELINE
        )

    def consume(self, command: str, *more: str) -> tuple[int, str]:
        mine = ("--topic", self.stage.names.output, "--group", self.stage.names.group)
        static = ("--partitions", "0,1", "--patience-s", "1") if command != "totals" else ()
        return self.stage.run_as(downstream, command, *self.where, *mine, *static, *more, user=DOWNSTREAM)
