"""Features that a cluster has agreed on (KIP-584), which confluent-kafka can't ask for."""

from __future__ import annotations

from protocol.cluster import Unknown
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka.introspect import ask, plain_admin


def level(connection: Connection, feature: str, deadline: Deadline) -> int | Unknown:
    """The level of a feature; 0 where the brokers know none of that name."""
    try:
        with plain_admin(connection, deadline) as admin:
            told = ask(admin, deadline, "describe features", admin._async_describe_features)  # noqa: SLF001
    except BrewError as error:
        return Unknown(str(error))
    return int(told.get(feature, {}).get("finalized", (0, 0))[1])
