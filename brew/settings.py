"""Settings of a run: frozen, validated together on construction, built once in `__main__`."""

from __future__ import annotations

import enum
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from brew.claims.member import INTERVAL_S
from brew.claims.messages import MAX_INTERVAL_MS, MIN_INTERVAL_MS
from brew.connection import Connection
from brew.errors import UsageError
from brew.names import CLAIMS_TOPIC, CUSTOMERS_TOPIC, CrashMode, CrashPoint, checked_group, checked_topic

_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(,\s*[1-9]\d*)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://[^:/,]+:\d+(,[^:/,]+:\d+)*|yarn|k8s://.+|none"
)
_MAX_GROUP = 200
_MAX_CLIENT_ID = 255
_MIN_LEASE_S = 1.0
_MAX_DEPTH = 250  # orjson writes at most 254 levels


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of an input record: ``max_bytes`` of its value, ``max_depth`` of nested objects and arrays."""

    max_bytes: int = 1_000_000
    max_depth: int = 100


@dataclass(frozen=True, slots=True)
class CrashSettings:
    """Intentional crashes: the probability for each transaction (0 to 1), the point, the mode and the random seed."""

    probability: float = 0.0
    point: CrashPoint = CrashPoint.AFTER_FLUSH
    mode: CrashMode = CrashMode.PIPELINE
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.probability <= 1.0:
            raise UsageError(f"CRASH_PROB (--crash-prob) is {self.probability:g}: a probability is between 0 and 1")


class Reader(enum.StrEnum):
    """What reads the input: Spark's Kafka source, or the task itself (docs/decisions/0009)."""

    CONNECTOR = "connector"
    DIRECT = "direct"


@dataclass(frozen=True, slots=True)
class DirectSettings:
    """
    The direct reader: ``lease_s`` is how long a task works without a renewal by the driver, ``transaction_bytes`` the
    input of one transaction, ``read_ahead_bytes`` what one task prefetches for all its partitions.
    """

    lease_s: float = 10.0
    transaction_bytes: int = 16 * 1024 * 1024
    read_ahead_bytes: int = 48 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClaimsSettings:
    """
    Coordination of several drivers: each sends a heartbeat to the topic ``claims`` every ``interval_s``.

    ``client_id``: this driver's id; keep it across a restart to continue at once. Empty: host and pid.
    """

    interval_s: float = INTERVAL_S
    client_id: str = ""
    claims: str = CLAIMS_TOPIC

    def __post_init__(self) -> None:
        checked_topic(self.claims, "--claims")
        minimum, maximum = MIN_INTERVAL_MS / 1000, MAX_INTERVAL_MS / 1000
        if not minimum <= self.interval_s <= maximum:
            raise UsageError(
                f"--claim-interval is {self.interval_s:g}: it has to be between {minimum:g} and {maximum:g}"
            )
        if len(self.client_id) > _MAX_CLIENT_ID:
            raise UsageError(f"--client-id has {len(self.client_id)} characters, at most {_MAX_CLIENT_ID} fit")

    @property
    def name(self) -> str:
        """The driver's id in the claims topic."""
        return self.client_id or f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class ProfilesSettings:
    """Tiers come from the compacted ``topic``; a worker may take up to ``load_timeout_s`` to read all of it."""

    topic: str = CUSTOMERS_TOPIC
    load_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        checked_topic(self.topic, "PROFILES_TOPIC (--profiles-topic)")


class OnError(enum.StrEnum):
    """What to do with a record when a transformation raises something other than `brew.Reject`."""

    END = "end"
    DEAD_LETTER = "dead-letter"


class OnMissingPosition(enum.StrEnum):
    """What to do if the group has no committed offset but the output has records of this input."""

    REFUSE = "refuse"
    RESTORE = "restore"
    START_OVER = "start-over"


class Compilers(enum.StrEnum):
    """The JIT compilers of a run: C2's code is faster, but compiling it costs more than a short run gains."""

    FIRST = "first"
    SECOND_LATE = "second-late"
    BOTH = "both"


@dataclass(frozen=True)
class SparkSettings:
    """
    Where tasks run; ``conf`` holds Spark's own dotted names and overrides ours.

    ``packages``: our packages that tasks import; ``py_files``: the caller's modules, archives and wheels.
    """

    master: str = "local[*]"
    jvm_dir: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    verbose: bool = False
    make_archive: str | None = None
    packages: tuple[str, ...] = ("brew",)
    py_files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _MASTER.fullmatch(self.master):
            raise UsageError(
                f"MASTER (--master) is {self.master!r}: use local[*], local[4], local-cluster[2,1,1024], "
                "spark://host:port, yarn or k8s://url; none runs without Spark"
            )

    @property
    def master_with_retries(self) -> str:
        """The master; plain `local[...]` gets a number of attempts, without which it retries no failed task."""
        slots = re.fullmatch(r"local(?:\[(\*|\d+)\])?", self.master)
        return f"local[{slots[1] or 1},4]" if slots else self.master

    @property
    def absent(self) -> bool:
        """True if this process does the work without Spark."""
        return self.master == "none"

    @property
    def local(self) -> bool:
        """True if tasks run as children of the driver's own JVM."""
        return self.master.startswith("local") and not self.master.startswith("local-cluster")


@dataclass(frozen=True)
class PipelineSettings:
    """
    All settings of one run.

    ``transform``: a function or the name of one (`brew.transformation`); None if nothing is run. ``also_output``:
    further topics that it may send records to.
    """

    connection: Connection
    input: str
    output: str
    dead_letter: str
    group: str
    spark: SparkSettings = field(default_factory=SparkSettings)
    crash: CrashSettings = field(default_factory=CrashSettings)
    limits: Limits = field(default_factory=Limits)
    reader: Reader = Reader.DIRECT
    direct: DirectSettings = field(default_factory=DirectSettings)
    follow: bool = False
    lanes: int = 2
    max_records_per_transaction: int = 250_000
    transaction_timeout_s: float = 60.0
    poll_interval_s: float = 0.1
    patience_s: float = 120.0
    blocked_patience_s: float = 1200.0
    on_missing_position: OnMissingPosition = OnMissingPosition.REFUSE
    journal: str | None = None
    max_rejected: float | None = None
    stand_by: ClaimsSettings | None = None
    share: ClaimsSettings | None = None
    allow: frozenset[str] = frozenset()
    profiles: ProfilesSettings | None = None
    transform: str | Callable[..., Any] | None = None
    on_error: OnError = OnError.END
    also_output: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_topic(self.input, "INPUT_TOPIC (--input)")
        checked_topic(self.output, "OUTPUT_TOPIC (--output)")
        checked_topic(self.dead_letter, "DLQ_TOPIC (--dead-letter)")
        for name in self.also_output:
            checked_topic(name, "ALSO_OUTPUT (--also-output)")
        topics = (self.input, self.output, self.dead_letter)
        again = sorted({name for name in self.also_output if name in topics or self.also_output.count(name) > 1})
        if again:
            raise UsageError(
                f"ALSO_OUTPUT (--also-output) names {', '.join(again)}, which is another topic of the run, or named "
                "twice; each output has to be a topic of its own"
            )
        if len(set(topics)) < len(topics):
            raise UsageError(
                f"input, output and dead-letter are {self.input!r}, {self.output!r} and {self.dead_letter!r}: "
                "they have to be three topics"
            )
        if self.profiles is not None and self.profiles.topic in topics:
            raise UsageError(
                f"PROFILES_TOPIC (--profiles-topic) is {self.profiles.topic!r}, which is input, output or dead-letter "
                "topic, too; profiles need a topic of their own"
            )
        if not 1 <= len(self.group) <= _MAX_GROUP:
            raise UsageError(f"GROUP_ID (--group) has {len(self.group)} characters, it needs 1 to {_MAX_GROUP}")
        checked_group(self.group, "GROUP_ID (--group)")
        if self.stand_by is not None and self.share is not None:
            raise UsageError(
                "STAND_BY (--stand-by) and SHARE (--share) are both set: of several drivers either one works, or each "
                "on its part; unset one of them"
            )
        self._check_numbers()

    @property
    def outputs(self) -> tuple[str, ...]:
        """All topics that transformed records go to."""
        return (self.output, *self.also_output)

    def leased_within(self, claims: ClaimsSettings) -> PipelineSettings:
        """Shorten the lease, so that the tasks of a suspended driver stop before another driver may work."""
        lease_s = min(self.direct.lease_s, max(_MIN_LEASE_S, 2 * claims.interval_s))
        return replace(self, direct=replace(self.direct, lease_s=lease_s))

    def _check_numbers(self) -> None:
        limits: list[tuple[str, float, float, float]] = [
            ("--lanes", self.lanes, 1, 64),
            ("--max-records-per-transaction", self.max_records_per_transaction, 1, 10_000_000),
            ("--transaction-timeout", self.transaction_timeout_s, 1, 900),
            ("--lease", self.direct.lease_s, 1, 600),
            ("--transaction-bytes", self.direct.transaction_bytes, 1024, 1024**3),
            ("--read-ahead-bytes", self.direct.read_ahead_bytes, 1024**2, 16 * 1024**3),
            ("--poll-interval", self.poll_interval_s, 0.001, 3600),
            ("--patience", self.patience_s, 1, 86_400),
            ("--blocked-patience", self.blocked_patience_s, 1, 86_400),
            ("--max-record-bytes", self.limits.max_bytes, 1, 50_000_000),
            ("--max-record-depth", self.limits.max_depth, 1, _MAX_DEPTH),
            ("--max-rejected", 1 if self.max_rejected is None else self.max_rejected, 0, 1),
        ]
        if self.profiles is not None:
            limits.append(("--profiles-timeout", self.profiles.load_timeout_s, 1, 3600))
        for setting, value, minimum, maximum in limits:
            if not minimum <= value <= maximum:
                raise UsageError(f"{setting} is {value:.12g}: it has to be between {minimum:.12g} and {maximum:.12g}")
