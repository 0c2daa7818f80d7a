"""Whether this client may use a transactional id, as far as brokers tell without anything being written."""

from __future__ import annotations

from protocol.cluster import Unknown
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.denied import No, no
from protocol.errors import BrewError
from protocol.kafka.introspect import NoSuchId, ask, plain_admin


def may_describe(connection: Connection, transactional_id: str, deadline: Deadline) -> bool | Unknown:
    """
    Ask for the id's state (KIP-664), for which Describe is needed; Write brings that with it.

    So a no means that Write is missing. Nobody can ask for Write itself without fencing whoever holds the id.
    """
    try:
        with plain_admin(connection, deadline) as admin:
            call = admin._async_describe_transactions  # noqa: SLF001 - as in protocol.kafka.introspect
            ask(admin, deadline, "describe transactions", call, [transactional_id])
    except NoSuchId:
        return True
    except BrewError as error:
        return False if no(str(error)) is No.RIGHT else Unknown(str(error))
    return True
