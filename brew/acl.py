"""
The minimal ACLs of each program, and which ACL is missing when a broker refuses a request; pure.

docs/SECURITY.md has the same rows, and a test compares the two. Each row was found by removing it: ``seen`` is what the
program then reports (tests/integration/test_acls.py, `proof campaign --cells F36*`).

Refusals are recognized by the text of the error: errors come from two client libraries and from Java, and Spark's
workers send them as JSON.
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from brew import names
from brew.cluster import OFFSETS_TOPIC

SCAN_GROUP = "brew-scan"
"""The group of readers of whole logs. They commit nothing, but librdkafka looks up the group's coordinator."""
CLAIMS_GROUP = "brew-claims"
"""The same, for claims topics."""


class Purpose(enum.StrEnum):
    """Features that need more rights than `RIGHTS`, in the wording of docs/SECURITY.md."""

    MAKE = "missing topics made by the run itself"
    PROFILES = "`TIERS=profiles`"
    SHARE = "several drivers (`--stand-by`, `--share`)"
    OWNERSHIP = "`downstream ... --ownership claims`"
    OTHER_GROUP = "`downstream` with a `--group` that does not begin with `brew-`"
    TOTALS = "`downstream totals`"
    CALL = "`downstream call`"
    RECEIVE = "`downstream receive`"
    UPSTREAM = "naming who upstream holds back the input"
    COMMITS = "commits of the group, checked by `proof verify`"
    NAMES = "naming who writes an open transaction (`lag`, `explain`, `doctor`, `ui`, `top`)"
    OFFSETS = "where ranges and positions were, over time (`explain`, `xray`)"
    ABORT = "`doctor --abort` of the pipeline's own transactions"
    REPLAY = "`dlq replay`"


class Kind(enum.StrEnum):
    """A resource type, by Kafka's name."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"
    CLUSTER = "cluster"


class Operation(enum.StrEnum):
    """An operation, by Kafka's name. Read and Write imply Describe."""

    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DESCRIBE = "Describe"
    DESCRIBE_CONFIGS = "DescribeConfigs"


@dataclass(frozen=True, slots=True)
class Right:
    """
    One ACL. ``name`` is a template that `ResourceNames` fills in; with ``prefix`` it is a prefix of resource names.

    ``seen``: part of the error message when the ACL is missing; empty if the only sign is a missing answer.
    ``purpose``: the feature that needs it; None if every run of the program does.
    """

    user: str
    kind: Kind
    name: str
    operation: Operation
    why: str
    seen: str = ""
    prefix: bool = False
    purpose: Purpose | None = None

    def for_resources(self, resources: ResourceNames) -> Right:
        """Return the row with the actual resource names."""
        filled = self.name.format_map(resources.fields())
        return replace(self, name=filled)

    def command(self, principal: str) -> str:
        """Return the `kafka-acls` command that grants this right."""
        arguments = ["kafka-acls", "--add", "--allow-principal", principal, "--operation", self.operation.value]
        arguments += ["--resource-pattern-type", "prefixed"] if self.prefix else []
        return shlex.join([*arguments, f"--{self.kind.value}", *([] if self.kind is Kind.CLUSTER else [self.name])])

    def __str__(self) -> str:
        star = "*" if self.prefix else ""
        return f"{self.operation} on {self.kind.value} {self.name}{star}"


@dataclass(frozen=True, slots=True)
class ResourceNames:
    """The resources of one pipeline and its readers; ``downstream`` and ``upstream`` are name prefixes."""

    input: str = names.INPUT_TOPIC
    output: str = names.OUTPUT_TOPIC
    dead_letter: str = names.DEAD_LETTER_TOPIC
    group: str = names.GROUP_ID
    profiles: str = names.CUSTOMERS_TOPIC
    claims: str = names.CLAIMS_TOPIC
    totals: str = names.TOTALS_TOPIC
    downstream: str = "brew-"
    upstream: str = "seed:"
    source_group: str = "brew-source"

    def fields(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}


_PIPELINE, _DOWNSTREAM, _PROOF, _OPERATOR = "pipeline", "downstream", "proof-reader", "operator"
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
    Right(_OPERATOR, Kind.TOPIC, "{input}", Operation.READ, "looks at the log: what is left, and whose", _TOPIC_DENIED),
    Right(_OPERATOR, Kind.TOPIC, "{output}", Operation.READ, "at what came of it", _TOPIC_DENIED),
    Right(_OPERATOR, Kind.TOPIC, "{dead_letter}", Operation.READ, "at what was rejected", _TOPIC_DENIED),
    Right(_OPERATOR, Kind.TOPIC, "{dead_letter}.replayed", Operation.READ, "at what was written back", _TOPIC_DENIED),
    Right(_OPERATOR, Kind.GROUP, "{group}", Operation.DESCRIBE, "at the group's position", _GROUP_DENIED),
    Right(_OPERATOR, Kind.GROUP, SCAN_GROUP, Operation.DESCRIBE, "`dlq` reads records; no commits", _GROUP_DENIED),
)
"""All rights, in the order of docs/SECURITY.md."""


def _extra(purpose: Purpose, user: str, *rows: tuple[Kind, str, str, str]) -> Iterator[Right]:
    """Expand rows of (kind, name, comma-separated operations, reason); a trailing star makes the name a prefix."""
    for kind, name, operations, why in rows:
        for operation in operations.split(","):
            prefix = name.endswith("*")
            yield Right(user, kind, name.removesuffix("*"), Operation(operation), why, "", prefix, purpose)


_CLAIMS = (
    (Kind.TOPIC, "{claims}", "Read,Write", "claims, heartbeats, releases"),
    (Kind.TOPIC, "{claims}", "Create", "only where the program is to make it"),
    (Kind.GROUP, CLAIMS_GROUP, "Describe", "its reader's group; no commits"),
)
_MADE = "only where the program is to make it"
COMMITS_READ = Right(
    _PROOF,
    Kind.TOPIC,
    OFFSETS_TOPIC,
    Operation.READ,
    "compares each commit with the records before it; without it that check says that it could not look",
    f"lacks Read on topic {OFFSETS_TOPIC}",
    purpose=Purpose.COMMITS,
)

EXTRA_RIGHTS = (
    *_extra(
        Purpose.MAKE,
        _PIPELINE,
        (Kind.TOPIC, "{output}", "Create", "makes it"),
        (Kind.TOPIC, "{dead_letter}", "Create", "makes it"),
        (Kind.TOPIC, "{input}", "DescribeConfigs", "with room for what the input takes"),
    ),
    *_extra(
        Purpose.PROFILES,
        _PIPELINE,
        (Kind.TOPIC, "{profiles}", "Read", "reads the profiles"),
        (Kind.TOPIC, "{profiles}", "DescribeConfigs", "whether old ones are kept"),
    ),
    *_extra(Purpose.SHARE, _PIPELINE, *_CLAIMS),
    *_extra(Purpose.OWNERSHIP, _DOWNSTREAM, *_CLAIMS),
    *_extra(Purpose.OTHER_GROUP, _DOWNSTREAM, (Kind.GROUP, SCAN_GROUP, "Describe", "looks at whole logs; no commits")),
    *_extra(
        Purpose.TOTALS,
        _DOWNSTREAM,
        (Kind.TOPIC, "{totals}", "Read,Write", "results, and their comparison"),
        (Kind.TOPIC, "{totals}", "Create", _MADE),
        (Kind.TOPIC, "{downstream}*", "Read,Write", "deltas and changelog"),
        (Kind.TOPIC, "{downstream}*", "Create", _MADE),
        (Kind.TRANSACTIONAL_ID, "{downstream}*", "Write", "one transaction per range"),
    ),
    *_extra(
        Purpose.CALL,
        _DOWNSTREAM,
        (Kind.TOPIC, "{dead_letter}", "Write", "writes what nobody takes"),
        (Kind.TOPIC, "{dead_letter}", "Create", _MADE),
        (Kind.TOPIC, "{output}", "DescribeConfigs", "how large a record may be"),
    ),
    *_extra(Purpose.RECEIVE, _DOWNSTREAM, (Kind.TOPIC, "{output}", "DescribeConfigs", "how long ids have to be kept")),
    *_extra(
        Purpose.UPSTREAM,
        _PIPELINE,
        (Kind.TRANSACTIONAL_ID, "{upstream}*", "Describe", "its id; without it an open transaction has a number only"),
    ),
    COMMITS_READ,
    *_extra(Purpose.NAMES, _OPERATOR, (Kind.TRANSACTIONAL_ID, "{group}:*", "Describe", "its id, age and time-out")),
    *_extra(Purpose.OFFSETS, _OPERATOR, (Kind.TOPIC, OFFSETS_TOPIC, "Read", "each commit of the group")),
    *_extra(Purpose.ABORT, _OPERATOR, (Kind.TRANSACTIONAL_ID, "{group}:*", "Write", "fences the id")),
    *_extra(
        Purpose.REPLAY,
        _OPERATOR,
        (Kind.TOPIC, "{input}", "Write,DescribeConfigs", "records are written back, if they fit"),
        (Kind.TOPIC, "{dead_letter}.replayed", "Write,DescribeConfigs", "marks what is out"),
        (Kind.TOPIC, "{dead_letter}.replayed", "Create", "the first time"),
        (Kind.GROUP, "{group}.dlq-replay", "Read", "its own position"),
        (Kind.TRANSACTIONAL_ID, "{group}.dlq-replay:*", "Write", "one transaction per letter"),
    ),
)
"""The additional rights that each `Purpose` needs."""

_SINK = "sink"
_OF_QUERY = "of the query's source, for lag tools, where `source_group` is set"
SINK_RIGHTS = (
    Right(_SINK, Kind.TOPIC, "{output}", Operation.WRITE, "writes the rows", _TOPIC_DENIED),
    Right(_SINK, Kind.TOPIC, "{output}", Operation.READ, "the position is committed under it", _TOPIC_DENIED),
    Right(_SINK, Kind.GROUP, "{group}", Operation.READ, "locate and send-offsets: the position", _GROUP_DENIED),
    Right(
        _SINK,
        Kind.TRANSACTIONAL_ID,
        "{group}:",
        Operation.WRITE,
        "fence, produce, send-offsets and commit",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        prefix=True,
    ),
    Right(_SINK, Kind.GROUP, "{source_group}", Operation.READ, f"send-offsets: those {_OF_QUERY}", _GROUP_DENIED),
    Right(_SINK, Kind.TOPIC, "{input}", Operation.READ, f"send-offsets: those {_OF_QUERY}", _TOPIC_DENIED),
)
"""The rights of an exactly-once sink, in either write mode: ``group`` is its name, ``output`` its topic."""

USERS = tuple(dict.fromkeys(right.user for right in RIGHTS))


def rights_of(user: str, resources: ResourceNames | None = None) -> list[Right]:
    """Return the rights of one user, with the default resource names if ``resources`` is None."""
    return [right.for_resources(resources or ResourceNames()) for right in RIGHTS if right.user == user]


def extra_rights(user: str, purposes: Iterable[Purpose], resources: ResourceNames | None = None) -> list[Right]:
    """Return the rights that one user needs in addition for ``purposes``."""
    wanted = frozenset(purposes)
    return [
        right.for_resources(resources or ResourceNames())
        for right in EXTRA_RIGHTS
        if right.user == user and right.purpose in wanted
    ]


def _rows(rights: Iterable[Right]) -> Iterator[str]:
    for right in rights:
        error = f"`{right.seen}`" if right.seen else "-"
        yield f"| `{right.user}` | {_resource(right)} | {right.operation} | {right.why} | {error} |"


def _resource(right: Right) -> str:
    name = re.sub(r"\{(\w+)\}", lambda match: f"<{match[1].replace('_', '-')}>", right.name)
    return f"{right.kind} `{name}{'*' if right.prefix else ''}`"


def rights_table() -> str:
    """Return the rows of `RIGHTS` as in docs/SECURITY.md."""
    return "\n".join(_rows(RIGHTS))


def sink_rights_table() -> str:
    """Return the rows of `SINK_RIGHTS` as in docs/SECURITY.md."""
    return "\n".join(_rows(SINK_RIGHTS))


def extra_rights_table() -> str:
    """Return the rows of `EXTRA_RIGHTS` as in docs/SECURITY.md: one row for all operations on a resource."""
    operations_of: dict[tuple[Purpose | None, str, str, str], list[str]] = {}
    for right in EXTRA_RIGHTS:
        operations_of.setdefault((right.purpose, right.user, _resource(right), right.why), []).append(right.operation)
    return "\n".join(
        f"| {purpose} | `{user}` | {resource} | {', '.join(operations)} | {why} |"
        for (purpose, user, resource, why), operations in operations_of.items()
    )


_TOPIC = re.compile(r"\bTOPIC_AUTHORIZATION_FAILED|\bTopicAuthorization|Not authorized to access topics")
_GROUP = re.compile(r"GROUP_AUTHORIZATION_FAILED|GroupAuthorization")
_TRANSACTION = re.compile(r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED|TransactionalIdAuthorization")
_CLUSTER = re.compile(r"CLUSTER_AUTHORIZATION_FAILED|ClusterAuthorization")
# A client that may write to any topic needs no IdempotentWrite (KIP-679); any other gets this error first.
_NO_WRITE = re.compile(r"idempotence PID\b.*CLUSTER_AUTHORIZATION_FAILED")
_LOGIN = re.compile(r"_AUTHENTICATION\b|SaslAuthenticationException|SASL authentication error|SaslAuthenticationFailed")
_TLS = re.compile(r"\b_SSL\b|SslAuthenticationException|SSL handshake failed|CERTIFICATE_VERIFY_FAILED")
_WRITES = re.compile(r"\b(?:produce|begin|send-offsets|commit): |\bappend to ")
_REFUSED = re.compile(r"\(no Write on topic ([\w., -]+)\)")  # the wording of `brew.kafka.transaction`
_READS = re.compile(r"\b(?:scan|read) of ")
_CONFIG = re.compile(r"configuration of (?:topic )?'?([\w.-]*[\w-])")
_NO_TOPIC = re.compile(r"topic '([\w.-]+)' is missing and could not be made")
_OTHER = re.compile(r"\b(?:topic|scan of|read of(?! topic)) '?([\w.-]*[\w-])")
_FENCE = re.compile(r"\bfence of (\S+): ")
_SENT = re.compile(r"\bsend-offsets of group (.+?) in topic ([\w.-]*[\w-]): ")  # the wording of a sink
_AS = re.compile(r"\bas ([\w.-]*[\w-]): ")
# The wording of `brew.preflight.checks`.
_PREFLIGHT = re.compile(r"this principal on (topic|group) (\S+) \(kafka-acls\.sh\)\): ([A-Z_, ]+) is not granted")
WRITTEN = "written"
"""Prefix of a topic's role in the ``names`` of `advice` if the command writes the topic and does not read it."""
_OPERATION_NAMES = {one.replace("Configs", "_Configs").upper(): one for one in Operation}


class Denial(enum.StrEnum):
    """The kind of a refusal."""

    LOGIN = "login"
    TLS = "tls"
    RIGHT = "right"


def denial_in(text: str) -> Denial | None:
    """Return the kind of refusal that an error's text reports, or None for any other error."""
    if any(pattern.search(text) for pattern in (_TOPIC, _GROUP, _TRANSACTION, _CLUSTER, _PREFLIGHT)):
        return Denial.RIGHT
    if _LOGIN.search(text):
        return Denial.LOGIN
    return Denial.TLS if _TLS.search(text) else None


def advice(
    text: str, user: str, names: Mapping[str, str], source: str | None, *, read_only: bool = False
) -> str | None:
    """
    Return one clause on what to do about a refusal, or None if ``text`` reports none.

    ``names`` are the program's own: topics by role (`input`, `output`, ..., see `WRITTEN`) and `group`. ``source`` is
    the file of `--client-config`. ``read_only``: the program never commits an offset.
    """
    kind, file = denial_in(text), source or "the file of --client-config (there is none)"
    if kind is None:
        return None
    if kind is Denial.LOGIN:
        return f"the brokers do not accept {user} with this password; check sasl.* in {file}"
    if kind is Denial.TLS:
        return (
            f"this client and a broker do not trust each other; check ssl.* in {file}: who signed the broker's "
            "certificate, whether a certificate has expired, and whether it has the broker's name"
        )
    principal = user if user.startswith("User:") else "User:NAME"
    missing = " and ".join(
        f"{right}: `{right.command(principal)}`" for right in _missing(text, names, read_only=read_only)
    )
    return f"{user} lacks {missing or 'a right'}; docs/SECURITY.md lists all that are needed"


def _missing(text: str, names: Mapping[str, str], *, read_only: bool) -> list[Right]:
    """Return the missing rights, as far as the error's text names them."""
    group = names.get("group", "")
    if _TRANSACTION.search(text) and (match := _FENCE.search(text)) is not None:
        return [Right("", Kind.TRANSACTIONAL_ID, match[1], Operation.WRITE, "")]
    if _TRANSACTION.search(text):
        return [Right("", Kind.TRANSACTIONAL_ID, f"{group}:", Operation.WRITE, "", prefix=True)]
    if match := _SENT.search(text):
        kind = Kind.GROUP if _GROUP.search(text) else Kind.TOPIC
        return [Right("", kind, match[1] if kind is Kind.GROUP else match[2], Operation.READ, "")]
    if match := _PREFLIGHT.search(text):
        kind, name = Kind(match[1]), match[2]
        return [Right("", kind, name, _OPERATION_NAMES[one.strip()], "") for one in match[3].split(",")]
    if _GROUP.search(text) and "scan of" in text:
        return [Right("", Kind.GROUP, SCAN_GROUP, Operation.DESCRIBE, "")]
    if _GROUP.search(text):
        if (match := _AS.search(text)) is not None and match[1] != group:
            group, read_only = match[1], True  # a reader's group, which commits nothing
        return [Right("", Kind.GROUP, group, Operation.DESCRIBE if read_only else Operation.READ, "")] if group else []
    if not _TOPIC.search(text) and not _NO_WRITE.search(text):
        return [Right("", Kind.CLUSTER, "kafka-cluster", Operation.CREATE, "")]
    if match := _NO_TOPIC.search(text):
        return [Right("", Kind.TOPIC, match[1], Operation.CREATE, "")]
    return [Right("", Kind.TOPIC, name, operation, "") for name, operation in _topics(text, names)]


def _topics(text: str, names: Mapping[str, str]) -> list[tuple[str, Operation]]:
    """Return the topics named in the text with the missing operation, or the written topics if it names none."""
    if match := _REFUSED.search(text):
        return [(name, Operation.WRITE) for name in match[1].split(", ")]
    topics = {role: name for role, name in names.items() if role != "group"}
    written = {name for role, name in topics.items() if role.startswith(WRITTEN)}
    named = {name for name in topics.values() if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text)}
    if not named and (match := _CONFIG.search(text) or _OTHER.search(text)):
        named = {match[1]}  # a topic that no option names, such as the replay log of dead letters
    if _CONFIG.search(text):
        return [(name, Operation.DESCRIBE_CONFIGS) for name in sorted(named or set(topics.values()))]
    if not _WRITES.search(text):
        readable = sorted(named) or list(dict.fromkeys(topics.values()))
        to_write = set() if _READS.search(text) else written
        return [(topic, Operation.WRITE if topic in to_write else Operation.READ) for topic in readable]
    outputs = written or {name for role, name in topics.items() if role.startswith(("output", "also", "dead_letter"))}
    return [(name, Operation.WRITE) for name in sorted(named or outputs or set(topics.values()))]
