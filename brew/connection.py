"""
Where a cluster is and how clients log in.

The settings a client may have, the same in Java's words, and secrets that print as `***`.

The file is librdkafka's: `name=value` lines, `#` or `!` begins a comment, and blanks around name and value do not
count. Nothing else is special in a value: no escapes, no continued lines. Only what is on the list is let through
(librdkafka's CONFIGURATION.md has settings that load code, that print passwords, and that undo the promise).
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
    """Carried in settings, pickled to Spark's workers, compared; `repr`, `str` and formats give the mask."""

    _value: str

    def reveal(self) -> str:
        """The value itself; called only where a client library is handed it."""
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
    **sasl.ALLOWED,
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
class ConfigLine:
    """One setting as it stands in the file."""

    number: int
    value: str


def parse(text: str, where: str) -> dict[str, ConfigLine]:
    """
    The settings of a file, each let through by name and value; ``where`` is what messages call the file.

    Raises:
        UsageError: a line that is none, a setting twice, off the list, or with a value off its list; with its line.
    """
    found: dict[str, ConfigLine] = {}
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
        found[name] = ConfigLine(number, _checked_value(at, name, value))
    return found


def _check_name(at: str, name: str) -> None:
    if name in REFUSED:
        raise UsageError(f"{at}: {name}={MASK} is refused: {REFUSED[name]}")
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
    if value.startswith("${"):
        return value
    if (wrong := sasl.wrong_value(name, value)) is not None:
        raise UsageError(f"{at}: {name}={MASK} is refused: {wrong}")
    if choices is None:
        return value
    for choice in choices:
        if value.casefold() == choice.casefold():
            return choice
    why = _WEAKER.get(name)
    needed = choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
    raise UsageError(f"{at}: {name}={MASK} is refused: it has to be {needed}" + (f"; {why}" if why else ""))


def check_together(found: Mapping[str, ConfigLine], where: str) -> None:
    """
    Whether the settings make sense beside each other.

    Raises:
        UsageError: something is missing, or would be without effect; the file, the setting and what to do.
    """
    protocol = found[PROTOCOL].value if PROTOCOL in found else "PLAINTEXT"
    mechanism = next((name for name in (MECHANISM, "sasl.mechanisms") if name in found), None)
    login = sorted(name for name in found if name.startswith("sasl."))
    ssl = sorted(name for name in found if name.startswith("ssl."))
    if protocol == "SASL_SSL":
        missing = _missing(found, None if mechanism is None else found[mechanism].value)
        if missing:
            raise UsageError(f"{where}: {PROTOCOL}=SASL_SSL needs {', '.join(missing)}, too")
    elif login:
        raise UsageError(
            f"{where}:{found[login[0]].number}: {login[0]} has no effect with {PROTOCOL}={protocol}; set SASL_SSL"
        )
    if protocol == "PLAINTEXT" and ssl:
        raise UsageError(
            f"{where}:{found[ssl[0]].number}: {ssl[0]} has no effect with {PROTOCOL}=PLAINTEXT; set SSL or SASL_SSL"
        )
    pair = {name for name in (CERTIFICATE, KEY) if name in found}
    if len(pair) == 1:
        have, lack = pair.pop(), ({CERTIFICATE, KEY} - set(found)).pop()
        raise UsageError(f"{where}:{found[have].number}: {have} needs {lack}, too")


def _missing(found: Mapping[str, ConfigLine], mechanism: str | None) -> list[str]:
    if mechanism in {sasl.OAUTHBEARER, sasl.GSSAPI}:
        return sasl.missing(mechanism, {name: line.value for name, line in found.items()})
    needed = (USERNAME, PASSWORD) if mechanism else (USERNAME, PASSWORD, MECHANISM)
    return [name for name in needed if name not in found]


CLIENT_CONFIG = "BREW_CLIENT_CONFIG"
"""The environment's name for `--client-config`; programs hand it to the programs they start."""


@dataclass(frozen=True)
class Connection:
    """
    The bootstrap servers, and librdkafka settings (its own dotted names) that every client gets on top.

    ``secrets``: settings that are never shown. ``source``: the file of `--client-config` that settings came from.
    """

    bootstrap: str
    properties: Mapping[str, str | int | bool] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, Secret] = field(default_factory=dict, repr=False)
    source: str | None = None

    def settings(self) -> dict[str, str | int | bool]:
        """All settings as the client library takes them, secrets in clear: for the client's constructor alone."""
        return {**self.properties, **{name: secret.reveal() for name, secret in self.secrets.items()}}

    @property
    def user(self) -> str:
        """Who the brokers are told is asking, as people write it in ACLs."""
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
_SAME = {"client.id": "client.id", PROTOCOL: "security.protocol"}
_PKCS8 = ("-----BEGIN PRIVATE KEY-----", "-----BEGIN ENCRYPTED PRIVATE KEY-----")


def java_settings(connection: Connection) -> dict[str, str]:
    """
    What a Java client is told beside its bootstrap servers; secrets are in clear, so hand it over and forget it.

    Certificates go as PEM (KIP-651): the authority's as a file, which every machine has for librdkafka, too; ours as
    text, since a Java client wants certificate and key in one place.

    Raises:
        Refused: the key is in a form that Java can't read.
    """
    ours = connection.settings()
    settings = {java: str(ours[name]) for name, java in _SAME.items() if name in ours}
    mechanism = ours.get(MECHANISM) or ours.get("sasl.mechanisms")
    if mechanism is not None:
        if mechanism in _BY_PASSWORD:
            settings["sasl.mechanism"] = str(mechanism)
            settings["sasl.jaas.config"] = jaas(str(mechanism), str(ours[USERNAME]), str(ours[PASSWORD]))
        else:
            settings |= sasl.java_settings(str(mechanism), ours)
    if CA in ours:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(ours[CA])}
    if CERTIFICATE in ours:
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(str(ours[CERTIFICATE])),
            "ssl.keystore.key": _key(str(ours[KEY])),
        }
        if KEY_PASSWORD in ours:
            settings["ssl.key.password"] = str(ours[KEY_PASSWORD])
    return settings


def jaas(mechanism: str, user: str, password: str) -> str:
    """One login of JAAS, by password."""
    return f"{_MODULES[mechanism]} required username={sasl.quoted(user)} password={sasl.quoted(password)};"


def java_properties(settings: Mapping[str, str]) -> str:
    """A file that Java's `Properties` reads back as these settings, whatever characters they hold."""
    return "".join(f"{_escaped(name, ':= #!')}={_escaped(value, '')}\n" for name, value in settings.items())


def _escaped(text: str, special: str) -> str:
    whole = []
    for index, one in enumerate(text):
        if one in "\\" + special or (one == " " and index == 0):
            whole.append("\\" + one)
        elif one in _NAMED:
            whole.append(_NAMED[one])
        elif " " <= one <= "~":
            whole.append(one)
        else:
            units = one.encode("utf-16-be")
            whole += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(whole)


_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}


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
