"""Consumer groups, as their coordinator describes them."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from protocol.deadline import Deadline
from protocol.kafka.clients import mapped
from protocol.retry import again


def state(client: AdminClient, group: str, deadline: Deadline) -> tuple[str, int]:
    """The group's state in the broker's words (`empty` when it only holds offsets), and its number of members."""

    def ask() -> tuple[str, int]:
        with mapped(f"describe group {group}"):
            asked = client.describe_consumer_groups([group], request_timeout=max(0.001, deadline.remaining_s()))
            told = asked[group].result()
        return told.state.name.lower(), len(told.members)

    return again(ask, f"describe group {group}", deadline)
