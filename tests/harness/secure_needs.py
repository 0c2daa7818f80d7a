"""Rights that tests need on secure brokers beyond those of a plain run, and tests that can't run there, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from brew.acl import Purpose, ResourceNames

from .names import Names

# Tests' groups do not begin with `brew-`, and most leave the creation of output and dead letters to the run.
_USUAL = (Purpose.MAKE, Purpose.OTHER_GROUP, Purpose.NAMES, Purpose.OFFSETS)


@dataclass(frozen=True, slots=True)
class Needs:
    """
    The needs of one file.

    ``more``: in addition to those of nearly all. ``topics``: roles with unusual names, and their suffix (`downstream`:
    the prefix of its groups). ``inherited``: the user of processes not started by a command line, such as forks.
    """

    more: Sequence[Purpose] = ()
    topics: Mapping[str, str] = field(default_factory=dict)
    inherited: str | None = None

    @property
    def purposes(self) -> tuple[Purpose, ...]:
        return (*_USUAL, *self.more)

    def place(self, names: Names) -> ResourceNames:
        """Return the names of one test."""
        named = {role: names.topic(suffix) for role, suffix in {**_TOPICS, **self.topics}.items()}
        return ResourceNames(group=names.group, upstream=f"seed:{names.input}", **named)


_TOPICS = {
    "downstream": "group",
    "input": "in",
    "output": "out",
    "dead_letter": "dlq",
    "claims": "claims",
    "profiles": "customers",
    "totals": "totals",
}
NEEDS: Mapping[str, Needs] = {
    "scenarios/test_claims_flows.py": Needs((Purpose.OWNERSHIP,), {"output": "worked"}),
    "scenarios/test_sharing.py": Needs((Purpose.SHARE,)),
    "scenarios/test_stand_by.py": Needs((Purpose.SHARE,)),
    "scenarios/test_store_kills.py": Needs((Purpose.RECEIVE,), inherited="downstream"),
    "scenarios/test_totals.py": Needs((Purpose.TOTALS,)),
    "scenarios/test_upstream.py": Needs((Purpose.UPSTREAM,)),
    "scenarios/test_virtual_partitions.py": Needs((Purpose.CALL,)),
}
"""By file below tests/; files not listed have the usual needs."""

_FRAMES = "the wire proxy reads and changes frames, and TLS hides them from it"
LEFT_OUT: Mapping[str, str] = {
    "integration/test_old_kafka.py": "Kafka 3.3 keeps no passwords without ZooKeeper",
    "integration/test_wire_proxy.py": _FRAMES,
    "integration/test_wire_torn.py": _FRAMES,
    "scenarios/test_borrowed_session.py": "its notebook takes settings, not the command line that names a user's file",
    "scenarios/test_broker_restarts.py": "it runs programs on topics of two names; a user has rights on one",
    "scenarios/test_transform_crashes.py": "its second output has a name that no user has rights on",
    "scenarios/test_sink_kills.py": "its queries name no user's file; test_sink_rights.py has a sink with least rights",
}
"""Tests, or test files, that can't run on secure brokers, and the reason."""


def needs(file: str) -> Needs:
    return NEEDS.get(file, Needs())


def left_out(file: str, test: str) -> str | None:
    """Return why a test is not run on secure brokers, or None if it is. ``test``: its function's name."""
    return LEFT_OUT.get(f"{file}::{test}", LEFT_OUT.get(file))
