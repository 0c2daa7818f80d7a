"""
The connection to a cluster: bootstrap servers, allowed client settings, their Java equivalents, masked secrets.

The configuration file has librdkafka's format: `name=value` lines, comments that begin with `#` or `!`, and optional
blanks around name and value. There are no escapes and no continuation lines. Only listed settings are allowed:
librdkafka has others that load code, print passwords or break exactly-once (its CONFIGURATION.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brew import sasl
from brew.errors import Refused, UsageError

MASK = "***"


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A value that can be pickled and compared; `repr`, `str` and formatting show only the mask."""

    _value: str

    def reveal(self) -> str:
        """Return the value itself; call it only to pass the value to a client library."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)


MAX_BYTES = 64 * 1024
PASSWORD, KEY_PASSWORD = "sasl.password", "ssl.key.password"
CA, CERTIFICATE, KEY = "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"
PROTOCOL, MECHANISM, USERNAME = "security.protocol", "sasl.mechanism", "sasl.username"
SECRETS = frozenset({PASSWORD, KEY_PASSWORD, sasl.CLIENT_SECRET})
FILES = frozenset({CA, CERTIFICATE, KEY, sasl.TOKEN_CA})
SCRAM = ("SCRAM-SHA-512", "SCRAM-SHA-256")
_BY_PASSWORD = (*SCRAM, "PLAIN")
MECHANISMS = (*_BY_PASSWORD, sasl.OAUTHBEARER, sasl.GSSAPI)

# Setting -> its allowed values, or None for any value.
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
    **sasl.ALLOWED,
}

_OPTION = "it is set by a program's own options (--help)"
_PROMISE = "exactly-once depends on it; leave it out, the programs set what they need"
_TRANSACTIONS = f"it controls transactions: {_PROMISE}"
_POSITION = f"it controls the position: {_PROMISE}"
_CODE = "it loads or runs foreign code; leave it out"
_JAVA = (
    "it is a name of the Java client; this file uses librdkafka's names, and Spark's consumer gets the same settings:"
)
REFUSED: Mapping[str, str] = {
    "isolation.level": f"at read_uncommitted aborted records would count: {_PROMISE}",
    "transactional.id": _TRANSACTIONS,
    "transaction.timeout.ms": "set it with --transaction-timeout, which sets all dependent time-outs, too",
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
    "partitioner": f"it selects the output partition: {_PROMISE}",
    "enable.auto.commit": _POSITION,
    "auto.commit.enable": _POSITION,
    "auto.commit.interval.ms": _POSITION,
    "enable.auto.offset.store": _POSITION,
    "auto.offset.reset": f"a gap must be an error, never a reset: {_PROMISE}",
    "enable.partition.eof": _POSITION,
    "check.crcs": f"broken records would pass: {_PROMISE}",
    "allow.auto.create.topics": "a mistyped name would create a topic; leave it out",
    "group.id": "set it with --group (GROUP_ID)",
    "group.instance.id": "set it with --group (GROUP_ID)",
    "bootstrap.servers": "set it with --bootstrap (BOOTSTRAP)",
    "metadata.broker.list": "set it with --bootstrap (BOOTSTRAP)",
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
# Why the other values of a listed setting are refused.
_WEAKER: Mapping[str, str] = {
    PROTOCOL: "SASL_PLAINTEXT would send the password in clear text",
    "ssl.endpoint.identification.algorithm": "the owner of any certificate of that authority could pose as a broker",
    "enable.ssl.certificate.verification": "anybody could pose as a broker",
}


@dataclass(frozen=True, slots=True)
class ConfigLine:
    """One setting of the file, with its line number."""

    number: int
    value: str


def parse(text: str, file: str) -> dict[str, ConfigLine]:
    """
    Parse a file's settings and check names and values; ``file`` is the name to show in messages.

    Raises:
        UsageError: a malformed line, a duplicate setting, or a name or value that is not allowed; includes the line.
    """
    settings: dict[str, ConfigLine] = {}
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        location = f"{file}:{number}"
        if not equals or not name:
            raise UsageError(f"{location}: this is not a setting; write name=value, and begin a comment with #")
        _check_name(location, name)
        if name in settings:
            raise UsageError(f"{location}: {name} stands in line {settings[name].number}, too; leave one of them")
        settings[name] = ConfigLine(number, _checked_value(location, name, value))
    return settings


def _check_name(location: str, name: str) -> None:
    if name in REFUSED:
        raise UsageError(f"{location}: {name}={MASK} is refused: {REFUSED[name]}")
    if name not in ALLOWED:
        shown = name if name.isprintable() and len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]!r}..."
        raise UsageError(
            f"{location}: {shown}={MASK} is not on the list of settings that are let through: {_allowed_names()}"
        )


_MAX_NAME = 60


def _allowed_names() -> str:
    return ", ".join(ALLOWED)


def _checked_value(location: str, name: str, value: str) -> str:
    if not value:
        raise UsageError(f"{location}: {name} has no value; write one, or leave the line out")
    if not value.isprintable():
        raise UsageError(f"{location}: {name}={MASK} holds a control character; take it out")
    choices = ALLOWED[name]
    if value.startswith("${"):
        return value
    if (wrong := sasl.wrong_value(name, value)) is not None:
        raise UsageError(f"{location}: {name}={MASK} is refused: {wrong}")
    if choices is None:
        return value
    for choice in choices:
        if value.casefold() == choice.casefold():
            return choice
    risk = _WEAKER.get(name)
    needed = choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    raise UsageError(f"{location}: {name}={MASK} is refused: it has to be {needed}" + (f"; {risk}" if risk else ""))


def check_together(settings: Mapping[str, ConfigLine], file: str) -> None:
    """
    Check that the settings are consistent with each other.

    Raises:
        UsageError: a setting is missing or would have no effect; names the file, the setting and what to do.
    """
    protocol = settings[PROTOCOL].value if PROTOCOL in settings else "PLAINTEXT"
    mechanism = next((name for name in (MECHANISM, "sasl.mechanisms") if name in settings), None)
    login = sorted(name for name in settings if name.startswith("sasl."))
    ssl = sorted(name for name in settings if name.startswith("ssl."))
    if protocol == "SASL_SSL":
        missing = _missing(settings, None if mechanism is None else settings[mechanism].value)
        if missing:
            raise UsageError(f"{file}: {PROTOCOL}=SASL_SSL needs {', '.join(missing)}, too")
    elif login:
        raise UsageError(
            f"{file}:{settings[login[0]].number}: {login[0]} has no effect with {PROTOCOL}={protocol}; set SASL_SSL"
        )
    if protocol == "PLAINTEXT" and ssl:
        raise UsageError(
            f"{file}:{settings[ssl[0]].number}: {ssl[0]} has no effect with {PROTOCOL}=PLAINTEXT; set SSL or SASL_SSL"
        )
    pair = {name for name in (CERTIFICATE, KEY) if name in settings}
    if len(pair) == 1:
        have, lack = pair.pop(), ({CERTIFICATE, KEY} - set(settings)).pop()
        raise UsageError(f"{file}:{settings[have].number}: {have} needs {lack}, too")


def _missing(found: Mapping[str, ConfigLine], mechanism: str | None) -> list[str]:
    if mechanism in {sasl.OAUTHBEARER, sasl.GSSAPI}:
        return sasl.missing(mechanism, {name: line.value for name, line in found.items()})
    needed = (USERNAME, PASSWORD) if mechanism else (USERNAME, PASSWORD, MECHANISM)
    return [name for name in needed if name not in found]


CLIENT_CONFIG = "BREW_CLIENT_CONFIG"
"""The environment variable for `--client-config`; programs pass it on to the programs they start."""


@dataclass(frozen=True)
class Connection:
    """
    The bootstrap servers, and librdkafka settings (by their dotted names) for every client.

    ``secrets``: settings that are never printed. ``source``: the `--client-config` file that the settings come from.
    """

    bootstrap: str
    properties: Mapping[str, str | int | bool] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    source: str | None = None

    def settings(self) -> dict[str, str | int | bool]:
        """Return all settings for a client's constructor, with secrets in clear text."""
        return {**self.properties, **{name: secret.reveal() for name, secret in self.secrets.items()}}

    @property
    def user(self) -> str:
        """Return the client's principal as ACLs name it."""
        named = self.properties.get("sasl.username")
        if named is not None:
            return f"User:{named}"
        if (owner := sasl.owner(self.properties)) is not None:
            return owner
        if "ssl.certificate.location" in self.properties:
            return f"the owner of {self.properties['ssl.certificate.location']}"
        return "User:ANONYMOUS"


_MODULES = {
    **dict.fromkeys(SCRAM, "org.apache.kafka.common.security.scram.ScramLoginModule"),
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
}
_JAVA_NAMES = {"client.id": "client.id", PROTOCOL: "security.protocol"}
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


def java_settings(connection: Connection) -> dict[str, str]:
    """
    Return the settings for a Java client, without the bootstrap servers. Secrets are in clear text: do not store it.

    Certificates are passed as PEM (KIP-651). The authority's is passed as a file, which librdkafka needs on every
    machine anyway; the client's as text, since a Java client takes certificate and key together.

    Raises:
        Refused: the key has a format that Java can't read.
    """
    properties = connection.settings()
    settings = {java: str(properties[name]) for name, java in _JAVA_NAMES.items() if name in properties}
    mechanism = properties.get(MECHANISM) or properties.get("sasl.mechanisms")
    if mechanism is not None:
        if mechanism in _BY_PASSWORD:
            settings["sasl.mechanism"] = str(mechanism)
            settings["sasl.jaas.config"] = jaas(str(mechanism), str(properties[USERNAME]), str(properties[PASSWORD]))
        else:
            settings |= sasl.java_settings(str(mechanism), properties)
    if CA in properties:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(properties[CA])}
    if CERTIFICATE in properties:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(str(properties[CERTIFICATE])),
            "ssl.keystore.key": _key(str(properties[KEY])),
        }
        if KEY_PASSWORD in properties:
            settings["ssl.key.password"] = str(properties[KEY_PASSWORD])
    return settings


def jaas(mechanism: str, user: str, password: str) -> str:
    """Return a JAAS login entry for a user and password."""
    return f"{_MODULES[mechanism]} required username={sasl.quoted(user)} password={sasl.quoted(password)};"


def java_properties(settings: Mapping[str, str]) -> str:
    """Return the settings as a Java `Properties` file, with any characters escaped."""
    return "".join(f"{_escaped(name, ':= #!')}={_escaped(value, '')}\n" for name, value in settings.items())


def _escaped(text: str, special: str) -> str:
    escaped = []
    for index, character in enumerate(text):
        if character in "\\" + special or (character == " " and index == 0):
            escaped.append("\\" + character)
        elif character in _ESCAPES:
            escaped.append(_ESCAPES[character])
        elif " " <= character <= "~":
            escaped.append(character)
        else:
            units = character.encode("utf-16-be")
            escaped += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(escaped)


_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise Refused(f"{path} can't be read any more: {error.strerror}; --client-config names it") from error


def _key(path: str) -> str:
    text = _text(path)
    if not any(begin in text for begin in _PKCS8):
        raise Refused(
            f"{KEY}={path}: Spark's Java consumer reads PKCS #8 keys only (-----BEGIN PRIVATE KEY-----); "
            f"`openssl pkcs8 -topk8 -in {path}` writes one, or use --reader direct"
        )
    return text
