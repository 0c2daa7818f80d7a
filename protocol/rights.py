"""
What each program may do on the brokers, and nothing more: the least rights that let it do its work.

docs/SECURITY.md has the same rows, and a test reads both. Each was found by taking it away: ``seen`` is what the
program then says (tests/integration/test_acls.py, `proof campaign --cells F36*`).
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from protocol import names

SCAN_GROUP = "brew-scan"
"""Under this name logs are read; nothing is committed, but librdkafka asks who coordinates it."""


class Kind(enum.StrEnum):
    """What a right is about; Kafka's own words."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


class Operation(enum.StrEnum):
    """What may be done; Kafka's own words. Read and Write bring Describe with them."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


@dataclass(frozen=True, slots=True)
class Right:
    """
    One row: ``name`` is what `Place` fills in; ``prefix`` says that it begins the names meant.

    ``seen``: words of the message when it is missing; empty where nothing is missed but an answer.
    """

    user: str
    kind: Kind
    name: str
    operation: Operation
    why: str
    seen: str = ""
    prefix: bool = False

    def at(self, place: Place) -> Right:
        """The row with the place's own names."""
        filled = self.name.format_map(place.fields())
        return Right(self.user, self.kind, filled, self.operation, self.why, self.seen, self.prefix)

    def command(self, principal: str) -> str:
        """The words of Kafka's own tool that grant it."""
        words = ["kafka-acls", "--add", "--allow-principal", principal, "--operation", self.operation.value]
        words += ["--resource-pattern-type", "prefixed"] if self.prefix else []
        return shlex.join([*words, f"--{self.kind.value}", *([] if self.kind is Kind.CLUSTER else [self.name])])

    def __str__(self) -> str:
        star = "*" if self.prefix else ""
        return f"{self.operation} on {self.kind.value} {self.name}{star}"


@dataclass(frozen=True, slots=True)
class Place:
    """The names that one pipeline and its readers use."""

    input: str = names.INPUT_TOPIC
    output: str = names.OUTPUT_TOPIC
    dead_letter: str = names.DEAD_LETTER_TOPIC
    group: str = names.GROUP_ID
    profiles: str = names.CUSTOMERS_TOPIC
    claims: str = names.CLAIMS_TOPIC
    totals: str = names.TOTALS_TOPIC
    downstream: str = "brew-"

    def fields(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


_PIPELINE, _DOWNSTREAM, _PROOF = "pipeline", "downstream", "proof-reader"
_TOPIC_DENIED, _GROUP_DENIED = "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"
_SEARCHED = "without a committed offset its headers are searched for what came out before"
_SIZE = "how large a record may be, so that a larger one is rejected by name"

RIGHTS = (
    Right(_PIPELINE, Kind.TOPIC, "{input}", Operation.READ, "reads the orders", _TOPIC_DENIED),
    Right(_PIPELINE, Kind.TOPIC, "{output}", Operation.WRITE, "writes enriched orders", "output-access"),
    Right(_PIPELINE, Kind.TOPIC, "{output}", Operation.READ, _SEARCHED, _TOPIC_DENIED),
    Right(_PIPELINE, Kind.TOPIC, "{output}", Operation.DESCRIBE_CONFIGS, _SIZE, "output-access"),
    Right(_PIPELINE, Kind.TOPIC, "{dead_letter}", Operation.WRITE, "writes what is rejected", "dead-letter-access"),
    Right(_PIPELINE, Kind.TOPIC, "{dead_letter}", Operation.READ, _SEARCHED, _TOPIC_DENIED),
    Right(_PIPELINE, Kind.TOPIC, "{dead_letter}", Operation.DESCRIBE_CONFIGS, _SIZE, "dead-letter-access"),
    Right(_PIPELINE, Kind.GROUP, "{group}", Operation.READ, "locate and send-offsets: the position", _GROUP_DENIED),
    Right(
        _PIPELINE,
        Kind.TRANSACTIONAL_ID,
        "{group}:",
        Operation.WRITE,
        "fence, produce, send-offsets and commit",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        prefix=True,
    ),
    Right(_DOWNSTREAM, Kind.TOPIC, "{output}", Operation.READ, "reads enriched orders", _TOPIC_DENIED),
    Right(
        _DOWNSTREAM,
        Kind.GROUP,
        "{downstream}",
        Operation.READ,
        "joins its own groups and stores their positions",
        _GROUP_DENIED,
        prefix=True,
    ),
    Right(_PROOF, Kind.TOPIC, "{input}", Operation.READ, "compares every order", _TOPIC_DENIED),
    Right(_PROOF, Kind.TOPIC, "{output}", Operation.READ, "with what came of it", _TOPIC_DENIED),
    Right(_PROOF, Kind.TOPIC, "{dead_letter}", Operation.READ, "or of its dead letter", _TOPIC_DENIED),
    Right(_PROOF, Kind.GROUP, "{group}", Operation.DESCRIBE, "with the group's position", _GROUP_DENIED),
    Right(_PROOF, Kind.GROUP, SCAN_GROUP, Operation.DESCRIBE, "its readers' group; no commits", _GROUP_DENIED),
)
"""Every right, in the order of docs/SECURITY.md."""

USERS = tuple(dict.fromkeys(right.user for right in RIGHTS))


def of(user: str, place: Place | None = None) -> list[Right]:
    """The rights of one user at ``place``; with the names that programs have by themselves where none is given."""
    return [right.at(place or Place()) for right in RIGHTS if right.user == user]


def _rows(rights: Iterable[Right]) -> Iterator[str]:
    for right in rights:
        name = right.name.replace("{", "<").replace("}", ">").replace("_", "-") + ("*" if right.prefix else "")
        seen = f"`{right.seen}`" if right.seen else "-"
        yield f"| `{right.user}` | {right.kind} `{name}` | {right.operation} | {right.why} | {seen} |"


def table() -> str:
    """The rows as docs/SECURITY.md has them."""
    return "\n".join(_rows(RIGHTS))
