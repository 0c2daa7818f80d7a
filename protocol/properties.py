"""
What a client configuration file may say: a list of settings that are let through, and what the others would break.

The file is librdkafka's: `name=value` lines, `#` or `!` begins a comment, and blanks around name and value do not
count. Nothing else is special in a value: no escapes, no continued lines. Only what is on the list is let through
(librdkafka's CONFIGURATION.md has settings that load code, that print passwords, and that undo the promise).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import UsageError
from protocol.secrets import MASK

MAX_BYTES = 64 * 1024
PASSWORD, KEY_PASSWORD = "sasl.password", "ssl.key.password"
CA, CERTIFICATE, KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
PROTOCOL, MECHANISM, USERNAME = "security.protocol", "sasl.mechanism", "sasl.username"
SECRETS = frozenset({PASSWORD, KEY_PASSWORD})
FILES = frozenset({CA, CERTIFICATE, KEY})
SCRAM = ("SCRAM-SHA-512", "SCRAM-SHA-256")
MECHANISMS = (*SCRAM, "PLAIN")

# Name -> the only values that are let through; None: any.
ALLOWED: Mapping[str, tuple[str, ...] | None] = {
    PROTOCOL: ("SASL_SSL", "SSL", "PLAINTEXT"),
    MECHANISM: MECHANISMS,
    "sasl.mechanisms": MECHANISMS,
    USERNAME: None,
    PASSWORD: None,
    CA: None,
    CERTIFICATE: None,
    KEY: None,
    KEY_PASSWORD: None,
    "ssl.endpoint.identification.algorithm": ("https",),
    "enable.ssl.certificate.verification": ("true",),
    "client.id": None,
    "broker.address.family": ("any", "v4", "v6"),
    "socket.keepalive.enable": ("true", "false"),
}

_OPTION = "it belongs to a program's own options (--help)"
_PROMISE = "the promise rests on it; leave it out, the programs set what they need"
_TRANSACTIONS = f"it decides about transactions: {_PROMISE}"
_POSITION = f"it decides about the position: {_PROMISE}"
_CODE = "it loads or runs code of others; leave it out"
_JAVA = "it is Java's name; this file has librdkafka's, and Spark's Java consumer is told the same in its own words:"
REFUSED: Mapping[str, str] = {
    "isolation.level": f"at read_uncommitted aborted records would count: {_PROMISE}",
    "transactional.id": _TRANSACTIONS,
    "transaction.timeout.ms": "say it with --transaction-timeout, which sets all time-outs that hang on it",
    "acks": _PROMISE,
    "request.required.acks": _PROMISE,
    "enable.idempotence": _PROMISE,
    "enable.gapless.guarantee": _PROMISE,
    "retries": _PROMISE,
    "message.send.max.retries": _PROMISE,
    "max.in.flight": _PROMISE,
    "max.in.flight.requests.per.connection": _PROMISE,
    "message.timeout.ms": _PROMISE,
    "delivery.timeout.ms": _PROMISE,
    "request.timeout.ms": _PROMISE,
    "partitioner": f"it decides where records go: {_PROMISE}",
    "enable.auto.commit": _POSITION,
    "auto.commit.enable": _POSITION,
    "auto.commit.interval.ms": _POSITION,
    "enable.auto.offset.store": _POSITION,
    "auto.offset.reset": f"a gap must be an error and never a jump: {_PROMISE}",
    "enable.partition.eof": _POSITION,
    "check.crcs": f"broken records would pass: {_PROMISE}",
    "allow.auto.create.topics": "a mistyped name would make a topic; leave it out",
    "group.id": "say it with --group (GROUP_ID)",
    "group.instance.id": "say it with --group (GROUP_ID)",
    "bootstrap.servers": "say it with --bootstrap (BOOTSTRAP)",
    "metadata.broker.list": "say it with --bootstrap (BOOTSTRAP)",
    "plugin.library.paths": _CODE,
    "ssl.engine.location": _CODE,
    "ssl.providers": _CODE,
    "sasl.kerberos.kinit.cmd": _CODE,
    "debug": "it prints settings, passwords among them; leave it out",
    "log_level": _OPTION,
    "sasl.jaas.config": f"{_JAVA} write sasl.mechanism, sasl.username and sasl.password",
    "ssl.truststore.location": f"{_JAVA} write {CA} (PEM)",
    "ssl.truststore.password": f"{_JAVA} write {CA} (PEM)",
    "ssl.keystore.location": f"{_JAVA} write {CERTIFICATE} and {KEY} (PEM)",
    "ssl.keystore.password": f"{_JAVA} write {CERTIFICATE} and {KEY} (PEM)",
}
# What a listed setting's other values would do.
_WEAKER: Mapping[str, str] = {
    PROTOCOL: "SASL_PLAINTEXT would send the password for everyone on the way to read",
    "ssl.endpoint.identification.algorithm": "whoever holds any certificate of that authority could pose as a broker",
    "enable.ssl.certificate.verification": "anybody could pose as a broker",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One setting as it stands in the file."""

    number: int
    value: str


def parse(text: str, where: str) -> dict[str, Line]:
    """
    The settings of a file, each let through by name and value; ``where`` is what messages call the file.

    Raises:
        UsageError: a line that is none, a setting twice, off the list, or with a value off its list; with its line.
    """
    found: dict[str, Line] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        at = f"{where}:{number}"
        if not equals or not name:
            raise UsageError(f"{at}: this is no setting; write name=value, and begin a comment with #")
        _check_name(at, name)
        if name in found:
            raise UsageError(f"{at}: {name} stands in line {found[name].number}, too; leave one of them")
        found[name] = Line(number, _checked_value(at, name, value))
    return found


def _check_name(at: str, name: str) -> None:
    if name in REFUSED:
        raise UsageError(f"{at}: {name}={MASK} is refused: {REFUSED[name]}")
    if name.startswith("sasl.oauthbearer"):
        raise UsageError(f"{at}: {name}={MASK} is refused: tokens are not supported; use SCRAM, PLAIN or certificates")
    if name not in ALLOWED:
        known = name if name.isprintable() and len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]!r}..."
        raise UsageError(f"{at}: {known}={MASK} is not on the list of settings that are let through: {_list()}")


_LONGEST_NAME = 60


def _list() -> str:
    return ", ".join(ALLOWED)


def _checked_value(at: str, name: str, value: str) -> str:
    if not value:
        raise UsageError(f"{at}: {name} has no value; write one, or leave the line out")
    if not value.isprintable():
        raise UsageError(f"{at}: {name}={MASK} holds a control character; take it out")
    choices = ALLOWED[name]
    if choices is None or value.startswith("${"):
        return value
    for choice in choices:
        if value.casefold() == choice.casefold():
            return choice
    why = _WEAKER.get(name)
    needed = choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    raise UsageError(f"{at}: {name}={MASK} is refused: it has to be {needed}" + (f"; {why}" if why else ""))


def check_together(found: Mapping[str, Line], where: str) -> None:
    """
    Whether the settings make sense beside each other.

    Raises:
        UsageError: something is missing, or would be without effect; the file, the setting and what to do.
    """
    protocol = found[PROTOCOL].value if PROTOCOL in found else "PLAINTEXT"
    mechanism = next((name for name in (MECHANISM, "sasl.mechanisms") if name in found), None)
    sasl = sorted(name for name in found if name.startswith("sasl."))
    ssl = sorted(name for name in found if name.startswith("ssl."))
    if protocol == "SASL_SSL":
        missing = [name for name in (USERNAME, PASSWORD) if name not in found]
        missing += [] if mechanism else [MECHANISM]
        if missing:
            raise UsageError(f"{where}: {PROTOCOL}=SASL_SSL needs {', '.join(missing)}, too")
    elif sasl:
        raise UsageError(
            f"{where}:{found[sasl[0]].number}: {sasl[0]} has no effect with {PROTOCOL}={protocol}; set SASL_SSL"
        )
    if protocol == "PLAINTEXT" and ssl:
        raise UsageError(
            f"{where}:{found[ssl[0]].number}: {ssl[0]} has no effect with {PROTOCOL}=PLAINTEXT; set SSL or SASL_SSL"
        )
    pair = {name for name in (CERTIFICATE, KEY) if name in found}
    if len(pair) == 1:
        have, lack = pair.pop(), ({CERTIFICATE, KEY} - set(found)).pop()
        raise UsageError(f"{where}:{found[have].number}: {have} needs {lack}, too")
