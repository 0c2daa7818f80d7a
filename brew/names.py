"""Names that all programs share: topics, group, transactional ids, steps, exit codes."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from decimal import Decimal

from brew.errors import UsageError, encodable

INPUT_TOPIC = "brew.orders.v1"
OUTPUT_TOPIC = "brew.orders.enriched"
DEAD_LETTER_TOPIC = "brew.orders.dlq"
CUSTOMERS_TOPIC = "brew.customers.v1"
CLAIMS_TOPIC = "brew.claims.v1"
TOTALS_TOPIC = "brew.totals.v1"
GROUP_ID = "brew-enricher"
BOOTSTRAP = "localhost:9092"

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"

SINK_NAME = "brew.sink.name"
"""A header on the records of an exactly-once sink: the sink's name. `SINK_BATCH` has the batch number."""
SINK_BATCH = "brew.sink.batch"

STEPS = ("fence", "locate", "begin", "produce", "send-offsets", "commit")

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class ExitCode(enum.IntEnum):
    """Exit codes of all programs."""

    DONE = 0
    VIOLATION = 1
    CRASHED_ON_PURPOSE = 2
    REFUSED = 3
    USAGE = 64


class CrashPoint(enum.StrEnum):
    """Where a transaction can be crashed on purpose, in the order of the six steps."""

    AFTER_FENCE = "after-fence"
    MID_PRODUCE = "mid-produce"
    AFTER_FLUSH = "after-flush"
    AFTER_SEND_OFFSETS = "after-send-offsets"
    COMMIT_IN_FLIGHT = "commit-in-flight"
    AFTER_COMMIT = "after-commit"
    BEFORE_REPORT = "before-report"


class CrashMode(enum.StrEnum):
    """What crashes at a crash point: the whole pipeline (exit code 2), or one worker (the run recovers)."""

    PIPELINE = "pipeline"
    WORKER = "worker"


def quantity(number: float | Decimal, noun: str, spec: str = "") -> str:
    """Return a number with its noun, `1 record` or `2 records`; ``spec`` formats the number."""
    return f"{number:{spec}} {noun}" if number == 1 else f"{number:{spec}} {noun}s"


def checked_topic(name: str, setting: str) -> str:
    """Return ``name`` if it is a valid topic name; otherwise raise `UsageError` naming ``setting``."""
    if not _TOPIC.fullmatch(name) or name in {".", ".."}:
        raise UsageError(
            f"{setting} is {name!r}: a topic's name has 1 to 249 of the characters a-z A-Z 0-9 . _ - ; set {setting}"
        )
    return name


def checked_group(name: str, setting: str) -> str:
    """
    Return ``name`` if a group can have it; otherwise raise `UsageError` naming ``setting``.

    For an empty one, and for one that is not UTF-8, confluent-kafka ends the process (a failed assertion in C); it
    takes one with a NUL for the part before it.
    """
    if not name:
        raise UsageError(f"{setting} is empty; name a group, or leave the option out")
    if "\0" in name or encodable(name) != name:
        raise UsageError(
            f"{setting} is {name!r}: a group's name has neither NUL nor bytes that are not UTF-8; rename it"
        )
    return name


@dataclass(frozen=True, slots=True)
class TransactionalId:
    """The stable transactional id of one input partition in one group: `<group>:<topic>:<partition>`."""

    group: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.group}:{self.topic}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> TransactionalId:
        """
        Parse a complete id. The group may contain colons, since a topic name can't.

        Raises:
            ValueError: ``text`` is not an id that `str()` of this class returns.
        """
        group, _, topic = text.rpartition(":")[0].rpartition(":")
        digits = text.rpartition(":")[2]
        if not group or not _TOPIC.fullmatch(topic) or not digits.isascii() or not digits.isdigit():
            raise ValueError(f"not a transactional id of this pipeline: {text!r}")
        parsed = cls(group, topic, int(digits))
        if str(parsed) != text:
            raise ValueError(f"not a transactional id of this pipeline: {text!r}")
        return parsed


@dataclass(frozen=True, slots=True)
class SinkTransactionalId:
    """The stable transactional id of an exactly-once sink: `<name>:<topic>:sink`, with the topic of its position."""

    name: str
    topic: str

    def __str__(self) -> str:
        return f"{self.name}:{self.topic}:sink"

    @classmethod
    def parse(cls, text: str) -> SinkTransactionalId:
        """
        Parse a complete id. The sink's name may contain colons, since a topic name can't.

        Raises:
            ValueError: ``text`` is not an id that `str()` of this class returns.
        """
        name, _, topic = text.rpartition(":")[0].rpartition(":")
        parsed = cls(name, topic)
        if not name or not _TOPIC.fullmatch(topic) or str(parsed) != text:
            raise ValueError(f"not a transactional id of a sink: {text!r}")
        return parsed
