"""Look at the profiles' topic before a run: is it there, and does it keep the newest profile of each customer."""

from __future__ import annotations

from pipeline.settings import PipelineSettings
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka import topics
from protocol.kafka.clients import AdminClient, mapped
from protocol.profiles import COMPACT


def check(settings: PipelineSettings, client: AdminClient, deadline: Deadline) -> None:
    """
    Return if the run can hold its profiles, or wants none.

    Raises:
        Refused: the topic is missing, or would lose profiles with time.
    """
    if settings.profiles is None:
        return
    name = settings.profiles.topic
    with mapped("check of the profiles"):
        found = topics.describe(client, [name], deadline)
        if name not in found:
            raise Refused(
                f"profiles topic {name!r} is not on {settings.connection.bootstrap}; make it (`make seed-customers`, "
                "or `make topic-create-all`), name another with PROFILES_TOPIC (--profiles-topic), or do without: "
                "TIERS=prefix (--tiers)"
            )
        policy = topics.cleanup_policy(client, name, deadline)
    if policy != COMPACT:
        raise Refused(
            f"profiles topic {name!r} has cleanup.policy={policy}, which removes the newest profile of a customer with "
            f"time; it needs cleanup.policy={COMPACT}: set it, or name another topic with PROFILES_TOPIC "
            "(--profiles-topic)"
        )
