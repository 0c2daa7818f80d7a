"""A secure broker of the sandbox, and who administers it."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from protocol.deadline import Deadline
from protocol.kafka import access
from protocol.kafka.clients import AdminClient, admin
from protocol.rights import Right
from sandbox.kafka import Cluster, Settings
from sandbox.secure import Security

from .brokers import Broker

ASK_S = 20.0


@dataclass(frozen=True)
class Secure:
    """A cluster that asks who is there."""

    cluster: Cluster

    @property
    def broker(self) -> Broker:
        return Broker(self.cluster.bootstrap, self.cluster)

    @property
    def security(self) -> Security:
        return Security.of(self.cluster.layout)

    @functools.cached_property
    def admin(self) -> AdminClient:
        """By certificate, as one who may do everything."""
        return admin(self.cluster.connection)

    def grant(self, user: str, *granted: Right) -> None:
        access.grant(self.admin, granted, f"User:{user}", Deadline(ASK_S))

    def revoke(self, user: str, *taken: Right) -> int:
        return access.revoke(self.admin, taken, f"User:{user}", Deadline(ASK_S))


@contextmanager
def secure_broker(brokers: int = 1) -> Iterator[Secure]:
    """A secure cluster on free ports, gone at the end together with its data."""
    directory = Path(tempfile.mkdtemp(prefix="brew-test-secure-"))
    try:
        with Cluster.start(directory, brokers=brokers, settings=Settings(secure=True)) as cluster:
            yield Secure(cluster)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
