"""A secure broker of the sandbox, its administrator, and a stage whose users have the rights of the page alone."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import click
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from brew import acl
from brew.acl import Kind, ResourceNames, Right
from brew.cli import exit_code_of
from brew.connection import CLIENT_CONFIG, Connection
from brew.deadline import Deadline
from brew.kafka import cluster_admin
from brew.kafka.clients import AdminClient, admin
from brew.offsets import SourcePosition
from downstream.__main__ import downstream
from downstream.receive.command import DemoServer
from pipeline.__main__ import cli as pipeline
from sandbox.kafka import Cluster, Settings
from sandbox.secure import Security
from sandbox.store import Redis

from .pipeline import Stage, environment
from .programs import Running
from .servers import QUIET, Broker, make_topics
from .waiting import until

ASK_S = 20.0


@dataclass(frozen=True)
class Secure:
    """A cluster that authenticates its clients."""

    cluster: Cluster

    @property
    def broker(self) -> Broker:
        return Broker(self.cluster.bootstrap, self.cluster)

    @property
    def security(self) -> Security:
        return Security.of(self.cluster.layout)

    @functools.cached_property
    def admin(self) -> AdminClient:
        """A client with all rights, by certificate."""
        return admin(self.cluster.connection)

    def grant(self, user: str, *granted: Right) -> None:
        """Grant rights; return once the broker applies them."""
        cluster_admin.grant(self.admin, granted, f"User:{user}", Deadline(ASK_S))
        until(lambda: self._lacks(user, granted) == set(), f"{user}'s new rights on the broker", ASK_S)

    def revoke(self, user: str, *taken: Right) -> int:
        """Revoke rights; return their number once the broker no longer grants them."""
        count = cluster_admin.revoke(self.admin, taken, f"User:{user}", Deadline(ASK_S))
        until(lambda: self._lacks(user, taken) == set(taken), f"the end of {user}'s rights on the broker", ASK_S)
        return count

    def _lacks(self, user: str, rights: Iterable[Right]) -> set[Right]:
        """Return the rights unknown to the broker, which applies a change shortly after the controller accepts it."""
        principal = f"User:{user}"
        of_user = AclBindingFilter(
            ResourceType.ANY, None, ResourcePatternType.ANY, principal, None, AclOperation.ANY, AclPermissionType.ANY
        )
        known = set(self.admin.describe_acls(of_user, request_timeout=ASK_S).result())
        return {right for right in rights if cluster_admin._acl(AclBinding, right, principal) not in known}


@contextmanager
def secure_broker(brokers: int = 1) -> Iterator[Secure]:
    """Yield a secure cluster on free ports, which is removed at the end together with its data."""
    directory = Path(tempfile.mkdtemp(prefix="brew-test-secure-"))
    try:
        with Cluster.start(directory, brokers=brokers, settings=Settings(secure=True, properties=QUIET)) as cluster:
            yield Secure(cluster)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


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
