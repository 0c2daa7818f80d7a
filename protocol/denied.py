"""
When the brokers say no: recognise it in an error's words, and say who lacks what, and what to type; pure.

Errors are text by the time people see them: they come from two client libraries and from Java, and travel from Spark's
workers as JSON.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping

from protocol.rights import SCAN_GROUP, Kind, Operation, Right

_TOPIC = re.compile(r"\bTOPIC_AUTHORIZATION_FAILED|\bTopicAuthorization|Not authorized to access topics")
_GROUP = re.compile(r"GROUP_AUTHORIZATION_FAILED|GroupAuthorization")
_TRANSACTION = re.compile(r"TRANSACTIONAL_ID_AUTHORIZATION_FAILED|TransactionalIdAuthorization")
_CLUSTER = re.compile(r"CLUSTER_AUTHORIZATION_FAILED|ClusterAuthorization")
# Who may write to some topic needs no IdempotentWrite (KIP-679): without any, this is the first no.
_NO_WRITE = re.compile(r"idempotence PID\b.*CLUSTER_AUTHORIZATION_FAILED")
_LOGIN = re.compile(r"_AUTHENTICATION\b|SaslAuthenticationException|SASL authentication error|SaslAuthenticationFailed")
_TLS = re.compile(r"\b_SSL\b|SslAuthenticationException|SSL handshake failed|CERTIFICATE_VERIFY_FAILED")
_WRITES = re.compile(r"\b(?:produce|begin|send-offsets|commit): |\bappend to ")
_REFUSED = re.compile(r"\(no Write on topic ([\w., -]+)\)")  # as `protocol.kafka.refusals` says it
_READS = re.compile(r"\b(?:scan|read) of ")
_CONFIG = re.compile(r"configuration of (?:topic )?'?([\w.-]*[\w-])")
_NO_TOPIC = re.compile(r"topic '([\w.-]+)' is missing and could not be made")
_OTHER = re.compile(r"\b(?:topic|scan of|read of(?! topic)) '?([\w.-]*[\w-])")
_FENCE = re.compile(r"\bfence of (\S+): ")
_AS = re.compile(r"\bas ([\w.-]*[\w-]): ")
# As `pipeline.preflight.rights` says it.
_PREFLIGHT = re.compile(r"this principal on (topic|group) (\S+) \(kafka-acls\.sh\)\): ([A-Z_, ]+) is not granted")
WRITTEN = "written"
"""What the roles of topics begin with that a command writes and does not read, as `advice` is told names."""
_OPERATIONS = {one.replace("Configs", "_Configs").upper(): one for one in Operation}


class No(enum.StrEnum):
    """Which no it is."""

    LOGIN = "login"
    TLS = "tls"
    RIGHT = "right"


def no(text: str) -> No | None:
    """What kind of refusal an error's words tell of; None for all other errors."""
    if any(one.search(text) for one in (_TOPIC, _GROUP, _TRANSACTION, _CLUSTER, _PREFLIGHT)):
        return No.RIGHT
    if _LOGIN.search(text):
        return No.LOGIN
    return No.TLS if _TLS.search(text) else None


def advice(
    text: str, user: str, names: Mapping[str, str], source: str | None, *, looks_only: bool = False
) -> str | None:
    """
    What to do about a refusal, as one clause; None where there was none.

    ``names`` are a program's own: topics by their roles (`input`, `output`, ..., see `WRITTEN`) and `group`.
    ``source`` is the file of `--client-config`. ``looks_only``: the program never moves a position.
    """
    kind, file = no(text), source or "the file of --client-config (there is none)"
    if kind is None:
        return None
    if kind is No.LOGIN:
        return f"the brokers do not take {user} with this password; look at sasl.* in {file}"
    if kind is No.TLS:
        return (
            f"no trust between this client and a broker; look at ssl.* in {file}: who signed the broker's certificate, "
            "whether one has expired, and whether the broker's name is in it"
        )
    principal = user if user.startswith("User:") else "User:NAME"
    told = " and ".join(f"{one}: `{one.command(principal)}`" for one in _missing(text, names, looks_only=looks_only))
    return f"{user} lacks {told or 'a right'}; docs/SECURITY.md has all that are needed"


def _missing(text: str, names: Mapping[str, str], *, looks_only: bool) -> list[Right]:
    """The rights that the words speak of, as far as they tell."""
    group = names.get("group", "")
    if _TRANSACTION.search(text) and (found := _FENCE.search(text)) is not None:
        return [Right("", Kind.TRANSACTIONAL_ID, found[1], Operation.WRITE, "")]
    if _TRANSACTION.search(text):
        return [Right("", Kind.TRANSACTIONAL_ID, f"{group}:", Operation.WRITE, "", prefix=True)]
    if found := _PREFLIGHT.search(text):
        kind, name = Kind(found[1]), found[2]
        return [Right("", kind, name, _OPERATIONS[one.strip()], "") for one in found[3].split(",")]
    if _GROUP.search(text) and "scan of" in text:
        return [Right("", Kind.GROUP, SCAN_GROUP, Operation.DESCRIBE, "")]
    if _GROUP.search(text):
        if (found := _AS.search(text)) is not None and found[1] != group:
            group, looks_only = found[1], True  # the group of a reader that commits nothing
        return [Right("", Kind.GROUP, group, Operation.DESCRIBE if looks_only else Operation.READ, "")] if group else []
    if not _TOPIC.search(text) and not _NO_WRITE.search(text):
        return [Right("", Kind.CLUSTER, "kafka-cluster", Operation.CREATE, "")]
    if found := _NO_TOPIC.search(text):
        return [Right("", Kind.TOPIC, found[1], Operation.CREATE, "")]
    return [Right("", Kind.TOPIC, name, operation, "") for name, operation in _topics(text, names)]


def _topics(text: str, names: Mapping[str, str]) -> list[tuple[str, Operation]]:
    """The topics that the words speak of, and what is missing there; what a command writes, where they name none."""
    if found := _REFUSED.search(text):
        return [(name, Operation.WRITE) for name in found[1].split(", ")]
    topics = {role: name for role, name in names.items() if role != "group"}
    written = {name for role, name in topics.items() if role.startswith(WRITTEN)}
    named = {name for name in topics.values() if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text)}
    if not named and (found := _CONFIG.search(text) or _OTHER.search(text)):
        named = {found[1]}  # no option names it, such as the marks beside dead letters
    if _CONFIG.search(text):
        return [(name, Operation.DESCRIBE_CONFIGS) for name in sorted(named or set(topics.values()))]
    if not _WRITES.search(text):
        told = sorted(named) or list(dict.fromkeys(topics.values()))
        meant = set() if _READS.search(text) else written
        return [(one, Operation.WRITE if one in meant else Operation.READ) for one in told]
    ours = written or {name for role, name in topics.items() if role in {"output", "dead_letter"}}
    return [(name, Operation.WRITE) for name in sorted(named or ours or set(topics.values()))]
