"""A secure broker of the sandbox, and its administrator."""

from __future__ import annotations

import functools
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from brew.acl import Right
from brew.deadline import Deadline
from brew.kafka import cluster_admin
from brew.kafka.clients import AdminClient, admin
from sandbox.kafka import Cluster, Settings
from sandbox.secure import Security

from .brokers import Broker
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
        with Cluster.start(directory, brokers=brokers, settings=Settings(secure=True)) as cluster:
            yield Secure(cluster)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
