"""Users' rights and passwords on the brokers: granted, taken away, listed; for those who administer a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from protocol.deadline import Deadline
from protocol.errors import KafkaFailure, Refused
from protocol.kafka.clients import asking, attempt_s
from protocol.retry import again
from protocol.rights import Kind, Operation, Right
from protocol.secrets import Secret

_KINDS = {
    Kind.TOPIC: ResourceType.TOPIC,
    Kind.GROUP: ResourceType.GROUP,
    Kind.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    Kind.CLUSTER: ResourceType.BROKER,
}
_OPERATIONS = {
    Operation.READ: AclOperation.READ,
    Operation.WRITE: AclOperation.WRITE,
    Operation.CREATE: AclOperation.CREATE,
    Operation.DESCRIBE: AclOperation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}
_MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
_ITERATIONS = 4096  # the least that brokers take; each new connection pays for them


def grant(client: AdminClient, rights: Iterable[Right], principal: str, deadline: Deadline) -> None:
    """
    Let ``principal`` (`User:name`) do what ``rights`` say.

    Raises, as all of these do:
        Refused: the brokers have no authorizer, or do not let this client.
        DeadlineExceeded: no broker that answers could see to it in time.
    """
    bindings = [_acl(AclBinding, right, principal) for right in rights]
    _done(partial(client.create_acls, bindings), f"granting rights to {principal}", deadline)


def revoke(client: AdminClient, rights: Iterable[Right], principal: str, deadline: Deadline) -> int:
    """Take rights away; return how many entries the brokers' last answer tells of."""
    filters = [_acl(AclBindingFilter, right, principal) for right in rights]
    told = _done(partial(client.delete_acls, filters), f"taking rights from {principal}", deadline)
    return sum(len(entries) for entries in told)


def set_passwords(
    client: AdminClient, passwords: Mapping[str, Secret], mechanisms: Iterable[str], deadline: Deadline
) -> None:
    """Give users their SCRAM passwords, in each of ``mechanisms``."""
    for mechanism in mechanisms:  # a request may name a user once
        wanted: list[Any] = [
            UserScramCredentialUpsertion(
                user, ScramCredentialInfo(_MECHANISMS[mechanism], _ITERATIONS), password.reveal().encode()
            )
            for user, password in passwords.items()
        ]
        _done(partial(client.alter_user_scram_credentials, wanted), "setting SCRAM passwords", deadline)


def set_of_broker(client: AdminClient, broker: int, name: str, value: str | None, deadline: Deadline) -> None:
    """Change a setting of a running broker; None gives it back to the broker's own file."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
    _done(partial(client.incremental_alter_configs, [resource]), f"setting {name} of broker {broker}", deadline)


def _acl(make: Any, right: Right, principal: str) -> Any:
    cluster = right.kind is Kind.CLUSTER
    pattern = ResourcePatternType.PREFIXED if right.prefix else ResourcePatternType.LITERAL
    name = "kafka-cluster" if cluster else right.name
    operation = _OPERATIONS[right.operation]
    return make(_KINDS[right.kind], name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


def _done(ask: Callable[..., Mapping[Any, Future[Any]]], what: str, deadline: Deadline) -> list[Any]:
    """Each answer; a request without one is made again: done twice, these do what they do once."""

    def attempt() -> list[Any]:
        with asking(what):
            return [future.result() for future in ask(request_timeout=attempt_s(deadline)).values()]

    try:
        return again(attempt, what, deadline)
    except KafkaFailure as error:
        raise Refused(f"{error}; an administrator of the cluster may") from error
