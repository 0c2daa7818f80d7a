"""Users' rights and passwords on the brokers: granted, taken away, listed; for those who administer a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaException
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
from protocol.errors import Refused
from protocol.kafka.clients import attempt_s
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

    Raises:
        Refused: the brokers have no authorizer, or do not let this client.
    """
    bindings = [_acl(AclBinding, right, principal) for right in rights]
    for future in client.create_acls(bindings, request_timeout=attempt_s(deadline)).values():
        _done(future, f"granting rights to {principal}")


def revoke(client: AdminClient, rights: Iterable[Right], principal: str, deadline: Deadline) -> int:
    """Take rights away; return how many entries that were."""
    filters = [_acl(AclBindingFilter, right, principal) for right in rights]
    told = client.delete_acls(filters, request_timeout=attempt_s(deadline))
    return sum(len(_done(future, f"taking rights from {principal}")) for future in told.values())


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
        for future in client.alter_user_scram_credentials(wanted, request_timeout=attempt_s(deadline)).values():
            _done(future, "setting SCRAM passwords")


def set_of_broker(client: AdminClient, broker: int, name: str, value: str | None, deadline: Deadline) -> None:
    """Change a setting of a running broker; None gives it back to the broker's own file."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
    for future in client.incremental_alter_configs([resource], request_timeout=attempt_s(deadline)).values():
        _done(future, f"setting {name} of broker {broker}")


def _acl(make: Any, right: Right, principal: str) -> Any:
    cluster = right.kind is Kind.CLUSTER
    pattern = ResourcePatternType.PREFIXED if right.prefix else ResourcePatternType.LITERAL
    name = "kafka-cluster" if cluster else right.name
    operation = _OPERATIONS[right.operation]
    return make(_KINDS[right.kind], name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


def _done(future: Future[Any], what: str) -> Any:
    try:
        return future.result()
    except KafkaException as error:
        cause = error.args[0]
        raise Refused(f"{what}: {cause.str()} ({cause.name()}); an administrator of the cluster may") from error
